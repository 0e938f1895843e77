"""The promises of docs/kubernetes.md on rolls by racks (`spec.rolling.maxUnavailable`), in the hardest cases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import pytest

from ottla.operator.brokers import PageAt
from ottla.operator.found import Found
from ottla.operator.kube import KubeError
from ottla.operator.plan.roll import Report
from ottla.settings.properties import properties_checksum
from tests.unit.operator.test_cluster import Pages, Scene, _racked, _roll, running

BY_POOL = [[0], [1, 2], [100], [101, 102]]
ALL = ["k-a-0", "k-a-1", "k-a-2", "k-b-100", "k-b-101", "k-b-102"]


def _pools(*racks: str | None) -> dict[str, Any]:
    """Two pools, a and b, of three brokers each; each pool is in one of these racks."""
    made: list[dict[str, Any]] = []
    for name, first, rack in zip("ab", (0, 100), racks, strict=True):
        made.append({"name": name, "firstId": first, "replicas": 3} | ({} if rack is None else {"rack": rack}))
    return {"storage": {"size": "1Gi"}, "pools": made}


def _until_away(scene: Scene, pod: str) -> None:
    """Rolls the Cluster up to the moment when this pod was restarted and isn't back yet."""
    scene.world.edit("Cluster", "k", lambda spec: spec.update(image="ottla:2"))
    for _ in range(12):
        scene.reconcile()
        if pod not in scene.pods():
            return
        scene.world.settle()
    raise AssertionError(f"{pod} isn't restarted")


@pytest.mark.parametrize("given", [4, 6, 99, "100%"])
def test_a_limit_beyond_a_rack_takes_no_second_rack(given: int | str) -> None:
    assert _roll(_racked(rolling={"maxUnavailable": given})) == BY_POOL


def test_a_limit_beyond_one_rack_that_all_have_leaves_the_active_controller() -> None:
    scene = _racked(brokers=_pools("z", "z"), rolling={"maxUnavailable": "100%"})
    scene.pages.said[1] = Report(controls=True)
    assert _roll(scene) == [[0], [2], [100], [101, 102], [1]]


def test_one_rack_only_takes_nobody_whom_a_partition_needs() -> None:
    """All brokers are in one rack, and a partition would be endangered if any two of them were away."""
    scene = _racked(brokers=_pools("z", "z"), rolling={"maxUnavailable": "100%"})
    scene.pages.together_unsafe = {0, 1, 2, 100, 101, 102}
    assert _roll(scene) == [[0], [1], [2], [100], [101], [102]]


def test_brokers_without_a_rack_go_one_by_one_beside_a_pool_that_has_one() -> None:
    scene = _racked(brokers=_pools("z", None), rolling={"maxUnavailable": "100%"})
    assert _roll(scene) == [[0], [1, 2], [100], [101], [102]]


def test_brokers_that_do_not_say_their_rack_yet_go_one_by_one() -> None:
    """No node has a rack, so the label is missing on all pods."""
    brokers = {"replicas": 3, "storage": {"size": "1Gi"}, "rackKey": "zone"}
    scene = running(brokers=brokers, rolling={"maxUnavailable": 3})
    scene.world.edit("Cluster", "k", lambda spec: spec.update(image="ottla:2"))
    least = 3
    for _ in range(12):
        for _ in range(4):
            scene.reconcile()
            least = min(least, len(scene.pods()))
        scene.world.settle()
    assert (scene.status["version"], least) == ("2", 2)


def test_a_pause_holds_back_who_would_go_beside_others() -> None:
    scene = _racked()
    _until_away(scene, "k-a-1")
    scene.world.edit("Cluster", "k", lambda spec: spec.update(paused=True))
    for _ in range(5):
        scene.reconcile()
    assert scene.pods() == [pod for pod in ALL if pod != "k-a-1"]
    scene.rounds(3)
    assert scene.pods() == ALL, "Kubernetes brings the missing pod back"
    assert scene.condition("Rolling") == ("False", "SpecPaused")


def test_a_pause_between_the_two_looks_holds_back_who_would_go_beside_others() -> None:
    scene = _racked()
    _until_away(scene, "k-a-1")
    look_again, looks = Found.look_again, 0

    async def and_a_pause(found: Found) -> None:
        nonlocal looks
        looks += 1
        scene.world.edit("Cluster", "k", lambda spec: spec.update(paused=True))
        await look_again(found)

    with patch.object(Found, "look_again", and_a_pause), pytest.raises(KubeError, match="it has changed"):
        scene.reconcile()  # the Cluster has changed, so no status is written: the next reconcile sees the pause
    assert looks == 1
    assert "k-a-2" in scene.pods()


