"""Two Clusters in a Kubernetes in memory. Any request may fail, before or after it takes effect, and the operator may
die.

Invariants: a serving pod is restarted only while all other pods of its Cluster serve. When the operator's release
changes, pods are restarted in only one Cluster at a time; a Cluster's turn begins and ends while all its pods serve. No
volume is deleted. When all faults have ended, both Clusters come to agree with their specs, and their statuses say so.
"""

from __future__ import annotations

import json
from contextlib import suppress
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from ottla.operator import turns
from ottla.operator.kube import KubeError
from ottla.operator.objects import Ref, holds
from ottla.operator.plan import roll
from ottla.operator.plan.roll import Report
from ottla.operator.plan.turns import Standing
from ottla.operator.queue import Retry
from ottla.operator.spec.cluster import Defaults
from ottla.operator.turns import Turns
from ottla.operator.visit import Visit
from tests.unit.operator.kubernetes_world import Object, World
from tests.unit.operator.test_cluster import Scene

STEPS = 60
HEALED_ROUNDS_MAX = 60
QUIET_ROUNDS = 5  # this many rounds without a write show that all work is done
SEEDS = 12
RISK = Report(risks={"below_min_isr": ("orders-1",)})


class Died(BaseException):
    """Raised at the request at which the operator's process ends."""


