"""Brokers' volumes that are added, grow, change their class or are removed, in a Kubernetes in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest

from ottla.operator.kafka import Unreachable
from ottla.operator.kube import KubeError
from ottla.operator.link import Link
from ottla.operator.plan.roll import Report
from ottla.operator.plan.storage import NEVER_MADE
from ottla.operator.plan.volumes import DRAINED, EMPTIED_FOR, LogDirectory, come_back, emptied
from ottla.operator.spec.cluster import Pool, Volume
from ottla.placement import PartitionName
from tests.unit.operator.kubernetes_world import Object, World
from tests.unit.operator.test_cluster import Scene, running
from tests.unit.operator.test_scale import _cluster, _done

GIB = 1 << 30
ORDERS = [("orders", 0), ("orders", 1)]


class Disks:
    """The log directories of all brokers, each on a volume. The replicas on a volume stay there when the pod that
    mounts the volume is deleted."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.lies: dict[tuple[str, str], dict[PartitionName, int]] = {}  # (pod, path) → partitions and their sizes
        self.room: dict[str, int] = {}  # path → its usable bytes
        self.moves_end = True
        self.asked = 0

    def admin(self, host: str, _: Link) -> Disks.Admin:
        return Disks.Admin(self, host.removeprefix("ip-"))

    @property
    def cordoned(self) -> dict[str, str]:
        """The paths that each broker cordons, by the name of its pod."""
        own = self.scene.kafka.own
        return {pod: own[int(pod.rpartition("-")[2])].get("cordoned.log.dirs", "") for pod in self.scene.pods()}

    def paths(self, pod: str) -> list[str]:
        found = self.scene.world.objects["Pod", "shop", pod]["spec"]["containers"][0]
        dirs = next(each["value"] for each in found["env"] if each["name"] == "OTTLA_LOG_DIRS")
        return str(dirs).split(",")

    def lost(self) -> list[tuple[str, str]]:
        """The replicas on volumes that their brokers no longer have."""
        pods = self.scene.pods()
        return [
            (pod, path)
            for (pod, path), held in self.lies.items()
            if held and pod in pods and path not in self.paths(pod)
        ]

    class Admin:
        def __init__(self, disks: Disks, pod: str) -> None:
            self.disks, self.pod = disks, pod
            disks.asked += 1

        def close(self) -> None:
            pass

        async def settings(self, kind: int, name: str) -> dict[str, str]:
            assert name == self.pod.rpartition("-")[2]
            return dict(self.disks.scene.kafka.own[int(name)])

        async def configure_brokers(self, given: Mapping[str, str], reset: Any = (), *, broker: str = "") -> None:
            assert broker == self.pod.rpartition("-")[2]
            await self.disks.scene.kafka.configure_brokers(given, reset, broker=broker)

        async def log_directories(self) -> list[LogDirectory]:
            cordoned = self.disks.cordoned.get(self.pod, "").split(",")
            return [
                LogDirectory(
                    path,
                    self.disks.room.get(path, 100 * GIB),
                    dict(self.disks.lies.get((self.pod, path), {})),
                    cordoned=path in cordoned,
                )
                for path in self.disks.paths(self.pod)
            ]

        async def move_to_directories(self, moves: Mapping[str, Sequence[PartitionName]]) -> None:
            for target, partitions in moves.items():
                assert target not in self.disks.cordoned.get(self.pod, "").split(",")
                for name in partitions if self.disks.moves_end else ():
                    for path in self.disks.paths(self.pod):
                        size = self.disks.lies.setdefault((self.pod, path), {}).pop(name, None)
                        if size is not None:
                            self.disks.lies.setdefault((self.pod, target), {})[name] = size


@pytest.fixture
def storage() -> Iterator[Any]:
    """A function that makes a running Cluster with the given storage. It returns the simulated Kubernetes with the
    operator, and the brokers' disks. The storage classes fast, slow and idle exist."""
    with patch("ottla.operator.emptying.admin_of") as admin:

        def made(given: Object, **spec: Any) -> tuple[Scene, Disks]:
            scene = running(brokers={"replicas": 3, "storage": given}, **spec)
            for name in ("fast", "slow", "idle"):
                scene.world.create({"kind": "StorageClass", "metadata": {"name": name}})
            disks = Disks(scene)
            admin.side_effect = disks.admin
            for pod in scene.pods():
                disks.lies[pod, "/data/0/log"] = dict.fromkeys(ORDERS, GIB)
            return scene, disks

        yield made


def store(scene: Scene, **storage: Any) -> None:
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(storage=storage))


def restarted(scene: Scene) -> list[str]:
    return [message.split()[0] for reason, message in scene.world.events if reason == "RollingRestart"]


def claims(scene: Scene) -> dict[str, Object]:
    return {
        name: item
        for (kind, _, name), item in sorted(scene.world.objects.items())
        if kind == "PersistentVolumeClaim" and "broker" in name
    }


def said(scene: Scene) -> tuple[str, str, str]:
    found = next(each for each in scene.status["conditions"] if each["type"] == "StorageReady")
    return found["status"], found["reason"], found.get("message", "")


def test_a_volume_that_grows_shows_it_until_it_has_grown(storage: Any) -> None:
    scene, _ = storage({"size": "1Gi"})
    for claim in claims(scene).values():
        claim["status"] = {"capacity": {"storage": "1Gi"}}
    assert said(scene) == ("True", "AsWanted", "")
    store(scene, size="3Gi")
    scene.rounds(3)
    assert said(scene) == ("False", "Growing", "volume data-0-k-broker-0 grows from 1Gi to 3Gi")
    assert scene.condition("Progressing")[0] == "True"
    assert scene.condition("Ready")[0] == "True", "clients are served meanwhile"
    pending = {"type": "FileSystemResizePending", "status": "True", "lastTransitionTime": "2026-05-01T11:59:59Z"}
    claims(scene)["data-0-k-broker-0"]["status"]["conditions"] = [pending]
    scene.rounds(1)
    assert said(scene)[2] == "volume data-0-k-broker-0 has grown to 3Gi, and its file system follows"
    for claim in claims(scene).values():
        claim["status"] = {"capacity": {"storage": "3Gi"}}
    scene.rounds(1)
    assert said(scene) == ("True", "AsWanted", "")
    assert restarted(scene) == []


def test_a_class_that_can_not_expand_is_told(storage: Any) -> None:
    scene, _ = storage({"size": "1Gi"})
    for name in claims(scene):
        scene.world.refusals[f"merge PersistentVolumeClaim {name}"] = KubeError(
            403, "patching", "class can't be resized"
        )
    store(scene, size="3Gi")
    scene.rounds(3)
    assert said(scene) == ("False", "Refused", "volume data-0-k-broker-2 can't grow to 3Gi: class can't be resized")
    assert scene.status["message"] == said(scene)[2]
    scene.world.refusals.clear()
    store(scene, size="1Gi")
    scene.rounds(3)
    assert said(scene) == ("True", "AsWanted", "")


