"""Restarts after changes: one pod of a Cluster at a time and, when the operator's release changes, one Cluster at a
time. Nothing is deleted on outdated observations. Kubernetes is in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest

from ottla.operator.absences import Absences
from ottla.operator.app import Operator, Options
from ottla.operator.cluster import QUIET_S
from ottla.operator.etcd_client import EtcdUnreachable
from ottla.operator.kube import KubeError
from ottla.operator.objects import Ref
from ottla.operator.plan.turns import Release, Standing, on_its_way, standing
from ottla.operator.spec.cluster import Defaults
from ottla.operator.turns import Turns
from tests.unit.operator.kubernetes_world import Object, World
from tests.unit.operator.test_cluster import EtcdInMemory, Scene, running

NEWER = Defaults("ottla:2", "etcd:2", "2")
VOLUME = "data-0-k-broker-2"
NIGHTLY = [{"cron": "0 2 * * *", "durationMinutes": 60}]


def _restarted(scene: Scene) -> list[str]:
    return [message.split()[0] for reason, message in scene.world.events if reason == "RollingRestart"]


def _uids(scene: Scene, cluster: str) -> dict[str, str]:
    return {
        name: item["metadata"]["uid"]
        for (kind, _, name), item in scene.world.objects.items()
        if kind == "Pod" and name.startswith(f"{cluster}-")
    }


def test_another_operator_restarts_one_pod_at_a_time_and_etcd_first() -> None:
    """Before the fix, a member of etcd and a broker were restarted in one reconcile."""
    scene = running(metadata={"etcd": {"members": 3}}, controllers={"replicas": 2})
    scene.restart(NEWER)
    scene.pages.decides = 0
    most = 0
    for _ in range(40):
        there = len(_uids(scene, "k"))
        scene.reconcile()
        most = max(most, there - len(_uids(scene, "k")))
        scene.world.settle()
    assert most == 1
    assert _restarted(scene) == [
        *("k-etcd-0", "k-etcd-1", "k-etcd-2"),
        *("k-controller-1", "k-controller-0"),
        *("k-broker-0", "k-broker-1", "k-broker-2"),
    ]
    assert len(_restarted(scene)) == 8
    assert scene.status["operator"] == {"release": "ottla:2 etcd:2 2"}
    assert scene.condition("Rolling") == ("False", "UpToDate")


def test_the_controller_that_decides_is_restarted_last_and_only_while_the_other_one_is_there() -> None:
    scene = running(controllers={"replicas": 3})
    scene.rounds(10)
    scene.world.events.clear()
    scene.world.edit("Cluster", "k", lambda spec: spec["controllers"].update(resources={"requests": {"cpu": "1"}}))
    scene.pages.decides = 1
    scene.rounds(1)
    scene.reconcile()
    assert _restarted(scene) == ["k-controller-0"]
    scene.reconcile()  # the pod isn't back yet
    assert _restarted(scene) == ["k-controller-0"]
    assert scene.status["message"].startswith("Rolling controllers 1/3: waiting for k-controller-0 to be created")
    scene.world.settle()
    scene.rounds(4)
    assert _restarted(scene) == ["k-controller-0", "k-controller-2", "k-controller-1"]


def test_a_controller_that_is_stuck_is_replaced_once_the_spec_is_put_right() -> None:
    scene = running(controllers={"replicas": 2})
    scene.world.bad_images = {"ottla:bad"}
    scene.world.edit("Cluster", "k", lambda spec: spec.update(image="ottla:bad"))
    scene.rounds(6)
    stuck = "k-controller-1, which is stuck: ImagePullBackOff: no such image"
    assert scene.status["message"] == f"Rolling 0/3: waiting for {stuck}"
    assert _restarted(scene) == ["k-controller-1"], "only one pod is restarted"
    scene.world.edit("Cluster", "k", lambda spec: spec.update(image="ottla:3"))
    scene.rounds(14)
    assert scene.status["version"] == "3"
    assert scene.condition("Rolling") == ("False", "UpToDate")


def _two() -> tuple[Scene, Scene]:
    first = running("a")
    second = running("b", first.world)
    first.rounds(1)
    assert first.status["operator"] == second.status["operator"] == {"release": "ottla:1 etcd:1"}
    first.restart(NEWER)
    second.reconciler = first.reconciler  # one process has both Clusters
    return first, second


def test_another_operator_restarts_one_cluster_after_the_other() -> None:
    first, second = _two()
    before = _uids(first, "b")
    first.rounds(3)
    assert first.status["operator"] == {"release": "ottla:1 etcd:1", "turn": True}
    second.rounds(3)
    assert _uids(first, "b") == before
    said = "the Cluster shop/a, whose pods are restarted for this version of the operator first"
    assert said in second.status["message"]
    assert second.condition("Rolling") == ("True", "Waiting")
    assert second.budget() == 1, "evictions are still allowed meanwhile"
    first.rounds(12)
    assert first.status["operator"] == {"release": "ottla:2 etcd:2 2"}
    second.rounds(14)
    assert second.status["operator"] == {"release": "ottla:2 etcd:2 2"}
    assert not set(_uids(first, "b").values()) & set(before.values())


def test_the_turn_outlives_the_operator_and_its_restart_changes_nobodys() -> None:
    first, second = _two()
    second.rounds(2)
    assert second.status["operator"]["turn"]
    first.restart(NEWER)
    second.reconciler = first.reconciler
    before = _uids(first, "a")
    first.rounds(3)  # the new process sees this Cluster first
    assert _uids(first, "a") == before
    assert "the Cluster shop/b" in first.status["message"]
    second.rounds(14)
    first.rounds(14)
    assert first.status["operator"] == second.status["operator"] == {"release": "ottla:2 etcd:2 2"}


def test_no_pod_is_restarted_by_a_turn_that_could_not_be_written_down() -> None:
    first, _ = _two()
    before = _uids(first, "a")
    first.reconcile()
    first.world.settle()  # Kubernetes has observed the new template
    first.rounds(1)
    assert _uids(first, "a") == before, "the first visit only takes the turn"
    first.reconcile()
    assert _uids(first, "a") != before


def test_a_cluster_outside_of_its_window_holds_up_nobody() -> None:
    first, second = _two()
    first.world.edit("Cluster", "a", lambda spec: spec.update(maintenanceWindows=NIGHTLY))
    first.rounds(1)
    del first.cluster["status"]["operator"]  # from now on the changes are due to another release, and not to the spec
    first.rounds(3)
    assert "the next maintenance window" in first.status["message"]
    assert "turn" not in first.status.get("operator", {})
    second.rounds(16)
    assert second.status["operator"] == {"release": "ottla:2 etcd:2 2"}
    first.now = first.now.replace(hour=2, minute=10) + timedelta(days=1)
    first.rounds(14)
    assert first.status["operator"] == {"release": "ottla:2 etcd:2 2"}


def test_what_somebody_asks_for_needs_no_turn() -> None:
    first, second = _two()
    first.rounds(2)
    second.world.edit("Cluster", "b", lambda spec: spec.update(image="ottla:3"))
    second.rounds(14)
    assert second.status["version"] == "3"
    assert second.status["operator"] == {"release": "ottla:2 etcd:2 2"}


def test_clusters_that_change_nothing_take_no_turn() -> None:
    first = running("a", image="mine:7", metadata={"etcd": {"members": 1, "image": "etcd:7"}})
    first.restart(NEWER)
    first.rounds(1)
    assert first.status["operator"] == {"release": "ottla:2 etcd:2 2"}
    assert _restarted(first) == []


def test_a_turn_that_can_not_be_found_out_is_told_and_nothing_is_restarted() -> None:
    first, _ = _two()
    first.rounds(1)
    first.world.refusals["list Cluster"] = KubeError(403, "listing Cluster", "forbidden")
    first.rounds(2)
    assert _restarted(first) == []
    assert first.condition("TurnReconciled") == ("False", "Refused")
    assert first.condition("RollReconciled") == ("False", "Waiting")
    first.world.refusals.clear()
    first.rounds(14)
    assert first.status["operator"] == {"release": "ottla:2 etcd:2 2"}


def test_two_clusters_do_not_take_their_turn_at_once() -> None:
    keys = [Ref("shop", name) for name in "ab"]
    world = World()
    for key in keys:
        world.create({"kind": "Cluster", "metadata": {"namespace": key.namespace, "name": key.name}, "spec": {}})

    async def take() -> list[Ref | None]:
        turns = Turns(lambda: world.list("Cluster"), lambda key: None)
        return list(await asyncio.gather(*(turns.take(key) for key in keys)))

    assert asyncio.run(take()) == [None, keys[0]]


NEW, TURN, OLD = Release("2"), Release("1", turn=True), Release("1")


@pytest.mark.parametrize(
    ("noted", "outdated", "away", "current", "applied", "asked_for", "expected"),
    [
        (Release(), [], [], True, True, False, Standing.FOLLOWS),
        (Release(), [], [], False, True, False, Standing.UNKNOWN),
        (Release(), ["k-0"], [], True, True, False, Standing.WAITS),
        (OLD, ["k-0"], [], True, True, False, Standing.WAITS),
        (OLD, ["k-0"], ["k-0"], True, False, False, Standing.WAITS),
        (OLD, ["k-0"], [], True, True, True, Standing.FOLLOWS),
        (OLD, [], [], True, False, False, Standing.PARTLY),
        (NEW, ["k-0"], [], True, True, False, Standing.FOLLOWS),
        (NEW, ["k-0"], ["k-1"], False, False, False, Standing.FOLLOWS),
        (TURN, ["k-0"], [], True, True, False, Standing.TURN),
        (Release("2", turn=True), ["k-0"], [], True, True, False, Standing.TURN),
        (TURN, ["k-0"], [], True, True, True, Standing.TURN),
        (TURN, [], [], False, True, False, Standing.TURN),
        (TURN, [], ["k-0"], True, True, False, Standing.TURN),
        (TURN, [], ["k-0"], True, False, False, Standing.TURN),
        (TURN, [], [], True, False, False, Standing.PARTLY),
        (TURN, [], [], True, True, False, Standing.FOLLOWS),
    ],
)
def test_how_a_cluster_stands(
    noted: Release,
    outdated: list[str],
    away: list[str],
    current: bool,
    applied: bool,
    asked_for: bool,
    expected: Standing,
) -> None:
    how = standing("2", noted, outdated, away, current=current, applied=applied, asked_for=asked_for)
    assert how is expected


# ---- troubles in the middle of an upgrade


SINGLE = {"replicas": 1, "storage": {"size": "1Gi"}}


def _two_of_one_broker() -> tuple[Scene, Scene]:
    first = running("a", brokers=SINGLE)
    second = running("b", first.world, brokers=SINGLE)
    first.rounds(1)
    return first, second


def _upgraded(first: Scene, second: Scene, to: Defaults = NEWER) -> None:
    first.restart(to)
    second.reconciler = first.reconciler


def _by_turns(count: int, *scenes: Scene) -> None:
    for _ in range(count):
        for scene in scenes:
            scene.now += timedelta(minutes=2)
            scene.reconcile()
        scenes[0].world.settle()


@pytest.mark.parametrize("images", ["bad_images", "silent_images"])
def test_a_bad_image_of_another_release_stops_at_the_first_cluster(images: str) -> None:
    """Before the fix, Clusters of one broker went down one after the other: after its restart, the first Cluster had no
    outdated pod any more."""
    first, second = _two_of_one_broker()
    getattr(first.world, images).add("ottla:2")
    _upgraded(first, second)
    before = _uids(first, "b")
    _by_turns(20, first, second)
    assert _uids(first, "b") == before
    assert first.status["operator"]["turn"]
    waits_for = "a-broker-0, which is stuck: ImagePullBackOff" if images == "bad_images" else "a-broker-0 to be ready"
    said = (
        f"the Cluster shop/a, whose pods are restarted for this version of the operator first (it waits for {waits_for}"
    )
    assert said in second.status["message"]
    assert second.condition("Ready") == ("True", "BrokersServe")
    _upgraded(first, second, Defaults("ottla:3", "etcd:2", "3"))
    if images == "silent_images":  # a slow broker looks like a broker that never becomes ready
        del first.world.objects["Pod", "shop", "a-broker-0"]
    _by_turns(20, first, second)
    assert first.status["operator"] == second.status["operator"] == {"release": "ottla:3 etcd:2 3"}
    assert (first.status["version"], second.status["version"]) == ("3", "3")


def test_a_cluster_that_is_broken_takes_no_turn_and_holds_up_nobody() -> None:
    first, second = _two()
    first.world.refused_pods.add("a-broker-2")
    del first.world.objects["Pod", "shop", "a-broker-2"]
    before = _uids(first, "a")
    _by_turns(24, first, second)
    assert _uids(first, "a") == before
    assert "a-broker-2 to be created" in first.status["message"]
    assert second.status["operator"] == {"release": "ottla:2 etcd:2 2"}
    first.world.refused_pods.clear()
    _by_turns(16, first)
    assert first.status["operator"] == {"release": "ottla:2 etcd:2 2"}


def test_a_paused_cluster_keeps_its_turn_and_the_others_say_that_it_is_paused() -> None:
    first, second = _two()
    first.rounds(3)
    first.world.edit("Cluster", "a", lambda spec: spec.update(paused=True))
    _upgraded(first, second)
    _by_turns(3, second, first)
    assert first.status["operator"]["turn"]
    assert "the Cluster shop/a, whose pods" in second.status["message"]
    assert "first (it is paused)" in second.status["message"]


def test_a_pod_that_can_not_be_created_keeps_no_correction_of_etcd_or_of_controllers_from_getting_through() -> None:
    """Before the fix, a quota on pods held up the rolls of etcd and of controllers for ever."""
    scene = running(metadata={"etcd": {"members": 3}}, controllers={"replicas": 2})
    scene.rounds(10)
    scene.world.events.clear()
    scene.world.refused_pods.add("k-broker-2")
    del scene.world.objects["Pod", "shop", "k-broker-2"]
    scene.reconcile()

    def correct(spec: Object) -> None:
        spec["metadata"]["etcd"]["image"] = "etcd:3"
        spec["controllers"]["resources"] = {"requests": {"cpu": "1"}}

    scene.world.edit("Cluster", "k", correct)
    scene.rounds(3)
    assert _restarted(scene) == [], "the pod may still be created"
    assert "Rolling etcd 0/3: waiting for k-broker-2 to be created" in scene.condition_message("Rolling")
    scene.now += timedelta(minutes=5)
    scene.rounds(12)
    assert sorted(_restarted(scene)) == [
        *("k-controller-0", "k-controller-1"),
        *("k-etcd-0", "k-etcd-1", "k-etcd-2"),
    ]


def test_a_pod_that_is_created_and_goes_again_counts_as_missing_anew() -> None:
    absences, key, now = Absences(), Ref("shop", "k"), datetime(2026, 5, 1, tzinfo=UTC)
    set_ = {"metadata": {"name": "k-broker"}, "spec": {"replicas": 2}}
    pod = {"metadata": {"name": "k-broker-0"}}
    assert absences.look(key, [set_], [pod], now) == {"k-broker-1": now}
    later = now + timedelta(minutes=1)
    assert absences.look(key, [set_], [], later) == {"k-broker-0": later, "k-broker-1": now}
    absences.look(key, [set_], [{"metadata": {"name": "k-broker-1"}}], later)
    last = now + timedelta(minutes=9)
    assert absences.look(key, [set_], [], last) == {"k-broker-0": later, "k-broker-1": last}
    absences.forget(key)
    assert absences.look(key, [set_], [pod], last) == {"k-broker-1": last}


def test_a_pod_on_a_node_that_is_lost_is_not_waited_for_until_the_node_goes() -> None:
    """The pod stays on that node, marked as deleted, for as long as the Node object exists."""
    now = datetime(2026, 5, 1, 12, tzinfo=UTC)
    set_ = {"metadata": {"name": "k-broker"}, "spec": {"replicas": 1}}

    def way(deleted: str) -> str:
        pod = {"metadata": {"name": "k-broker-0", "deletionTimestamp": deleted}}
        return on_its_way([set_], [pod], {}, now)

    assert way("2026-05-01T11:58:00Z") == "k-broker-0 to stop"
    assert way("2026-05-01T11:54:00Z") == ""


@pytest.mark.parametrize("has_its_turn", [False, True])
def test_one_statefulset_that_is_refused_keeps_neither_the_others_nor_the_next_cluster(has_its_turn: bool) -> None:
    """Before the fix, the reconcile waited until Kubernetes had observed every StatefulSet, also one whose change it
    had refused.
    """
    first, second = _two()
    first.cluster["status"]["operator"].update({"turn": True} if has_its_turn else {})
    first.world.refusals["apply StatefulSet a-etcd"] = KubeError(403, "applying", "a webhook says no")
    _by_turns(12, first, second)
    brokers = {f"a-broker-{number}" for number in range(3)}
    assert brokers.issubset(_restarted(first)), first.status["message"]
    assert first.status["operator"] == {"release": "ottla:1 etcd:1"}, "its etcd has the old release"
    assert "a webhook says no" in first.status["message"]
    _by_turns(14, first, second)
    assert second.status["operator"] == {"release": "ottla:2 etcd:2 2"}
    first.world.refusals.clear()
    _by_turns(8, first)
    assert first.status["operator"] == {"release": "ottla:2 etcd:2 2"}
    assert _restarted(first)[-1] == "a-etcd-0"


def test_the_turn_of_a_cluster_that_no_watch_has_told_of_yet_is_honoured() -> None:
    """Before the fix, after a start of the operator two Clusters rolled at the same time."""
    first, second = _two()
    first.rounds(3)
    assert first.status["operator"]["turn"]
    known: set[Ref] = {second.key}  # the other Cluster's event comes later
    operator = Operator(Options(NEWER), first.world)  # type: ignore[arg-type]
    operator._known = known
    turns = Turns(operator._listed, lambda key: None)
    assert asyncio.run(turns.take(second.key)) == first.key


def test_two_clusters_whose_statuses_both_have_the_turn_do_not_use_it_at_once() -> None:
    """A Cluster's status records that its pods may be restarted for the operator's new release (its turn). A write of
    a status may time out and still take effect after another Cluster has got the turn."""
    first, second = _two()
    for scene in (first, second):
        scene.cluster["status"]["operator"]["turn"] = True
    before = _uids(first, "b")
    _by_turns(4, second, first)
    assert _uids(first, "b") == before
    _by_turns(20, first, second)
    assert first.status["operator"] == second.status["operator"] == {"release": "ottla:2 etcd:2 2"}


def test_a_turn_that_could_not_be_written_down_is_not_kept() -> None:
    first, second = _two()
    first.reconcile()
    first.world.settle()
    with (
        patch.object(first.world, "write_status", side_effect=KubeError(409, "writing", "it has changed")),
        pytest.raises(KubeError),
    ):
        first.reconcile()
    first.world.edit("Cluster", "a", lambda spec: spec.update(paused=True))
    second.rounds(16)
    assert second.status["operator"] == {"release": "ottla:2 etcd:2 2"}


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"log.retention.ms": 1000}},
        {"maintenanceWindows": []},
        {"scaling": {"throttleBytesPerSecond": 1000000}},
        {"networkPolicy": {"enabled": True}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_change_that_is_not_about_pods_does_not_skip_the_turn(change: Object) -> None:
    """Before the fix, after any change of a Cluster's spec in the middle of an operator's upgrade, the Cluster's pods
    were restarted for the new release while another Cluster had the turn."""
    first, second = _two()
    first.rounds(2)
    before = _uids(first, "b")
    second.world.edit("Cluster", "b", lambda spec: spec.update(change))
    second.rounds(6)
    assert _uids(first, "b") == before
    assert "the Cluster shop/a" in second.status["message"]


def test_clusters_that_wait_for_a_turn_or_a_window_are_looked_at_seldom_and_as_soon_as_it_is_free() -> None:
    """Before the fix, each waiting Cluster was reconciled every three seconds until it got the turn to restart its
    pods, or its maintenance window began."""
    first, second = _two()
    first.rounds(3)
    second.rounds(2)
    assert second.reconcile().requeue_after == QUIET_S
    assert first.woken == []
    first.rounds(11)
    assert first.status["operator"] == {"release": "ottla:2 etcd:2 2"}
    assert first.woken == [second.key]
    second.rounds(1)
    assert second.status["operator"]["turn"]
    second.world.edit("Cluster", "b", lambda spec: spec.update(maintenanceWindows=NIGHTLY))
    second.rounds(2)
    assert second.condition("Rolling") == ("True", "Waiting")
    assert second.reconcile().requeue_after == QUIET_S


# ---- nothing is deleted on outdated observations


def _about_to_restart(change: Callable[[Object], None], **spec: object) -> Scene:
    """A Cluster whose next reconcile restarts a pod for this change of its spec."""
    scene = running(**spec)
    scene.world.edit("Cluster", "k", change)
    scene.reconcile()
    scene.world.settle()
    return scene


def _newer_brokers(spec: Object) -> None:
    spec.update(image="ottla:2")


def _newer_etcd(spec: Object) -> None:
    spec["metadata"]["etcd"].update(image="etcd:2")


def _before_the_second_look(scene: Scene, change: Callable[[], None]) -> None:
    """Calls `change` between the observation on which a restart was decided and the deletion of the pod."""
    listed = scene.world.list
    looks = iter(range(100))

    async def look(kind: str, namespace: str = "", labels: str = "") -> list[Object]:
        if kind == "Pod" and next(looks) == 1:
            change()
        return await listed(kind, namespace, labels)

    scene.world.list = look  # type: ignore[method-assign]


def test_a_pause_just_before_a_restart_is_honoured() -> None:
    scene = _about_to_restart(_newer_brokers)
    before = _uids(scene, "k")

    def pause() -> None:
        scene.world.edit("Cluster", "k", lambda spec: spec.update(paused=True))

    _before_the_second_look(scene, pause)
    with pytest.raises(KubeError, match="it has changed"):
        scene.reconcile()  # the Cluster has changed since it was read
    assert _uids(scene, "k") == before
    assert _restarted(scene) == []


def test_a_broker_that_went_just_before_another_is_restarted_keeps_that_one() -> None:
    scene = _about_to_restart(_newer_brokers)
    _before_the_second_look(scene, lambda: scene.world.objects["Pod", "shop", "k-broker-2"].pop("status"))
    scene.reconcile()
    assert _restarted(scene) == []
    assert "waiting for k-broker-2 to be ready" in scene.status["message"]


def test_a_pod_that_changed_after_the_second_look_is_looked_at_again() -> None:
    scene = _about_to_restart(_newer_brokers)
    before = _uids(scene, "k")
    got = scene.world.get

    async def get(kind: str, namespace: str, name: str) -> Object | None:
        found = await got(kind, namespace, name)
        if kind == "Cluster":
            scene.world.objects["Pod", "shop", "k-broker-0"]["metadata"]["resourceVersion"] += "1"
        return found

    scene.world.get = get  # type: ignore[method-assign]
    scene.reconcile()
    assert _uids(scene, "k") == before
    assert _restarted(scene) == [], "a restart that wasn't done isn't reported"
    scene.world.get = got  # type: ignore[method-assign]
    scene.reconcile()
    assert _restarted(scene) == ["k-broker-0"]


def test_a_member_that_went_just_before_another_is_restarted_keeps_that_one() -> None:
    scene = _about_to_restart(_newer_etcd, metadata={"etcd": {"members": 3}})
    _before_the_second_look(scene, lambda: scene.world.objects["Pod", "shop", "k-etcd-2"].pop("status"))
    scene.reconcile()
    assert _restarted(scene) == []


def test_a_member_is_restarted_only_while_every_member_answers() -> None:
    """A pod stays ready for some seconds after its etcd has died, so etcd itself is asked."""
    scene = running(metadata={"etcd": {"members": 3}})
    scene.world.edit("Cluster", "k", _newer_etcd)
    answer = EtcdInMemory.status

    async def status(self: EtcdInMemory, address: str) -> object:
        if "k-etcd-1" in address:
            raise EtcdUnreachable("nobody")
        return await answer(self, address)

    with patch.object(EtcdInMemory, "status", status):
        scene.rounds(3)
    assert _restarted(scene) == []
    assert scene.status["message"] == "Rolling etcd 0/3: waiting for k-etcd-1 to answer"


def test_etcd_and_brokers_wait_for_each_other() -> None:
    scene = _about_to_restart(_newer_etcd, metadata={"etcd": {"members": 3}})
    scene.world.objects["Pod", "shop", "k-broker-1"]["status"]["conditions"] = []
    scene.reconcile()
    assert _restarted(scene) == []
    assert "Rolling etcd 0/3: waiting for k-broker-1 to be ready" in scene.status["message"]
    long_ago = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-05-01T11:00:00Z"}
    scene.world.objects["Pod", "shop", "k-broker-1"]["status"]["conditions"] = [long_ago]
    scene.reconcile()
    assert _restarted(scene) == ["k-etcd-0"], "a broker that has been away for long isn't waited for"


def test_etcd_waits_for_a_broker_that_is_stuck_until_its_correction_serves() -> None:
    """Before the fix, a broker that was replaced because of a bad image, and a member of etcd, were away at the same
    time."""
    scene = running(metadata={"etcd": {"members": 3}})
    scene.world.bad_images = {"ottla:bad"}
    scene.world.edit("Cluster", "k", lambda spec: spec.update(image="ottla:bad"))
    scene.rounds(4)
    assert _restarted(scene) == ["k-broker-0"]

    def correct(spec: Object) -> None:
        spec["image"] = "ottla:3"
        spec["metadata"]["etcd"]["image"] = "etcd:3"

    scene.world.edit("Cluster", "k", correct)
    scene.rounds(1)
    for _ in range(30):
        scene.reconcile()
        away = {f"k-broker-{n}" for n in range(3)} | {f"k-etcd-{n}" for n in range(3)}
        away -= {name for name in away if ("Pod", "shop", name) in scene.world.objects}
        bad = (
            {"k-broker-0"}
            if scene.world.objects.get(("Pod", "shop", "k-broker-0"), {})
            .get("status", {})
            .get("containerStatuses", [{}])[0]
            .get("state", {})
            .get("waiting")
            else set()
        )
        assert len(away | bad) <= 1
        scene.world.settle()
    assert scene.condition("Rolling") == ("False", "UpToDate")
    assert scene.status["version"] == "3"


def _lost_volume() -> tuple[Scene, Object]:
    """A broker's pod with a volume. For hours, no node was found for the pod."""
    scene = running(brokers={"replicas": 3, "storage": {"size": "1Gi"}, "lostVolumesAfterMinutes": 10})
    pod = scene.world.objects["Pod", "shop", "k-broker-2"]
    labels = scene.world.objects["StatefulSet", "shop", "k-broker"]["metadata"]["labels"]
    meta = {"namespace": "shop", "name": VOLUME, "labels": labels}
    size = {"resources": {"requests": {"storage": "1Gi"}}}
    scene.world.create({"kind": "PersistentVolumeClaim", "metadata": meta, "spec": size})
    pod["spec"]["volumes"] = [{"name": "data-0", "persistentVolumeClaim": {"claimName": VOLUME}}]
    pod["status"] = {
        "conditions": [
            {
                "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                "lastTransitionTime": "2026-05-01T10:00:00Z",
                "message": "0/2 nodes are available: 2 node(s) had volume node affinity conflict.",
            }
        ]
    }  # fmt: skip
    return scene, pod