class Faulty(World):
    """A world whose requests may fail."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random
        self.well = True
        self.broken: list[str] = []  # a sentence for each broken invariant
        self.release = ""  # the operator's release
        self.unasked: set[str] = set()  # Clusters whose spec hasn't changed since this release of the operator started

    def _strike(self, doing: str, dies: float = 0.004) -> None:
        if self.well:
            return
        drawn = self.random.random()
        if drawn < dies:
            raise Died(doing)
        if drawn < 0.04:
            raise KubeError(self.random.choice((0, 403, 409, 422, 500)), doing, "no")

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        self._strike(f"get {kind}")
        return await super().get(kind, namespace, name)

    async def list(self, kind: str, namespace: str = "", labels: str = "") -> list[Object]:
        self._strike(f"list {kind}")
        return await super().list(kind, namespace, labels)

    async def apply(self, wanted: Object, observed: Object | None = None) -> Object:
        self._strike("apply")
        done = await super().apply(wanted, observed)
        self._strike("apply")
        return done

    async def merge(self, kind: str, namespace: str, name: str, patch: Object, subresource: str = "") -> Object:
        self._strike("merge")
        return await super().merge(kind, namespace, name, patch, subresource)

    async def write_status(self, resource: Object, status: Object) -> None:
        self._strike("status")
        name = resource["metadata"]["name"]
        turns = [(each.get("operator") or {}).get("turn", False) for each in (resource.get("status") or {}, status)]
        if turns[0] != turns[1] and (absent := self._absent(name)):
            self.broken.append(f"{name} {'took' if turns[1] else 'ended'} its turn while {absent} didn't serve")
        await super().write_status(resource, status)
        self._strike("status")

    async def delete(self, kind: str, namespace: str, name: str, **how: Any) -> bool:
        self._strike("delete")
        before = self.objects.get((kind, namespace, name))
        absent = self._absent(name.partition("-")[0]) - {name}
        done = await super().delete(kind, namespace, name, **how)
        if done and kind == "Pod" and before is not None and _serves(before) and absent:
            self.broken.append(f"{name} was restarted while {absent} didn't serve")
        if done and kind == "Pod" and before is not None and _serves(before) and self._out_of_turn(name):
            self.broken.append(f"{name} was restarted for another release, but another Cluster has the turn")
        if done and kind == "PersistentVolumeClaim":
            self.broken.append(f"{name} was deleted")
        self._strike("delete")
        return done

    def _out_of_turn(self, pod: str) -> bool:
        cluster = pod.partition("-")[0]
        noted = self.objects["Cluster", "shop", cluster]["status"].get("operator", {})
        return cluster in self.unasked and noted.get("release") != self.release and not noted.get("turn")

    def _absent(self, cluster: str) -> set[str]:
        """A Cluster's wanted pods that don't serve."""
        wanted = {
            f"{name}-{number}"
            for (kind, _, name), item in self.objects.items()
            if kind == "StatefulSet" and name.startswith(f"{cluster}-")
            for number in range(item["spec"]["replicas"])
        }
        return {name for name in wanted if not _serves(self.objects.get(("Pod", "shop", name)))}


def _serves(pod: Object | None) -> bool:
    return holds((pod or {}).get("status"), "Ready")


class Play:
    """A random history, determined by a seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = Faulty(self.random)
        self.scenes = [
            Scene("a", self.world, metadata={"etcd": {"members": 3}}, controllers={"replicas": 2}),
            Scene("b", self.world, networkPolicy={"enabled": True}),
        ]
        self.release = 1
        for scene in self.scenes:
            scene.rounds(12)
            assert scene.condition("Ready") == ("True", "BrokersServe")

    def go(self) -> None:
        self.world.well = False
        for _ in range(STEPS):
            self._something()
            scene = self.random.choice(self.scenes)
            try:
                with suppress(Retry):
                    scene.reconcile()
            except Died:
                self._restart()
            turns = [scene.cluster.get("status", {}).get("operator", {}).get("turn") for scene in self.scenes]
            assert not all(turns), "both Clusters have the turn"
        self.world.well = True
        for scene in self.scenes:
            scene.pages.said.clear()
            if scene.cluster["spec"].get("paused"):
                self._edit(scene, paused=False)
        quiet = 0
        for _ in range(HEALED_ROUNDS_MAX):
            self.world.writes.clear()
            for scene in self.scenes:
                with suppress(Retry):  # a status that another request has changed meanwhile
                    scene.reconcile()
            self.world.settle()
            quiet = 0 if self.world.writes else quiet + 1
            if quiet == QUIET_ROUNDS:
                break

    def _something(self) -> None:
        scene, drawn = self.random.choice(self.scenes), self.random.random()
        if drawn < 0.55:
            self.world.settle()
        elif drawn < 0.62:
            name = self.random.choice([name for kind, _, name in self.world.objects if kind == "Pod"] or [""])
            if name:
                self.world.objects["Pod", "shop", name].pop("status", None)
        elif drawn < 0.67:
            kinds = ("Cluster", "PersistentVolumeClaim", "ControllerRevision")
            self.world.remove(*self.random.choice([key for key in self.world.objects if key[0] not in kinds]))
        elif drawn < 0.72:
            scene.pages.said = {self.random.randrange(3): RISK} if not scene.pages.said else {}
        elif drawn < 0.77:
            size = str(1000 + self.random.randrange(100))
            self._edit(scene, config={"num.partitions": size})
            self.world.unasked.discard(scene.key.name)
        elif drawn < 0.8:
            self.release += 1
            self._restart()
        elif drawn < 0.82:
            self._edit(scene, paused=self.random.random() < 0.5)

    def _restart(self) -> None:
        defaults = Defaults(f"ottla:{self.release}", f"etcd:{self.release}", str(self.release))
        if self.world.release != defaults.release:
            self.world.release = defaults.release
            self.world.unasked = {scene.key.name for scene in self.scenes if not self._asked_for(scene)}
        self.scenes[0].restart(defaults)
        self.scenes[1].reconciler = self.scenes[0].reconciler

    def _edit(self, scene: Scene, **spec: Any) -> None:
        self.world.edit("Cluster", scene.key.name, lambda present: present.update(spec))

    def _asked_for(self, scene: Scene) -> bool:
        """Whether the Cluster's spec differs in its settings from the last valid spec, which the operator follows."""
        kept = self.world.objects.get(("ConfigMap", "shop", f"{scene.key.name}-followed"))
        spec = scene.cluster["spec"]
        return kept is not None and json.loads(kept["data"]["spec.json"]).get("config") != spec.get("config")

    def ended_well(self) -> None:
        assert not self.world.broken
        for scene in self.scenes:
            assert scene.condition("Ready") == ("True", "BrokersServe"), scene.status
            assert scene.condition("Rolling") == ("False", "UpToDate"), scene.status
            assert not [one["type"] for one in scene.status["conditions"] if one["type"].endswith("Reconciled")]
            assert scene.status["observedGeneration"] == scene.cluster["metadata"]["generation"]
        self.world.writes.clear()
        for scene in self.scenes:
            scene.reconcile()
        assert self.world.writes == []


def _played(seed: int) -> None:
    play = Play(seed)
    play.go()
    play.ended_well()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_cluster_survives_whatever_fails(seed: int) -> None:
    _played(seed)


async def _always(self: Turns, key: Ref) -> None:
    return None


PLANTED = [
    pytest.param(
        0,
        Visit,
        "waits_for_others",
        lambda visit, *_: visit.hold,
        id="pods of one component don't wait for those of others",
    ),
    pytest.param(1, turns, "standing", lambda *_, **__: Standing.FOLLOWS, id="another release needs no turn"),
    pytest.param(3, Turns, "take", _always, id="every Cluster gets the turn, whichever has it already"),
    pytest.param(13, turns, "not_serving", lambda *_: {}, id="a turn ends before the pods serve"),
    pytest.param(1, roll, "_absent", lambda _: "", id="no restart waits for a broker that is away"),
]


@pytest.mark.parametrize(("seed", "owner", "name", "bug"), PLANTED)
def test_a_planted_bug_is_found(seed: int, owner: Any, name: str, bug: Any) -> None:
    with patch.object(owner, name, bug), pytest.raises(AssertionError):
        _played(seed)