def test_a_volume_whose_size_a_webhook_changes_on_its_way_is_told_and_is_no_event_at_each_look(storage: Any) -> None:
    def capped(what: str, item: Object) -> None:
        if what == "PersistentVolumeClaim":
            item["spec"]["resources"]["requests"]["storage"] = "2Gi"

    scene, _ = storage({"size": "1Gi"})
    scene.world.webhook = capped
    store(scene, size="3Gi")
    scene.rounds(4)
    changed = "the request was changed on its way, for example by an admission webhook, to 2Gi"
    assert said(scene) == ("False", "Refused", f"volume data-0-k-broker-2 can't grow to 3Gi: {changed}")
    assert [message for reason, message in scene.world.events if reason == "VolumeGrows"] == []
    scene.world.webhook = lambda what, item: None
    scene.rounds(3)
    assert said(scene)[1] != "Refused"


def test_storage_that_refuses_a_size_is_told(storage: Any) -> None:
    scene, _ = storage({"size": "1Gi"})
    store(scene, size="3Gi")
    scene.rounds(2)
    claims(scene)["data-0-k-broker-1"]["status"] = {
        "capacity": {"storage": "1Gi"},
        "allocatedResourceStatuses": {"storage": "ControllerResizeInfeasible"},
    }
    scene.rounds(1)
    assert said(scene)[1:] == ("Refused", "volume data-0-k-broker-1 can't grow to 3Gi: its storage refuses this size")


def test_one_volume_becomes_two_and_pods_get_the_second_one_by_one(storage: Any) -> None:
    scene, disks = storage({"size": "1Gi"})
    store(scene, volumes=[{"size": "1Gi"}, {"size": "2Gi", "className": "fast"}])
    away = 0
    for _ in range(14):
        scene.reconcile()
        away = max(away, 3 - len(scene.pods()))
        scene.world.settle()
    assert away == 1
    assert restarted(scene) == ["k-broker-0", "k-broker-1", "k-broker-2"]
    assert (
        "StatefulSetMadeAnew",
        "k-broker is deleted without its pods and made again, because its volumes change",
    ) in scene.world.events
    assert {tuple(disks.paths(pod)) for pod in scene.pods()} == {("/data/0/log", "/data/1/log")}
    assert claims(scene)["data-1-k-broker-2"]["spec"]["storageClassName"] == "fast"
    assert said(scene) == ("True", "AsWanted", "")
    assert disks.asked == 0, "no volume is removed, so no broker is asked"


TWO = [{"size": "1Gi"}, {"size": "1Gi"}]


def test_a_volume_comes_though_the_first_broker_decides(storage: Any) -> None:
    """Broker 0 is the active controller, and would otherwise be restarted last. But Kubernetes creates no pod behind a
    pod that lacks a volume, so before the fix the broker that was restarted first never came back.
    """
    scene, disks = storage({"size": "1Gi"})
    scene.pages.said[0] = Report(controls=True)
    store(scene, volumes=TWO)
    scene.rounds(14)
    assert restarted(scene) == ["k-broker-0", "k-broker-1", "k-broker-2"]
    assert {tuple(disks.paths(pod)) for pod in scene.pods()} == {("/data/0/log", "/data/1/log")}


def test_a_volume_comes_though_a_broker_is_lost_meanwhile(storage: Any) -> None:
    """While the lost broker is away, no broker's report allows a restart. But Kubernetes creates the lost broker's pod
    only when the pods before it have the volume, so they are restarted all the same.
    """
    scene, disks = storage({"size": "1Gi"})
    store(scene, volumes=TWO)
    scene.reconcile()
    scene.reconcile()
    assert restarted(scene) == []
    del scene.world.objects["Pod", "shop", "k-broker-2"]
    for _ in range(30):
        away = "k-broker-2" not in scene.pods()
        risks: dict[str, tuple[str, ...]] = {"below_min_isr": ("orders-0",)} if away else {}
        scene.pages.said = {broker: Report(risks=risks) for broker in range(3)}
        scene.rounds(1)
        scene.now += timedelta(seconds=3)
    assert restarted(scene) == ["k-broker-0", "k-broker-1"]
    assert {tuple(disks.paths(pod)) for pod in scene.pods()} == {("/data/0/log", "/data/1/log")}
    assert len(scene.pods()) == 3


def test_a_volume_goes_once_its_replicas_are_on_the_others(storage: Any) -> None:
    scene, disks = storage({"volumes": TWO})
    disks.moves_end = False
    store(scene, volumes=[{"id": 1, "size": "1Gi"}])
    scene.rounds(6)
    assert said(scene) == (
        "False",
        "Emptying",
        "volume data-0-k-broker-0 is emptied to be removed: 2 replicas are still on the volume",
    )
    assert scene.status["message"] == said(scene)[2]
    assert (restarted(scene), disks.lost()) == ([], [])
    assert set(disks.cordoned.values()) == {"/data/0/log"}
    disks.moves_end = True
    for _ in range(20):
        scene.rounds(1)
        assert disks.lost() == []
    assert restarted(scene) == ["k-broker-0", "k-broker-1", "k-broker-2"]
    assert {tuple(disks.paths(pod)) for pod in scene.pods()} == {("/data/1/log",)}
    assert all(disks.lies[pod, "/data/1/log"].keys() == set(ORDERS) for pod in scene.pods())
    assert set(disks.cordoned.values()) == {""}, "a path that is gone isn't cordoned any more"
    assert "data-0-k-broker-0" in claims(scene), (
        "the pool keeps its volumes, also one that the spec doesn't have any more"
    )
    assert said(scene) == ("True", "AsWanted", "")
    asked = disks.asked
    scene.world.writes.clear()
    scene.rounds(3)
    assert (disks.asked, scene.world.writes) == (asked, [])


def test_another_class_is_a_volume_of_another_id_and_the_data_follows(storage: Any) -> None:
    scene, disks = storage({"size": "1Gi", "className": "slow"})
    store(scene, volumes=[{"id": 7, "size": "2Gi", "className": "fast"}])
    for _ in range(40):
        scene.rounds(1)
        assert disks.lost() == []
    assert {tuple(disks.paths(pod)) for pod in scene.pods()} == {("/data/7/log",)}
    assert all(disks.lies[pod, "/data/7/log"].keys() == set(ORDERS) for pod in scene.pods())
    (template,) = scene.world.objects["StatefulSet", "shop", "k-broker"]["spec"]["volumeClaimTemplates"]
    assert (template["metadata"]["name"], template["spec"]["storageClassName"]) == ("data-7", "fast")
    assert said(scene) == ("True", "AsWanted", "")