def _volume_is_there(scene: Scene) -> bool:
    return ("PersistentVolumeClaim", "shop", VOLUME) in scene.world.objects


def test_a_volume_is_not_deleted_for_a_pod_that_has_found_its_node_since() -> None:
    scene, pod = _lost_volume()
    well = {"conditions": [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}]}
    _before_the_second_look(scene, lambda: pod.update(status=well))
    scene.reconcile()
    assert scene.world.objects["Pod", "shop", "k-broker-2"] is pod
    assert not [reason for reason, _ in scene.world.events if reason == "LostVolumeReplaced"]


def test_a_volume_is_not_deleted_for_a_pod_that_finds_its_node_after_the_second_look() -> None:
    """The pod gets its node just before it is deleted. Its deletion fails because the pod has changed, and no other
    object is deleted.
    """
    scene, pod = _lost_volume()
    delete = scene.world.delete

    async def bound(*args: Any, **given: Any) -> bool:
        pod["metadata"]["resourceVersion"] = "bound"
        pod["spec"]["nodeName"] = "node-1"
        return await delete(*args, **given)

    scene.world.delete = bound  # type: ignore[method-assign]
    scene.reconcile()
    assert _volume_is_there(scene)
    assert scene.world.objects["Pod", "shop", "k-broker-2"] is pod
    assert not [reason for reason, _ in scene.world.events if reason == "LostVolumeReplaced"]


@pytest.mark.parametrize("node", ["", "node-1"])
def test_a_volume_is_deleted_while_its_next_pod_waits_and_not_once_that_runs(node: str) -> None:
    scene, _ = _lost_volume()
    delete = scene.world.delete

    async def made_again(kind: str, *args: Any, **given: Any) -> bool:
        done = await delete(kind, *args, **given)
        if kind == "Pod":
            scene.world.settle()
            scene.world.objects["Pod", "shop", "k-broker-2"]["spec"]["nodeName"] = node
        return done

    scene.world.delete = made_again  # type: ignore[method-assign]
    scene.reconcile()
    assert _volume_is_there(scene) is bool(node)