def test_while_a_broker_is_not_back_no_other_rack_begins() -> None:
    scene = _racked()
    _until_away(scene, "k-a-1")
    scene.world.refused_pods = {"k-a-1"}
    scene.rounds(20)
    assert scene.pods() == [pod for pod in ALL if pod != "k-a-1"]
    assert scene.status["message"] == "Rolling 3/6: waiting for k-a-1 to be created"
    restarted = [message.split()[0] for reason, message in scene.world.events if reason == "RollingRestart"]
    assert restarted == ["k-a-0", "k-a-1", "k-a-2"]
    scene.world.refused_pods = set()
    scene.rounds(12)
    assert scene.status["version"] == "2"


def test_a_broker_that_went_by_itself_lets_no_roll_begin() -> None:
    scene = _racked()
    del scene.world.objects["Pod", "shop", "k-b-101"]
    scene.world.refused_pods = {"k-b-101"}
    scene.world.edit("Cluster", "k", lambda spec: spec.update(image="ottla:2"))
    scene.rounds(12)
    assert scene.pods() == [pod for pod in ALL if pod != "k-b-101"]
    assert not [event for event in scene.world.events if event[0] == "RollingRestart"]


class _StartedWith(Pages):
    """Brokers whose reports have the checksum of the file that the broker was started with. This is the file in the
    ConfigMap at the time when the broker's pod was first asked."""

    def __init__(self, scene: Scene) -> None:
        super().__init__()
        self._world = scene.world
        self._read: dict[str, str] = {}

    async def reports(self, pages: Mapping[int, PageAt]) -> dict[int, Report]:
        return {broker: Report(file_checksum=self._of(broker, page.host)) for broker, page in pages.items()}

    def _of(self, broker: int, host: str) -> str:
        uid = self._world.objects["Pod", "shop", host.removeprefix("ip-")]["metadata"]["uid"]
        files = self._world.objects["ConfigMap", "shop", "k-config"]["data"]
        text = files["server.properties"] + files.get(f"broker-{broker}.properties", "")
        return self._read.setdefault(uid, properties_checksum(text))


def _with_files() -> Scene:
    scene = Scene(brokers=_pools("z0", "z100"), rolling={"maxUnavailable": "50%"})
    scene.pages = _StartedWith(scene)
    scene.restart()
    scene.rounds(6)
    assert scene.condition("Ready") == ("True", "BrokersServe")
    return scene


def _given_together(scene: Scene, rounds: int = 12) -> list[list[str]]:
    """For each step of the roll, the pods that were missing at the same time."""
    steps = []
    for _ in range(rounds):
        for _ in range(5):
            scene.reconcile()
        if gone := [pod for pod in ALL if pod not in scene.pods()]:
            steps.append(gone)
        scene.world.settle()
    return steps


def _own(broker: int, size: int) -> dict[str, Any]:
    return {"broker": broker, "config": {"socket.listen.backlog.size": size}}


def test_settings_of_single_brokers_that_no_broker_starts_with_cost_one_pod() -> None:
    """Before the fix, an up-to-date broker 2 without settings of its own counted as the proof that brokers start with
    such settings: two brokers were restarted at the same time, and neither came back."""
    scene = _with_files()
    scene.world.edit("Cluster", "k", lambda spec: spec.update(configOverrides=[_own(0, 7), _own(1, 8)]))
    scene.world.refused_pods = {"k-a-0", "k-a-1"}  # neither pod starts
    assert _given_together(scene, 4) == [["k-a-0"]] * 4
    scene.world.edit("Cluster", "k", lambda spec: spec.pop("configOverrides"))
    scene.world.refused_pods = set()
    scene.rounds(8)
    assert (scene.pods(), scene.condition("Rolling")) == (ALL, ("False", "UpToDate"))


def test_equal_settings_of_single_brokers_are_proved_by_the_first_one() -> None:
    scene = _with_files()
    scene.world.edit("Cluster", "k", lambda spec: spec.update(configOverrides=[_own(each, 7) for each in range(3)]))
    assert _given_together(scene) == [["k-a-0"], ["k-a-1", "k-a-2"]]
    scene.world.edit(
        "Cluster", "k", lambda spec: spec.update(configOverrides=[_own(each, each + 8) for each in range(3)])
    )
    assert _given_together(scene) == [["k-a-0"], ["k-a-1"], ["k-a-2"]]


def test_settings_of_all_brokers_are_proved_by_the_first_one_of_a_pool() -> None:
    scene = _with_files()
    scene.world.edit("Cluster", "k", lambda spec: spec.update(config={"num.partitions": 6}))
    assert [[int(pod.rpartition("-")[2]) for pod in step] for step in _given_together(scene)] == BY_POOL