@pytest.mark.parametrize(
    "corrected",
    [[{"size": "1Gi", "id": 0}], [{"size": "1Gi", "id": 0}, {"id": 2, "size": "1Gi", "className": "fast"}]],
    ids=["taken back", "another id"],
)
def test_a_volume_that_was_never_made_is_taken_away_again(storage: Any, corrected: list[Object]) -> None:
    """Nothing makes volumes of its storage class, for example. Before the fix, the pod waited for the volume for ever,
    whatever the spec said later.
    """
    scene, disks = storage({"size": "1Gi"})
    scene.world.idle_classes = {"idle"}
    store(scene, volumes=[{"size": "1Gi", "id": 0}, {"id": 1, "size": "1Gi", "className": "idle"}])
    scene.rounds(6)
    scene.now += timedelta(minutes=2)
    scene.rounds(1)
    assert said(scene)[:2] == ("False", "Pending")
    assert "its StorageClass idle hasn't done it" in said(scene)[2]
    store(scene, volumes=corrected)
    scene.rounds(2)
    for _ in range(30):
        scene.rounds(1)
        assert disks.lost() == []
    wanted = tuple(f"/data/{each['id']}/log" for each in corrected)
    assert {tuple(disks.paths(pod)) for pod in scene.pods()} == {wanted}
    assert scene.condition("Ready") == ("True", "BrokersServe")
    assert said(scene) == ("True", "AsWanted", ""), "claims that no pod waits for are no trouble"


def _with_a_claim_that_was_never_made(storage: Any) -> tuple[Scene, Disks]:
    """A Cluster whose brokers were to get a second volume of a StorageClass that makes no volumes. The spec doesn't
    have this volume any more. Its PersistentVolumeClaim is left over, and all brokers serve without the volume.
    """
    scene, disks = storage({"size": "1Gi"})
    scene.world.idle_classes = {"idle"}
    store(scene, volumes=[{"size": "1Gi", "id": 0}, {"id": 1, "size": "1Gi", "className": "idle"}])
    scene.rounds(6)
    store(scene, volumes=[{"size": "1Gi", "id": 0}])
    scene.rounds(2)
    scene.now += timedelta(minutes=2)
    scene.rounds(10)
    assert scene.condition("Ready") == ("True", "BrokersServe")
    assert "data-1-k-broker-0" in claims(scene)
    return scene, disks


def volumes_of_set(scene: Scene) -> list[str]:
    templates = scene.world.objects["StatefulSet", "shop", "k-broker"]["spec"]["volumeClaimTemplates"]
    return [template["metadata"]["name"] for template in templates]


def test_a_volume_that_was_never_made_stays_away_when_its_brokers_pod_is_missing_at_a_reconcile(storage: Any) -> None:
    """The unwanted volume was never made, and only its PersistentVolumeClaim is left over. Before the fix, the operator
    took this claim for one with replicas on its volume while the broker's pod was missing. So the StatefulSet was made
    again with the unwanted volume, and the broker's next pod waited in vain for this volume.
    """
    scene, disks = _with_a_claim_that_was_never_made(storage)
    del scene.world.objects["Pod", "shop", "k-broker-0"]  # evicted
    scene.reconcile()
    assert volumes_of_set(scene) == ["data-0"]
    assert said(scene) == ("True", "AsWanted", ""), "no pod waits for that claim"
    scene.world.settle()
    scene.rounds(1)
    assert disks.paths("k-broker-0") == ["/data/0/log"]
    assert scene.condition("Ready") == ("True", "BrokersServe")


def test_a_volume_that_was_never_made_stays_away_when_the_statefulset_is_made_anew_and_a_pod_is_missing(
    storage: Any,
) -> None:
    scene, disks = _with_a_claim_that_was_never_made(storage)
    store(scene, volumes=[{"size": "3Gi", "id": 0}])
    scene.reconcile()
    assert ("StatefulSet", "shop", "k-broker") not in scene.world.objects
    del scene.world.objects["Pod", "shop", "k-broker-0"]
    scene.rounds(2)
    assert volumes_of_set(scene) == ["data-0"]
    assert {tuple(disks.paths(pod)) for pod in scene.pods()} == {("/data/0/log",)}


def test_a_volume_that_was_never_made_stays_away_while_the_pod_that_waited_for_it_is_restarted(storage: Any) -> None:
    """A StatefulSet creates the next pod only some reconciles after the old pod is gone."""
    scene, disks = storage({"size": "1Gi"})
    scene.world.idle_classes = {"idle"}
    store(scene, volumes=[{"size": "1Gi", "id": 0}, {"id": 1, "size": "1Gi", "className": "idle"}])
    scene.rounds(6)
    store(scene, volumes=[{"size": "1Gi", "id": 0}])
    scene.now += timedelta(minutes=2)
    for _ in range(10):
        scene.reconcile()
        scene.reconcile()
        scene.reconcile()
        scene.world.settle()
    assert [reason for reason, _ in scene.world.events].count("StatefulSetMadeAnew") == 2
    assert {tuple(disks.paths(pod)) for pod in scene.pods()} == {("/data/0/log",)}


def test_a_claim_that_an_older_operator_gave_up_is_noted_as_never_made(storage: Any) -> None:
    scene, _ = _with_a_claim_that_was_never_made(storage)
    del claims(scene)["data-1-k-broker-0"]["metadata"]["annotations"]
    del scene.world.objects["Pod", "shop", "k-broker-0"]
    scene.reconcile()
    assert claims(scene)["data-1-k-broker-0"]["metadata"]["annotations"] == {NEVER_MADE: "true"}
    assert volumes_of_set(scene) == ["data-0"]


def test_a_claim_that_gets_its_volume_after_it_was_noted_as_never_made_may_hold_replicas(storage: Any) -> None:
    """Just after the note, the storage class makes the volume after all. The waiting pod starts, and gets replicas on
    the volume. The volume must not be removed with these replicas.
    """
    scene, disks = storage({"size": "1Gi"})
    scene.world.idle_classes = {"idle"}
    store(scene, volumes=[{"size": "1Gi", "id": 0}, {"id": 1, "size": "1Gi", "className": "idle"}])
    scene.rounds(6)
    store(scene, volumes=[{"size": "1Gi", "id": 0}])
    scene.now += timedelta(minutes=2)
    scene.reconcile()
    claim = claims(scene)["data-1-k-broker-0"]
    assert claim["metadata"]["annotations"] == {NEVER_MADE: "true"}
    assert ("StatefulSet", "shop", "k-broker") not in scene.world.objects
    claim["spec"]["volumeName"], claim["status"] = "pv-1", {"phase": "Bound"}
    disks.lies["k-broker-0", "/data/1/log"] = {("late", 0): GIB}
    del scene.world.objects["Pod", "shop", "k-broker-0"]  # the pod is evicted before the next reconcile
    for _ in range(30):
        scene.rounds(1)
        assert disks.lost() == []
    assert disks.lies["k-broker-0", "/data/0/log"].keys() == {*ORDERS, ("late", 0)}
    assert {tuple(disks.paths(pod)) for pod in scene.pods()} == {("/data/0/log",)}


def test_a_claim_that_changes_while_it_is_noted_as_never_made_is_not_noted(storage: Any) -> None:
    scene, _ = storage({"size": "1Gi"})
    scene.world.idle_classes = {"idle"}
    store(scene, volumes=[{"size": "1Gi", "id": 0}, {"id": 1, "size": "1Gi", "className": "idle"}])
    scene.rounds(6)
    store(scene, volumes=[{"size": "1Gi", "id": 0}])
    scene.now += timedelta(minutes=2)
    listed = scene.world.list

    async def outrun(kind: str, *args: Any) -> list[Object]:
        found = await listed(kind, *args)
        if kind == "PersistentVolumeClaim":
            claims(scene)["data-1-k-broker-0"]["metadata"]["resourceVersion"] = "newer"
        return found

    with patch.object(scene.world, "list", outrun):
        scene.reconcile()
    assert "annotations" not in claims(scene)["data-1-k-broker-0"]["metadata"]
    assert volumes_of_set(scene) == ["data-0", "data-1"]


@pytest.mark.parametrize("source", ["dataSource", "dataSourceRef", "selector"])
def test_a_claim_that_is_to_get_a_volume_with_something_on_it_is_never_given_up(storage: Any, source: str) -> None:
    """A claim with one of these fields gets a volume that may have content. For example, the volume may be restored
    from a snapshot, and that may take longer than a minute."""
    scene, _ = storage({"size": "1Gi"})
    scene.world.idle_classes = {"idle"}
    store(scene, volumes=[{"size": "1Gi", "id": 0}, {"id": 1, "size": "1Gi", "className": "idle"}])
    scene.rounds(6)
    claims(scene)["data-1-k-broker-0"]["spec"][source] = {"name": "of-yesterday"}
    store(scene, volumes=[{"size": "1Gi", "id": 0}])
    scene.now += timedelta(minutes=2)
    scene.rounds(6)
    assert volumes_of_set(scene) == ["data-0", "data-1"]
    assert "annotations" not in claims(scene)["data-1-k-broker-0"]["metadata"]


def test_a_noted_claim_whose_pod_is_missing_is_read_after_the_pods_were_listed(storage: Any) -> None:
    """Just after the claims are listed, the waiting pod gets its volume, and then replicas on the volume. The pod is
    gone when the pods are listed."""
    scene, disks = storage({"size": "1Gi"})
    scene.world.idle_classes = {"idle"}
    store(scene, volumes=[{"size": "1Gi", "id": 0}, {"id": 1, "size": "1Gi", "className": "idle"}])
    scene.rounds(6)
    store(scene, volumes=[{"size": "1Gi", "id": 0}])
    scene.now += timedelta(minutes=2)
    scene.reconcile()
    assert ("StatefulSet", "shop", "k-broker") not in scene.world.objects
    listed = scene.world.list

    async def pods_last(kind: str, *args: Any) -> list[Object]:
        if kind == "Pod":
            for _ in range(9):
                await asyncio.sleep(0)
            claim = claims(scene)["data-1-k-broker-0"]
            claim["spec"]["volumeName"], claim["status"] = "pv-1", {"phase": "Bound"}
            disks.lies["k-broker-0", "/data/1/log"] = {("late", 0): GIB}
            scene.world.objects.pop(("Pod", "shop", "k-broker-0"), None)
        return await listed(kind, *args)

    with patch.object(scene.world, "list", pods_last):
        scene.reconcile()
    assert volumes_of_set(scene) == ["data-0", "data-1"]
    for _ in range(30):
        scene.rounds(1)
        assert disks.lost() == []


def test_a_first_volume_that_was_never_made_is_replaced_by_one_of_another_id() -> None:
    """The status advises to name the volume's class anew under another id. Before the fix, brokers didn't start after
    that, either."""
    storage = {"size": "1Gi", "className": "idle"}
    world = World()
    world.idle_classes = {"idle"}
    world.create({"kind": "StorageClass", "metadata": {"name": "fast"}})
    scene = Scene("k", world, brokers={"replicas": 3, "storage": storage})
    scene.rounds(6)
    assert scene.condition("Ready") == ("False", "BrokersNotReady")
    store(scene, volumes=[{"id": 1, "size": "1Gi", "className": "fast"}])
    scene.now += timedelta(minutes=2)
    scene.rounds(20)
    assert scene.condition("Ready") == ("True", "BrokersServe")
    assert said(scene) == ("True", "AsWanted", "")


MISTYPED = [{"size": "1Gi", "id": 0}, {"id": 1, "size": "1Gi", "className": "fsat"}]
HELD = (
    "the pool broker doesn't get its volume 1 yet, because there is no StorageClass fsat: "
    "make the class, or name another one"
)


def test_a_volume_whose_storage_class_does_not_exist_costs_no_broker(storage: Any) -> None:
    """Before the fix, the first broker was restarted for the volume, and its pod waited for the volume for ever."""
    scene, disks = storage({"size": "1Gi"})
    store(scene, volumes=MISTYPED)
    scene.rounds(10)
    assert (restarted(scene), volumes_of_set(scene)) == ([], ["data-0"])
    assert said(scene) == ("False", "Held", HELD)
    assert scene.status["message"] == HELD
    assert scene.condition("Ready") == ("True", "BrokersServe")
    assert scene.condition("Progressing") == ("True", "Changing"), "the spec isn't carried out"
    scene.world.writes.clear()
    scene.rounds(3)
    assert scene.world.writes == []
    scene.world.create({"kind": "StorageClass", "metadata": {"name": "fsat"}})
    scene.rounds(14)
    assert restarted(scene) == ["k-broker-0", "k-broker-1", "k-broker-2"]
    assert {tuple(disks.paths(pod)) for pod in scene.pods()} == {("/data/0/log", "/data/1/log")}
    assert said(scene) == ("True", "AsWanted", "")


def test_a_volume_whose_storage_class_does_not_exist_is_corrected_or_taken_back(storage: Any) -> None:
    scene, disks = storage({"size": "1Gi"})
    store(scene, volumes=MISTYPED)
    scene.rounds(3)
    store(scene, volumes=MISTYPED[:1])
    scene.rounds(3)
    assert (restarted(scene), said(scene)) == ([], ("True", "AsWanted", ""))
    store(scene, volumes=[MISTYPED[0], {**MISTYPED[1], "className": "fast"}])
    scene.rounds(14)
    assert {tuple(disks.paths(pod)) for pod in scene.pods()} == {("/data/0/log", "/data/1/log")}
    assert said(scene) == ("True", "AsWanted", "")


def test_a_volume_stays_as_long_as_the_one_that_replaces_it_can_not_be_made(storage: Any) -> None:
    """If the old volume were emptied, its broker would have no volume on which it may place new replicas."""
    scene, disks = storage({"size": "1Gi"})
    store(scene, volumes=MISTYPED[1:])
    scene.rounds(6)
    assert (restarted(scene), volumes_of_set(scene)) == ([], ["data-0"])
    assert said(scene) == ("False", "Held", HELD)
    assert set(disks.cordoned.values()) == {""}
    scene.world.create({"kind": "StorageClass", "metadata": {"name": "fsat"}})
    for _ in range(40):
        scene.rounds(1)
        assert disks.lost() == []
    assert {tuple(disks.paths(pod)) for pod in scene.pods()} == {("/data/1/log",)}


def test_a_volume_is_held_while_its_pools_statefulset_is_made_anew(storage: Any) -> None:
    scene, disks = storage({"size": "1Gi"})
    store(scene, volumes=[{"size": "3Gi", "id": 0}, MISTYPED[1]])
    scene.reconcile()
    assert ("StatefulSet", "shop", "k-broker") not in scene.world.objects
    scene.rounds(6)
    assert (restarted(scene), volumes_of_set(scene)) == ([], ["data-0"])
    assert {tuple(disks.paths(pod)) for pod in scene.pods()} == {("/data/0/log",)}
    assert {claim["spec"]["resources"]["requests"]["storage"] for claim in claims(scene).values()} == {"3Gi"}


def test_without_the_right_to_read_storage_classes_a_volume_is_added_all_the_same(storage: Any) -> None:
    scene, _ = storage({"size": "1Gi"})
    scene.world.refusals["get StorageClass fsat"] = KubeError(403, "getting StorageClass fsat", "forbidden")
    store(scene, volumes=MISTYPED)
    scene.rounds(6)
    assert volumes_of_set(scene) == ["data-0", "data-1"]


def test_while_it_is_not_known_whether_a_storage_class_exists_brokers_are_left_alone(storage: Any) -> None:
    scene, _ = storage({"size": "1Gi"})
    scene.world.refusals["get StorageClass fast"] = KubeError(500, "getting StorageClass fast", "out of memory")
    store(scene, volumes=[MISTYPED[0], {**MISTYPED[1], "className": "fast"}])
    scene.rounds(6)
    assert (restarted(scene), volumes_of_set(scene)) == ([], ["data-0"])
    assert scene.condition("NewVolumesReconciled") == ("False", "Refused")
    scene.world.refusals.clear()
    scene.rounds(14)
    assert volumes_of_set(scene) == ["data-0", "data-1"]
    assert said(scene) == ("True", "AsWanted", "")


def test_a_replica_that_fits_nowhere_keeps_its_volume_and_is_named(storage: Any) -> None:
    scene, disks = storage({"volumes": TWO})
    disks.room["/data/1/log"] = GIB // 2
    store(scene, volumes=[{"id": 1, "size": "1Gi"}])
    scene.rounds(6)
    assert said(scene)[2].startswith(
        "volume data-0-k-broker-0 is emptied to be removed: no other volume has room for partition orders-"
    )
    assert restarted(scene) == []


def test_a_pod_that_started_since_is_asked_anew(storage: Any) -> None:
    """The pod's predecessor had no replicas on the volume, but the new pod may get some before it gets the request to
    place none there.
    """
    scene, disks = storage({"volumes": TWO})
    store(scene, volumes=[{"id": 1, "size": "1Gi"}])
    while (
        EMPTIED_FOR not in claims(scene)["data-0-k-broker-1"]["metadata"].get("annotations", {})
        or not (claims(scene)["data-0-k-broker-1"]["metadata"]["annotations"][EMPTIED_FOR])
    ):
        scene.reconcile()
    del scene.world.objects["Pod", "shop", "k-broker-1"]  # evicted
    scene.world.settle()
    disks.lies["k-broker-1", "/data/0/log"] = {("late", 0): GIB}
    with patch.object(Disks.Admin, "log_directories", side_effect=Unreachable("nobody")):
        for _ in range(20):
            scene.rounds(1)
            assert disks.lost() == []
    for _ in range(20):
        scene.rounds(1)
        assert disks.lost() == []
    assert ("late", 0) in disks.lies["k-broker-1", "/data/1/log"]


def test_a_volume_that_is_wanted_again_takes_replicas_again(storage: Any) -> None:
    scene, disks = storage({"volumes": TWO})
    disks.moves_end = False
    store(scene, volumes=[{"id": 1, "size": "1Gi"}])
    scene.rounds(3)
    scene.restart()
    store(scene, volumes=TWO)
    scene.rounds(4)
    assert set(disks.cordoned.values()) == {""}
    assert restarted(scene) == []
    assert all(EMPTIED_FOR not in claim["metadata"].get("annotations", {}) for claim in claims(scene).values())
    assert said(scene) == ("True", "AsWanted", "")


def test_an_emptied_volume_that_is_wanted_again_counts_as_holding_replicas_before_it_gets_any(storage: Any) -> None:
    """The operator dies just after it has allowed the broker to place replicas on the volume again. Then the volume is
    removed from the spec once more.
    """
    scene, disks = storage({"volumes": TWO})
    # so that no broker is restarted
    scene.pages.said = dict.fromkeys(range(3), Report(risks={"offline": ("orders-0",)}))
    store(scene, volumes=[{"id": 1, "size": "1Gi"}])
    scene.rounds(12)
    emptied_for = {
        name: claim["metadata"]["annotations"][EMPTIED_FOR] for name, claim in claims(scene).items() if "data-0" in name
    }
    assert all(emptied_for.values())
    store(scene, volumes=TWO)
    told = Disks.Admin.configure_brokers

    async def dying(admin: Disks.Admin, *args: Any, **given: Any) -> None:
        await told(admin, *args, **given)
        disks.lies[admin.pod, "/data/0/log"] = {("late", 0): GIB}
        raise Unreachable("the operator is gone")

    with patch.object(Disks.Admin, "configure_brokers", dying):
        scene.rounds(1)
    assert set(disks.cordoned.values()) == {""}
    scene.restart()
    disks.moves_end = False
    scene.pages.said = {}
    store(scene, volumes=[{"id": 1, "size": "1Gi"}])
    with patch.object(Disks.Admin, "log_directories", side_effect=Unreachable("nobody")):
        for _ in range(10):
            scene.rounds(1)
            assert disks.lost() == []
    scene.rounds(1)
    assert said(scene)[2] == "volume data-0-k-broker-0 is emptied to be removed: 1 replica is still on the volume"


def test_a_volume_on_which_a_log_could_not_be_opened_stays(storage: Any) -> None:
    """A broker doesn't list a log that it couldn't open. Before the fix, the volume counted as empty, and was removed
    with the log's records."""
    scene, disks = storage({"volumes": TWO})
    scene.pages.said = {broker: Report(offline=("orders-7",)) for broker in range(3)}
    store(scene, volumes=[{"id": 1, "size": "1Gi"}])
    scene.rounds(20)
    assert disks.paths("k-broker-1") == ["/data/0/log", "/data/1/log"]
    assert "removed: the broker can't open the log of partition orders-7, which may be on this volume" in said(scene)[2]
    scene.pages.said = {}
    scene.rounds(20)
    assert disks.paths("k-broker-1") == ["/data/1/log"]


def test_a_copy_that_somebody_began_onto_a_volume_that_goes_is_ended(storage: Any) -> None:
    """Before the copy is complete, the replica isn't listed among the volume's replicas, and would be lost with the
    volume."""
    name = ("orders", 0)
    there = LogDirectory("/data/1/log", sizes={name: GIB})
    going = LogDirectory("/data/0/log", arriving={name: GIB}, cordoned=True)
    plan = emptied([there, going], ["/data/0/log"])
    assert (plan.moves, plan.left) == ({"/data/1/log": (name,)}, 1)


def test_a_cordon_that_somebody_took_back_is_set_again(storage: Any) -> None:
    scene, disks = storage({"volumes": TWO})
    disks.moves_end = False
    store(scene, volumes=[{"id": 1, "size": "1Gi"}])
    scene.rounds(3)
    scene.kafka.own[0].clear()
    scene.rounds(3)
    assert disks.cordoned["k-broker-0"] == "/data/0/log"


def test_a_new_broker_does_not_inherit_the_cordon_of_an_earlier_one_of_its_id(storage: Any) -> None:
    """A broker's dynamic setting `cordoned.log.dirs` outlives the broker. Before the fix, if a pool was renamed or
    volumes were deleted while a volume was being emptied, the next broker with this id placed no replicas on a volume
    that was to stay.
    """
    scene, disks = storage({"volumes": TWO})
    scene.kafka.own[1]["cordoned.log.dirs"] = "/data/1/log"
    del scene.world.objects["Pod", "shop", "k-broker-1"]
    scene.world.settle()
    scene.rounds(3)
    assert disks.cordoned["k-broker-1"] == ""


def test_a_broker_that_is_drained_lifts_its_cordon_before_it_goes(storage: Any) -> None:
    """Otherwise the next broker of its id begins with the cordon, and the first replicas that it gets all lie on its
    other volumes. Before the fix the cordon was lifted only after the new broker was there."""
    scene, disks = storage({"volumes": TWO})
    disks.moves_end = False
    store(scene, volumes=[{"id": 1, "size": "1Gi"}])
    scene.rounds(3)
    assert disks.cordoned["k-broker-2"] == "/data/0/log"
    scene.kafka.cluster = _cluster(3, {"orders": [(0, 1), (1, 2)]})
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=2))
    scene.rounds(1)
    assert "k-broker-2" in scene.pods()
    assert {pod: cordon for pod, cordon in disks.cordoned.items() if cordon} == {
        "k-broker-0": "/data/0/log",
        "k-broker-1": "/data/0/log",
    }


def test_a_broker_that_can_not_be_drained_yet_keeps_its_cordon(storage: Any) -> None:
    """The broker may get new replicas. So the operator still empties the broker's unwanted volume, as if the broker
    were to stay."""
    scene, disks = storage({"volumes": TWO})
    disks.moves_end = False
    store(scene, volumes=[{"id": 1, "size": "1Gi"}])
    scene.rounds(3)
    scene.kafka.cluster = _cluster(3, {"orders": [(0, 1, 2)]})  # two brokers are too few for three replicas
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=2))
    scene.rounds(3)
    assert "k-broker-2" in scene.pods()
    assert disks.cordoned["k-broker-2"] == "/data/0/log"


def test_a_volume_stays_for_a_broker_that_is_still_drained_and_whose_pod_is_missing(storage: Any) -> None:
    """The other brokers have emptied the volume. Before the fix, the StatefulSet was made again without the volume and
    without the broker, so the broker's replicas were out of reach."""
    scene, disks = storage({"volumes": TWO})
    scene.kafka.cluster = _cluster(3, {"orders": [(0, 1), (1, 2)]})
    store(scene, volumes=[{"id": 1, "size": "1Gi"}])
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=2))
    scene.reconcile()
    scene.world.refused_pods = {"k-broker-2"}
    del scene.world.objects["Pod", "shop", "k-broker-2"]
    scene.rounds(5)
    scene.world.refused_pods = set()
    scene.world.settle()
    assert "k-broker-2" in scene.pods()
    for _ in range(8):
        assert disks.lost() == []
        scene.rounds(1)


def test_a_broker_that_is_still_drained_is_made_again_with_its_statefulset_though_its_pod_is_missing(
    storage: Any,
) -> None:
    """Before the fix, the new StatefulSet had only the wanted brokers, and nobody drained the other one any more."""
    scene, disks = storage({"size": "1Gi"})
    scene.kafka.cluster = _cluster(3, {"orders": [(0, 1), (1, 2)]})
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=2))
    scene.rounds(2)
    scene.world.refused_pods = {"k-broker-2"}
    del scene.world.objects["Pod", "shop", "k-broker-2"]
    store(scene, size="2Gi")
    scene.rounds(4)
    scene.world.refused_pods = set()
    scene.rounds(1)
    assert "StatefulSetMadeAnew" in [reason for reason, _ in scene.world.events]
    assert "k-broker-2" in scene.pods()
    assert disks.lost() == []


def test_a_cordon_that_a_person_sets_is_undone_each_time(storage: Any) -> None:
    """The setting is the operator's own: docs/decisions.md says so. Before the fix, the operator remembered that the
    broker cordons nothing, and left the cordon in place.
    """
    scene, disks = storage({"volumes": TWO})
    scene.rounds(2)
    asked = disks.asked
    scene.rounds(3)
    assert disks.asked == asked, "nothing is cordoned, so no broker is asked"
    for _ in range(2):
        scene.kafka.own[1]["cordoned.log.dirs"] = "/data/1/log"
        scene.rounds(2)
        assert disks.cordoned["k-broker-1"] == ""


def test_no_claim_of_an_unwanted_volume_grows_while_the_volume_is_emptied(storage: Any) -> None:
    """The spec no longer has volume 0, whose replicas aren't moved away yet, so the StatefulSet keeps a template for
    the volume. A person has enlarged broker 0's claim of the volume to 9 GiB, and another pool has a claim of 1 TiB for
    its own volume 0. The claims of brokers 1 and 2 keep their 1 GiB all the same."""
    scene, disks = storage({"volumes": TWO})
    labels = next(iter(claims(scene).values()))["metadata"]["labels"]
    meta = {"namespace": "shop", "name": "data-0-k-a-0", "labels": labels}
    spec = {"resources": {"requests": {"storage": "1Ti"}}}
    scene.world.create({"kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec})
    scene.world.objects["PersistentVolumeClaim", "shop", "data-0-k-broker-0"]["spec"] = {
        "resources": {"requests": {"storage": "9Gi"}}
    }
    disks.moves_end = False
    store(scene, volumes=[{"id": 1, "size": "1Gi"}, {"id": 2, "size": "1Gi"}])
    scene.rounds(12)
    sizes = {name: claim["spec"]["resources"]["requests"]["storage"] for name, claim in claims(scene).items()}
    assert sizes["data-0-k-broker-1"] == sizes["data-0-k-broker-2"] == "1Gi"


def test_volumes_that_go_with_their_cluster_go_once_they_are_empty(storage: Any) -> None:
    scene, disks = storage({"volumes": TWO, "onDelete": "Delete"})
    store(scene, volumes=[{"id": 1, "size": "1Gi"}], onDelete="Delete")
    for _ in range(30):
        scene.rounds(1)
        assert disks.lost() == []
    assert sorted(claims(scene)) == [f"data-1-k-broker-{broker}" for broker in range(3)]
    assert ("VolumeDeleted", "volume data-0-k-broker-0 isn't wanted any more, and was emptied") in scene.world.events
    assert set(disks.cordoned.values()) == {""}, "a volume with this id may be wanted again"


def test_the_operator_may_die_between_any_two_steps_of_a_removal(storage: Any) -> None:
    scene, disks = storage({"volumes": TWO})
    store(scene, volumes=[{"id": 1, "size": "1Gi"}])
    for _ in range(40):
        scene.restart()
        scene.rounds(2)
        assert disks.lost() == []
    assert {tuple(disks.paths(pod)) for pod in scene.pods()} == {("/data/1/log",)}


def test_a_cluster_that_is_made_again_with_fewer_volumes_keeps_those_that_may_hold_replicas(storage: Any) -> None:
    scene, disks = storage({"volumes": TWO})
    for key in [key for key in scene.world.objects if key[0] not in ("Cluster", "PersistentVolumeClaim")]:
        del scene.world.objects[key]
    store(scene, volumes=[{"id": 1, "size": "1Gi"}])
    for _ in range(40):
        scene.rounds(1)
        assert disks.lost() == []
    assert {tuple(disks.paths(pod)) for pod in scene.pods()} == {("/data/1/log",)}
    assert all(disks.lies[pod, "/data/1/log"].keys() == set(ORDERS) for pod in scene.pods())


FACTORS = (
    "default.replication.factor",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
)


def _scaled_down(scene: Scene, disks: Disks) -> None:
    """Scales the Cluster from three brokers to two."""
    scene.kafka.cluster = _cluster(3, {"orders": [(0, 1), (1, 2)]})
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=2))
    scene.rounds(2)
    scene.kafka.cluster = _done(scene.kafka.cluster)
    disks.lies["k-broker-2", "/data/0/log"] = {}
    scene.rounds(6)
    assert scene.pods() == ["k-broker-0", "k-broker-1"]


def test_a_broker_that_comes_back_after_a_volume_was_replaced_restarts_nobody(storage: Any) -> None:
    """Before the fix, the operator took the old claim of the broker that came back for one with replicas on its volume.
    So all brokers got the old volume again in one roll, and lost it again in a second roll."""
    # replication factors that follow the number of brokers
    scene, disks = storage({"size": "1Gi"}, config=dict.fromkeys(FACTORS, 2))
    _scaled_down(scene, disks)
    store(scene, volumes=[{"id": 1, "size": "1Gi"}])
    scene.rounds(40)
    assert said(scene) == ("True", "AsWanted", "")
    scene.world.events.clear()
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=3))
    scene.rounds(40)
    assert {tuple(disks.paths(pod)) for pod in scene.pods()} == {("/data/1/log",)}
    assert scene.pods() == ["k-broker-0", "k-broker-1", "k-broker-2"]
    assert restarted(scene) == []
    assert "StatefulSetMadeAnew" not in [reason for reason, _ in scene.world.events]


def test_a_drained_brokers_volume_counts_as_holding_replicas_when_the_broker_comes_back(storage: Any) -> None:
    """The volume has got replicas again, but the note on its claim that it has none couldn't be removed. Then the
    volume is removed from the spec while the broker has no pod."""
    scene, disks = storage({"volumes": TWO}, config=dict.fromkeys(FACTORS, 2))
    _scaled_down(scene, disks)
    assert claims(scene)["data-0-k-broker-2"]["metadata"]["annotations"][EMPTIED_FOR] == DRAINED
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=3))
    with patch("ottla.operator.emptying.is_ready", return_value=False):
        scene.rounds(3)
    assert "k-broker-2" in scene.pods()
    disks.lies["k-broker-2", "/data/0/log"] = {("late", 0): GIB}
    scene.world.refused_pods = {"k-broker-2"}
    del scene.world.objects["Pod", "shop", "k-broker-2"]
    store(scene, volumes=[{"id": 1, "size": "1Gi"}])
    scene.rounds(20)
    scene.world.refused_pods = set()
    for _ in range(40):
        scene.rounds(1)
        assert disks.lost() == []
    assert disks.lies["k-broker-2", "/data/1/log"] == {("late", 0): GIB}


@pytest.mark.parametrize("dies", ["before the StatefulSet", "after the StatefulSet"])
def test_an_unwanted_volume_counts_as_holding_replicas_before_the_pod_of_a_broker_that_comes_back_mounts_it(
    storage: Any, dies: str
) -> None:
    """The spec no longer has the volume, but the other brokers still mount it. The operator dies after it has asked for
    the pod of the broker that comes back, and the next operator process doesn't see that pod any more. Before the fix,
    the note on the broker's claim still said that the volume has no replicas, and the volume was removed with the
    replica that the broker had got on it."""
    scene, disks = storage({"volumes": TWO}, config=dict.fromkeys(FACTORS, 2))
    _scaled_down(scene, disks)
    disks.moves_end = False
    store(scene, volumes=[{"id": 1, "size": "1Gi"}])
    scene.rounds(3)
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=3))
    if dies == "before the StatefulSet":
        scene.world.refusals["apply StatefulSet k-broker"] = KubeError(503, "applying k-broker", "it goes away")
        scene.reconcile()
        assert claims(scene)["data-0-k-broker-2"]["metadata"]["annotations"][EMPTIED_FOR] == ""
        scene.world.refusals.clear()
    scene.reconcile()
    scene.restart()
    scene.world.settle()
    assert disks.paths("k-broker-2") == ["/data/0/log", "/data/1/log"]
    disks.lies["k-broker-2", "/data/0/log"] = {("late", 0): GIB}
    scene.world.refused_pods = {"k-broker-2"}
    del scene.world.objects["Pod", "shop", "k-broker-2"]
    disks.moves_end = True
    scene.rounds(20)
    scene.world.refused_pods = set()
    for _ in range(40):
        scene.rounds(1)
        assert disks.lost() == []
    assert disks.lies["k-broker-2", "/data/1/log"] == {("late", 0): GIB}
    assert said(scene) == ("True", "AsWanted", "")


def test_whose_claims_count_as_holding_replicas_again() -> None:
    """A claim of a drained broker counts as holding replicas again if the broker is wanted, and its pod mounts the
    claim, or the present or the wanted StatefulSet gives the claim to the broker's pod."""
    pool = Pool("broker", 0, 3, volumes=(Volume("1Gi", None, 2),))
    noted = {
        f"data-{volume}-k-broker-{broker}": {
            "metadata": {"name": f"data-{volume}-k-broker-{broker}", "annotations": {EMPTIED_FOR: DRAINED}}
        }
        for volume in range(4)
        for broker in range(5)
    }

    def stateful_set(replicas: int, *volumes: int) -> Object:
        templates = [{"metadata": {"name": f"data-{volume}"}} for volume in volumes]
        return {"metadata": {"name": "k-broker"}, "spec": {"replicas": replicas, "volumeClaimTemplates": templates}}

    mounts = {"volumes": [{"persistentVolumeClaim": {"claimName": "data-3-k-broker-0"}}]}
    pods = {"k-broker-0": {"metadata": {"name": "k-broker-0"}, "spec": mounts}}
    found = come_back(pool, [stateful_set(2, 0, 1), stateful_set(4, 1, 2)], noted, pods)
    by_broker = {
        broker: sorted(
            int(claim["metadata"]["name"][5]) for claim in found if claim["metadata"]["name"].endswith(f"-{broker}")
        )
        for broker in range(5)
    }
    assert by_broker == {0: [0, 1, 2, 3], 1: [0, 1, 2], 2: [1, 2], 3: [], 4: []}
    assert len(found) == len({claim["metadata"]["name"] for claim in found})
    noted["data-2-k-broker-2"]["metadata"]["annotations"] = {EMPTIED_FOR: "uid-7"}  # noted for a pod that is gone
    assert [claim["metadata"]["name"] for claim in come_back(pool, [stateful_set(3, 2)], noted, {})] == [
        "data-2-k-broker-0",
        "data-2-k-broker-1",
    ]


def test_a_broker_that_stays_after_all_has_no_claim_that_counts_as_empty(storage: Any) -> None:
    """The broker is to leave, and its claims are noted as drained. Then the spec asks for the broker again, while its
    pod still exists.
    """
    scene, disks = storage({"size": "1Gi"}, config=dict.fromkeys(FACTORS, 2))
    scene.kafka.cluster = _cluster(3, {"orders": [(0, 1), (1, 2)]})
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=2))
    scene.rounds(2)
    scene.kafka.cluster = _done(scene.kafka.cluster)
    for _ in range(4):
        scene.reconcile()
    assert claims(scene)["data-0-k-broker-2"]["metadata"]["annotations"][EMPTIED_FOR] == DRAINED
    assert "k-broker-2" in scene.pods()
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=3))
    scene.rounds(6)
    assert not any(EMPTIED_FOR in claim["metadata"].get("annotations", {}) for claim in claims(scene).values())
    assert set(disks.cordoned.values()) <= {""}


def test_the_claims_of_a_pool_that_goes_say_that_nothing_is_on_them(storage: Any) -> None:
    pools = [{"name": name, "firstId": first, "replicas": 2} for name, first in (("a", 0), ("b", 100))]
    scene = running(brokers={"pools": pools, "storage": {"size": "1Gi"}})
    scene.kafka.cluster = replace(
        _cluster(2, {"orders": [(0, 1)]}), racks=dict.fromkeys((0, 1, 100, 101)), load={0: 1, 1: 1}
    )
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(pools=pools[:1]))
    scene.rounds(8)
    assert scene.pods() == ["k-a-0", "k-a-1"]
    noted = {
        claim["metadata"]["name"]: claim["metadata"].get("annotations", {}).get(EMPTIED_FOR)
        for (kind, _, _), claim in scene.world.objects.items()
        if kind == "PersistentVolumeClaim" and "etcd" not in claim["metadata"]["name"]
    }
    assert noted == {"data-0-k-a-0": None, "data-0-k-a-1": None, "data-0-k-b-100": DRAINED, "data-0-k-b-101": DRAINED}


def test_claims_of_another_class_than_the_spec_says_are_told(storage: Any) -> None:
    """Claims have another class than the spec when a Cluster is deleted, and created anew with another storage
    class."""
    scene, _ = storage({"size": "1Gi", "className": "slow"})
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(storage={"size": "1Gi", "className": "fast"}))
    scene.rounds(3)
    assert said(scene)[1:] == (
        "Refused",
        "volume data-0-k-broker-0 is of the class slow, not fast, and a class can't change: "
        "give the volume another id, and its replicas are moved to a new one",
    )
    assert scene.condition("Ready")[0] == "True"


def test_a_directory_that_has_failed_is_never_taken_for_an_empty_one(storage: Any) -> None:
    scene, _ = storage({"volumes": TWO})
    plain = Disks.Admin.log_directories

    async def failing(admin: Disks.Admin) -> list[LogDirectory]:
        return [replace(each, failed=each.path == "/data/0/log", sizes={}) for each in await plain(admin)]

    with patch.object(Disks.Admin, "log_directories", failing):
        store(scene, volumes=[{"id": 1, "size": "1Gi"}])
        scene.rounds(8)
    assert said(scene)[2] == (
        "volume data-0-k-broker-0 is emptied to be removed: "
        "the log directory /data/0/log has failed, so it isn't known which replicas it has"
    )
    assert restarted(scene) == []
