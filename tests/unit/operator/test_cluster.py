"""Reconciles of a Cluster, one after the other, in a Kubernetes in memory: it starts, rolls, scales, and is quiet."""

from __future__ import annotations

import asyncio
import atexit
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest

from ottla.operator import kafka as module
from ottla.operator.brokers import PageAt
from ottla.operator.certificates import AUTHORITY_DAYS, Identity, Issued, decoded, encoded
from ottla.operator.cluster import QUIET_S, SOON_S, ClusterReconciler
from ottla.operator.etcd import EtcdKeeper
from ottla.operator.etcd_client import EtcdUnreachable
from ottla.operator.exposure import Exposure
from ottla.operator.found import OWNED, Found
from ottla.operator.kafka import Unreachable
from ottla.operator.kube import KubeError
from ottla.operator.link import PLAIN
from ottla.operator.objects import Ref, condition
from ottla.operator.plan.etcd_members import Member, StartNow
from ottla.operator.plan.etcd_upkeep import MemberStatus
from ottla.operator.plan.roll import Report
from ottla.operator.plan.topic import Configure, KafkaCluster, KafkaTopic, Move
from ottla.operator.queue import Result
from ottla.operator.spec.cluster import Defaults
from ottla.operator.status import Condition
from tests.unit.operator.kubernetes_world import Object, World, copied
from tests.unit.operator.test_scale import _asked, _cluster, _done

OUTSIDE = [
    {"name": "plain", "port": 9092, "type": "Internal"},
    {"name": "node", "port": 9095, "type": "NodePort"},
]
DEFAULTS = Defaults("ottla:1", "etcd:1")
NODE = {"type": "ExternalIP", "address": "192.0.2.1"}
EVENT_LOOP = asyncio.Runner()  # shared by all reconciles: new event loops would take a sixth of the tests' time
atexit.register(EVENT_LOOP.close)


class Pages:
    """A stand-in for the client of the brokers' pages: brokers report no risks, unless `said` has another report."""

    def __init__(self) -> None:
        self.said: dict[int, Report] = {}
        self.together_unsafe: set[int] = set()  # brokers of which no two may be away at once
        # for each question of the operator: the asked brokers, and the brokers that are away already
        self.asked: list[tuple[list[int], list[int]]] = []
        self.encrypted: dict[int, bool] = {}  # how the brokers' pages were read last
        self.decides = 0  # the ordinal of the active controller's pod, if controllers have pods of their own

    async def reports(self, pages: Mapping[int, PageAt]) -> dict[int, Report]:
        self.encrypted = {number: page.identity is not None for number, page in pages.items()}
        return {broker: self.said.get(broker, Report()) for broker in pages}

    async def together(self, pages: Mapping[int, PageAt], away: Collection[int]) -> dict[int, Report]:
        self.asked.append((sorted(pages), sorted(away)))
        unsafe = Report(risks={"below_min_isr": ("orders-0",)})
        return {broker: unsafe if len(self.together_unsafe & {broker, *away}) > 1 else Report() for broker in pages}

    async def deciding(self, pages: Mapping[int, PageAt]) -> dict[int, Report]:
        return {number: Report(controls=number == self.decides) for number in pages}


class Probe:
    """A stand-in of the operator's questions to brokers about certificates: brokers accept and show new ones, unless a
    flag says that they haven't read them yet."""

    def __init__(self) -> None:
        self.accepts = self.shows = True
        self.refusing: set[str] = set()  # the hosts of brokers that accept nothing
        self.asked: list[tuple[str, int, int]] = []  # the question, how many brokers, and the port

    async def accepted(self, hosts: Sequence[str], port: int, pair: Issued) -> bool:
        self.asked.append(("accepted", len(hosts), port))
        return (self.accepts or not hosts) and self.refusing.isdisjoint(hosts)

    async def shown(self, hosts: Sequence[str], port: int, pair: Issued, authority: bytes) -> bool:
        self.asked.append(("shown", len(hosts), port))
        return self.shows or not hosts


class EtcdInMemory:
    """A stand-in of etcd's list of members: every etcd pod is a member."""

    def __init__(self, world: World, cluster: str = "k") -> None:
        self._world = world
        self._cluster = cluster

    async def members(self, addresses: Sequence[str]) -> list[Member]:
        ours = f"{self._cluster}-etcd-"
        pods = [name for kind, _, name in self._world.objects if kind == "Pod" and name.startswith(ours)]
        if not pods:
            raise EtcdUnreachable("nobody")
        arguments = str(self._world.objects["StatefulSet", "shop", f"{self._cluster}-etcd"]["spec"]["template"])
        scheme = "https" if "--listen-peer-urls=https:" in arguments else "http"
        return [Member(name, name, f"{scheme}://{name}.{self._cluster}-etcd.shop.svc:2380") for name in pods]

    async def close(self) -> None:
        pass

    async def alarms(self, addresses: Sequence[str]) -> list[Object]:
        return list(self._world.alarms)

    async def compact(self, addresses: Sequence[str], revision: int) -> None:
        pass

    async def disarm(self, addresses: Sequence[str], alarm: Object) -> None:
        self._world.alarms.remove(alarm)

    async def status(self, address: str) -> MemberStatus:
        used = self._world.used_bytes
        return MemberStatus(leads=True, size_bytes=used, used_bytes=used, version="3.6.0", revision=7)


class Kafka:
    """A stand-in of the brokers' admin protocol."""

    def __init__(self, cluster: KafkaCluster) -> None:
        self.cluster = cluster
        self.bootstrap = "k-bootstrap.shop.svc:9092"
        self.dynamic: dict[str, str] = {}
        self.by_hand = False  # whether a person throttles replicas
        self.configured: list[Configure] = []
        self.own: dict[int, dict[str, str]] = defaultdict(dict)

    def close(self) -> None:
        pass

    async def cluster_id(self) -> str:
        return "4L6g3nShT-eMCtK--X86sw"

    async def settings(self, kind: int, name: str) -> dict[str, str]:
        return dict(self.own[int(name)] if name else self.dynamic)

    async def configure_brokers(self, given: Mapping[str, str], reset: Sequence[str] = (), *, broker: str = "") -> None:
        settings = self.own[int(broker)] if broker else self.dynamic
        settings |= given
        for name in reset:
            settings.pop(name, None)

    async def own_settings(self, brokers: Iterable[int]) -> dict[int, dict[str, str]] | None:
        return {broker: dict(self.own[broker]) for broker in brokers}

    async def look(self, *, internal: bool = False) -> KafkaCluster:
        return replace(self.cluster, settings=dict(self.dynamic))

    async def throttled_by_hand(self) -> bool:
        return self.by_hand

    async def configure(self, steps: Sequence[Configure]) -> dict[str, None]:
        self.configured += steps
        return {}

    async def move(self, moves: Sequence[Move]) -> dict[str, None]:
        self.cluster = _asked(self.cluster, tuple(moves))
        return {}


class Scene:
    """A Cluster and the surroundings of its reconciler: Kubernetes, the brokers' pages, Kafka's protocol, and the
    clock.
    """

    def __init__(self, name: str = "k", world: World | None = None, **spec: Any) -> None:
        self.key = Ref("shop", name)
        self.world, self.pages = World() if world is None else world, Pages()
        self.kafka = Kafka(_cluster(3, {"orders": [(0, 1, 2), (1, 2, 0)]}))
        spec.setdefault("brokers", {"replicas": 3, "storage": {"size": "1Gi"}})
        spec.setdefault("metadata", {"etcd": {"members": 1}})
        self.world.create(
            {
                "apiVersion": "ottla.dev/v1alpha1",
                "kind": "Cluster",
                "metadata": {"namespace": "shop", "name": name},
                "spec": spec,
            }
        )
        self.now = datetime(2026, 5, 1, 12, tzinfo=UTC)
        self.world.clock = lambda: self.now
        self.probe = Probe()
        self.woken: list[Ref] = []  # Clusters that the reconciler wants to reconcile again soon
        self.topics_held: Condition | None = None  # the condition that the reconciler of Topics reports
        self.restart()

    def restart(self, defaults: Defaults = DEFAULTS) -> None:
        """Replaces the operator's process by a new one, which has no memory of the old one. With other `defaults`, the
        new process is another release of the operator."""
        keeper = EtcdKeeper(
            self.world,  # type: ignore[arg-type]
            lambda identity: EtcdInMemory(self.world, self.key.name),  # type: ignore[arg-type, return-value]
            utc=lambda: self.now,
        )
        self.reconciler = ClusterReconciler(
            self.world,  # type: ignore[arg-type]
            self.pages,  # type: ignore[arg-type]
            keeper,
            defaults,
            topics_held=lambda _: self.topics_held,
            again=self.woken.append,
            utc=lambda: self.now,
            probe=self.probe,  # type: ignore[arg-type]
        )

    def reconcile(self) -> Result:
        with patch.object(module, "KafkaAdmin", lambda *_: self.kafka):
            return EVENT_LOOP.run(self.reconciler.reconcile(self.key))

    def rounds(self, count: int) -> None:
        for _ in range(count):
            self.reconcile()
            self.world.settle()

    @property
    def cluster(self) -> Object:
        return self.world.objects["Cluster", *self.key]

    @property
    def status(self) -> Object:
        status: Object = self.cluster["status"]
        return status

    def condition(self, kind: str) -> tuple[str, str]:
        return next((c["status"], c["reason"]) for c in self.status["conditions"] if c["type"] == kind)

    def condition_message(self, kind: str) -> str:
        return next(str(c["message"]) for c in self.status["conditions"] if c["type"] == kind)

    def pods(self) -> list[str]:
        ours = f"{self.key.name}-"
        return sorted(
            name
            for kind, _, name in self.world.objects
            if kind == "Pod" and name.startswith(ours) and "etcd" not in name
        )

    def budget(self) -> int:
        found: int = self.world.objects["PodDisruptionBudget", "shop", f"{self.key.name}-brokers"]["spec"][
            "maxUnavailable"
        ]
        return found


def running(name: str = "k", world: World | None = None, **spec: Any) -> Scene:
    scene = Scene(name, world, **spec)
    scene.rounds(6)
    assert scene.condition("Ready") == ("True", "BrokersServe"), scene.status
    return scene


def test_brokers_start_once_etcd_is_there() -> None:
    scene = Scene()
    scene.reconcile()
    assert scene.pods() == []
    assert scene.condition("MetadataReady") == ("False", "EtcdAway")
    assert scene.status["message"] == "waiting for etcd: 0 of 1 members answer"
    scene.world.settle()
    scene.rounds(5)
    assert scene.pods() == ["k-broker-0", "k-broker-1", "k-broker-2"]
    assert scene.status["message"] == "3 of 3 brokers serve"
    assert scene.status["brokers"]["summary"] == "3/3"
    assert scene.condition("Ready") == ("True", "BrokersServe")
    assert scene.budget() == 1
    assert scene.status["observedGeneration"] == 1


def test_the_clusters_id_is_told_once_brokers_serve_and_stays() -> None:
    scene = Scene()
    scene.reconcile()
    assert "clusterId" not in scene.status
    scene.rounds(6)
    assert scene.status["clusterId"] == "4L6g3nShT-eMCtK--X86sw"
    scene.world.edit("Cluster", "k", lambda spec: spec.update(paused=True))  # a paused Cluster's brokers aren't asked
    scene.rounds(1)
    assert scene.status["clusterId"] == "4L6g3nShT-eMCtK--X86sw"


def test_when_all_is_well_nothing_is_written() -> None:
    scene = running(config={"log.retention.ms": 1000})
    scene.rounds(2)
    scene.world.writes.clear()
    scene.rounds(5)
    assert scene.world.writes == []


def test_partitions_that_nobody_leads_are_told_by_the_newest_metadata() -> None:
    scene = running()
    assert scene.status["offlinePartitions"] == 0
    assert scene.condition("PartitionsLed") == ("True", "AllLed")
    scene.pages.said = {
        0: Report(revision=8, under_replicated=2),
        1: Report(revision=9, under_replicated=1, without_leader=("orders-4", "orders-7")),
    }
    scene.rounds(1)
    assert (scene.status["underReplicatedPartitions"], scene.status["offlinePartitions"]) == (3, 2)
    assert scene.condition("PartitionsLed") == ("False", "NoLeader")
    assert scene.condition("Ready") == ("True", "BrokersServe")
    assert scene.status["message"] == "partition orders-4 and 1 more without a leader"


def test_who_leads_is_not_known_while_the_metadata_store_answers_no_broker() -> None:
    """Before the fix, while all of etcd hung, a broker was killed, and a third of the partitions had no leader but were
    reported as led."""
    scene = running()
    away = Report(revision=9, metadata_connected=False)
    scene.pages.said = dict.fromkeys(range(3), away)
    scene.rounds(1)
    assert scene.condition("PartitionsLed") == ("Unknown", "MetadataAway")
    assert "offlinePartitions" not in scene.status
    scene.pages.said = {0: away, 1: Report(revision=8, without_leader=("orders-4",))}
    scene.rounds(1)
    assert scene.condition("PartitionsLed") == ("False", "NoLeader"), "a connected broker knows better"


def test_a_setting_that_is_dynamic_restarts_nobody() -> None:
    scene = running()
    scene.world.edit("Cluster", "k", lambda spec: spec.update(config={"log.retention.ms": 1000}))
    scene.kafka.dynamic["log.segment.bytes"] = "1048576"  # a setting from another client
    scene.kafka.dynamic["ottla.brokers.drained"] = "7"
    scene.rounds(3)
    assert scene.kafka.dynamic == {"log.retention.ms": "1000", "ottla.brokers.drained": "7"}
    assert not [event for event in scene.world.events if event[0] == "RollingRestart"]


def test_a_roll_restarts_one_at_a_time_and_says_so() -> None:
    scene = running()
    scene.world.edit("Cluster", "k", lambda spec: spec.update(config={"num.partitions": 6}))
    away = 0
    for _ in range(12):
        scene.reconcile()
        away = max(away, 3 - len(scene.pods()))
        scene.world.settle()
    assert away == 1
    assert [event for event in scene.world.events if event[0] == "RollingRestart"] == [
        ("RollingRestart", f"k-broker-{broker} is restarted: its settings change") for broker in range(3)
    ]
    assert scene.condition("Rolling") == ("False", "UpToDate")


def _racked(**spec: Any) -> Scene:
    """Two racks of three brokers; up to three brokers may be away at the same time."""
    pools = [
        {"name": name, "firstId": first, "replicas": 3, "rack": f"z{first}"} for name, first in (("a", 0), ("b", 100))
    ]
    brokers = {"storage": {"size": "1Gi"}, "pools": pools}
    return running(**{"brokers": brokers, "rolling": {"maxUnavailable": "50%"}, **spec})


def _roll(scene: Scene) -> list[list[int]]:
    """Rolls the Cluster. Returns for each step the brokers that were away at the same time. Their pods come back only
    when the operator restarts no more brokers beside them.
    """
    scene.world.edit("Cluster", "k", lambda spec: spec.update(image="ottla:2"))
    steps: list[list[int]] = []
    for _ in range(12):
        for _ in range(5):
            scene.reconcile()
            assert len(scene.pods()) == 6 or scene.budget() == 0, "no eviction is allowed meanwhile"
        there = {int(name.rpartition("-")[2]) for name in scene.pods()}
        if gone := sorted({0, 1, 2, 100, 101, 102} - there):
            steps.append(gone)
        scene.world.settle()
    assert scene.status["version"] == "2"
    assert scene.condition("Rolling") == ("False", "UpToDate")
    assert scene.budget() == 1, "otherwise one eviction at a time is allowed"
    return steps


def test_brokers_of_a_rack_are_restarted_at_once_after_the_first_one_has_come_up() -> None:
    scene = _racked()
    assert _roll(scene) == [[0], [1, 2], [100], [101, 102]]
    assert ([2], [1]) in scene.pages.asked
    restarts = [message for reason, message in scene.world.events if reason == "RollingRestart"]
    assert "k-a-2 is restarted: its image becomes ottla:2; k-a-1 is away" in restarts


def test_no_two_brokers_go_at_once_that_together_break_something() -> None:
    scene = _racked()
    scene.pages.together_unsafe = {1, 2, 101}
    assert _roll(scene) == [[0], [1], [2], [100], [101, 102]]


def test_without_a_word_brokers_are_restarted_one_at_a_time_whatever_racks_there_are() -> None:
    scene = _racked(rolling={})
    assert _roll(scene) == [[0], [1], [2], [100], [101], [102]]
    assert scene.pages.asked == []


def test_who_goes_beside_others_is_looked_at_twice() -> None:
    """Between the two checks before a restart, a broker of the other rack goes down by itself. So the second check
    prevents the restart."""
    scene = _racked()
    scene.world.edit("Cluster", "k", lambda spec: spec.update(image="ottla:2"))
    for _ in range(6):
        scene.reconcile()
        if "k-a-1" not in scene.pods():
            break
        scene.world.settle()
    assert scene.pods() == ["k-a-0", "k-a-2", "k-b-100", "k-b-101", "k-b-102"]
    look_again = Found.look_again

    async def and_one_goes(found: Found) -> None:
        scene.world.objects.pop(("Pod", "shop", "k-b-101"), None)
        await look_again(found)

    with patch.object(Found, "look_again", and_one_goes):
        scene.reconcile()
    assert "k-a-2" in scene.pods()
    assert scene.status["message"].startswith("Rolling ")


def test_a_second_change_during_a_roll_is_part_of_it() -> None:
    scene = running()
    scene.world.edit("Cluster", "k", lambda spec: spec.update(config={"num.partitions": 6}))
    scene.rounds(2)
    assert len([event for event in scene.world.events if event[0] == "RollingRestart"]) == 1
    scene.world.edit("Cluster", "k", lambda spec: spec.update(config={"num.partitions": 7}))
    scene.rounds(14)
    restarted = [message.split()[0] for reason, message in scene.world.events if reason == "RollingRestart"]
    assert Counter(restarted) == {"k-broker-0": 2, "k-broker-1": 1, "k-broker-2": 1}
    assert scene.condition("Rolling") == ("False", "UpToDate")


def test_a_roll_waits_as_long_as_the_brokers_say_no() -> None:
    scene = running()
    blocked = Report(risks={"offline": ("orders-4",)})
    scene.pages.said = dict.fromkeys(range(3), blocked)
    scene.world.edit("Cluster", "k", lambda spec: spec.update(image="ottla:2"))
    scene.rounds(5)
    assert scene.status["message"] == (
        "Rolling 0/3: waiting for k-broker-0: partition orders-4 has no other in-sync replica"
    )
    assert scene.condition("Rolling") == ("True", "Waiting")
    assert scene.budget() == 0
    scene.pages.said = {}
    scene.rounds(12)
    assert scene.status["version"] == "2"
    assert scene.budget() == 1


def test_a_single_broker_may_be_evicted_and_is_rolled_because_waiting_makes_nothing_safer() -> None:
    scene = running(brokers={"replicas": 1, "storage": {"size": "1Gi"}})
    scene.pages.said = {0: Report(risks={"only_copy": ("orders-0",)}, controls=True)}
    scene.rounds(1)
    assert scene.budget() == 1
    scene.world.edit("Cluster", "k", lambda spec: spec.update(image="ottla:2"))
    scene.rounds(4)
    assert scene.status["version"] == "2"


def test_a_restart_on_request() -> None:
    scene = running()

    def asked() -> list[str]:
        found = [message for reason, message in scene.world.events if reason == "RollingRestart"]
        scene.world.events.clear()
        return found

    of_all = "is restarted: the Cluster's annotation ottla.dev/restart asks for a restart"
    scene.world.objects["Pod", "shop", "k-broker-1"]["metadata"]["annotations"]["ottla.dev/restart"] = "now"
    scene.rounds(8)
    assert asked() == ["k-broker-1 is restarted: the annotation ottla.dev/restart asks for a restart"]
    for value in ("now", "again"):
        scene.cluster["metadata"]["annotations"] = {"ottla.dev/restart": value}
        scene.rounds(16)
        assert asked() == [f"k-broker-{broker} {of_all}" for broker in range(3)], "each broker once"
    scene.cluster["metadata"]["annotations"] = {}
    scene.rounds(8)
    assert asked() == [], "the annotation is gone"
    del scene.world.objects["StatefulSet", "shop", "k-broker"]  # the StatefulSet is created anew and adopts its pods
    for broker in range(3):
        del scene.world.objects["Pod", "shop", f"k-broker-{broker}"]["metadata"]["ownerReferences"]
    scene.rounds(8)
    assert asked() == []


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("bad_images", "ImagePullBackOff: no such image"),
        ("crashing_images", "CrashLoopBackOff: there is no such module"),
        ("homeless_images", "no node can run it: 0/3 nodes are available"),
    ],
)
def test_a_bad_image_takes_one_broker_and_is_put_right(kind: str, why: str) -> None:
    scene = running()
    setattr(scene.world, kind, {"ottla:bad"})
    before = {name: scene.world.objects["Pod", "shop", name]["metadata"]["uid"] for name in scene.pods()}
    scene.world.edit("Cluster", "k", lambda spec: spec.update(image="ottla:bad"))
    scene.rounds(8)
    assert scene.status["message"] == f"Rolling 1/3: waiting for k-broker-0, which is stuck: {why}"
    assert scene.status["brokers"]["ready"] == 2
    scene.world.edit("Cluster", "k", lambda spec: spec.update(image="ottla:3"))
    scene.rounds(14)
    assert scene.status["version"] == "3"
    assert scene.condition("Ready") == ("True", "BrokersServe")
    after = {name: scene.world.objects["Pod", "shop", name]["metadata"]["uid"] for name in scene.pods()}
    assert before.keys() == after.keys()
    assert not set(before.values()) & set(after.values())


def test_a_cluster_made_again_in_the_middle_of_a_drain_has_its_brokers_serve() -> None:
    """The status of the Cluster's predecessor said that a broker was being drained. That status was deleted with the
    predecessor.
    """
    scene = running(brokers={"replicas": 4, "storage": {"size": "1Gi"}})
    scene.kafka.cluster = _cluster(4, {"orders": [(0, 1, 3), (3, 2, 0)]})
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=3))
    scene.rounds(2)
    assert scene.status["draining"] == [3]
    scene.cluster["spec"]["brokers"]["replicas"] = 4
    scene.cluster["status"] = {}
    answers, scene.kafka.cluster_id = scene.kafka.cluster_id, _unanswered  # type: ignore[method-assign]
    scene.rounds(2)
    assert "settled" not in scene.status, "the drained brokers aren't known yet"
    scene.kafka.cluster_id = answers  # type: ignore[method-assign]
    scene.rounds(2)
    assert "ottla.brokers.drained" not in scene.kafka.dynamic
    assert not any(one.moving for one in scene.kafka.cluster.topics["orders"].partitions.values())
    assert scene.status["settled"] == [0, 1, 2, 3]
    scene.kafka.dynamic["ottla.brokers.drained"] = "1"
    scene.rounds(3)
    assert scene.kafka.dynamic["ottla.brokers.drained"] == "1", "once the Cluster is settled, a person's drain stays"


def test_a_cluster_made_again_with_fewer_brokers_copies_the_replicas_of_a_broker_that_did_not_come_back() -> None:
    """Broker 4 of the deleted Cluster has no pod in the new one, whose spec asks for brokers 0 to 2 only. Before the
    fix, broker 4's replicas weren't copied to other brokers: its partitions lacked a replica for ever, and a roll
    waited for this replica for ever.
    """
    scene = running()
    cluster = replace(_cluster(3, {"orders": [(0, 1), (1, 4)], "old": [(4,)]}), racks=dict.fromkeys(range(3)))
    partitions = cluster.topics["orders"].partitions
    behind = {**partitions, 1: replace(partitions[1], in_sync=frozenset({1}))}
    topics = {**cluster.topics, "orders": replace(cluster.topics["orders"], partitions=behind)}
    scene.kafka.cluster = replace(cluster, topics=topics)
    scene.pages.said[1] = Report(under_replicated=1, without_leader=("old-0",), revision=9)
    scene.rounds(1)
    reason = "copying the replicas of broker 4, which isn't there and isn't wanted"
    assert scene.status["message"] == f"{reason}: 1 partition to go"
    assert scene.condition("Reassigning") == ("True", "ReplicasMove")
    target = scene.kafka.cluster.topics["orders"].partitions[1].target
    assert target in ((1, 0), (1, 2))
    assert ("MovingReplicas", reason) in scene.world.events
    done = _done(scene.kafka.cluster).topics["orders"]
    scene.kafka.cluster = replace(scene.kafka.cluster, topics={**scene.kafka.cluster.topics, "orders": done})
    scene.rounds(2)
    assert scene.status["message"].startswith("partition old-0 is only on broker 4, which isn't there and isn't wanted")
    assert scene.kafka.cluster.topics["old"].partitions[0].replicas == (4,), "its only replica is missing"
    assert scene.condition("Reassigning") == ("False", "Waiting")
    assert scene.condition("PartitionsLed") == ("False", "NoLeader")


async def _unanswered() -> str:
    raise Unreachable("no broker answers")


@pytest.mark.parametrize("by_hand", [False, True])
def test_scaling_leaves_a_throttle_that_somebody_has_set_by_hand(by_hand: bool) -> None:
    scene = running()
    named = {"leader.replication.throttled.replicas": "0:0"}
    cluster = _cluster(4, {"orders": [(0, 1, 2)]})
    topic = replace(cluster.topics["orders"], overrides=named)
    scene.kafka.cluster, scene.kafka.by_hand = replace(cluster, topics={"orders": topic}), by_hand
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=4))
    scene.rounds(6)
    assert scene.status["settled"] == [0, 1, 2, 3]
    assert ("orders" in {step.topic for step in scene.kafka.configured if step.reset}) is not by_hand
    scene.kafka.by_hand = False
    scene.rounds(3)
    assert "orders" in {step.topic for step in scene.kafka.configured if step.reset}, "removed with the person's"
    scene.kafka.cluster = cluster
    scene.rounds(3)
    assert "reassignment" not in scene.status


def test_a_throttle_that_stays_is_no_move_and_is_looked_at_seldom() -> None:
    """Before the fix, the status and an Event said that replicas move, and the brokers were asked every three seconds
    until a person had removed the throttle that they had set by hand.
    """
    scene = running()
    cluster = _cluster(4, {"orders": [(0, 1, 2)]})
    topic = replace(cluster.topics["orders"], overrides={"leader.replication.throttled.replicas": "0:0"})
    scene.kafka.cluster, scene.kafka.by_hand = replace(cluster, topics={"orders": topic}), True
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=4))
    scene.rounds(6)
    assert scene.condition("Reassigning") == ("False", "Waiting")
    says = (
        "the throttle of replicas that have moved stays while somebody throttles others by hand, or a broker is silent"
    )
    assert scene.condition_message("Reassigning") == scene.status["message"] == says
    assert scene.status["reassignment"] == {
        "reason": "the throttle of replicas that have moved is still to be taken away",
        "remaining": 0,
    }
    assert not [event for event in scene.world.events if event[0] == "MovingReplicas"]
    assert scene.reconcile().requeue_after == QUIET_S


def test_what_waits_for_a_person_is_looked_at_seldom() -> None:
    scene = running(brokers={"replicas": 4, "storage": {"size": "1Gi"}})
    scene.kafka.cluster = _cluster(4, {"orders": [(0, 1, 2, 3)]})
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=3))
    scene.rounds(3)
    assert scene.status["message"].startswith("scaling down waits: topic orders has 4 replicas")
    assert scene.reconcile().requeue_after == QUIET_S
    scene.kafka.cluster = _cluster(4, {"orders": [(0, 1, 3)]})
    scene.rounds(1)
    assert scene.reconcile().requeue_after == SOON_S, "a drain goes on by itself"


def test_what_only_a_missing_broker_has_is_looked_at_seldom() -> None:
    scene = running()
    scene.kafka.cluster = replace(_cluster(3, {"orders": [(0, 1)], "old": [(4,)]}), racks=dict.fromkeys(range(3)))
    scene.pages.said[1] = Report(without_leader=("old-0",), revision=9)
    scene.rounds(2)
    assert scene.status["message"].startswith("partition old-0 is only on broker 4")
    assert scene.reconcile().requeue_after == QUIET_S


WIDE = "topic wide has 4 replicas, and 3 brokers would stay: lower its replication factor, or keep more brokers"


def test_scaling_down_goes_on_beside_a_missing_broker_and_says_what_stays() -> None:
    """Before the fix, scaling down was refused, because a topic had more replicas than there would be brokers. But one
    of its replicas was on a broker that was missing for long, and none was on the broker that leaves.
    """
    scene = running(brokers={"replicas": 4, "storage": {"size": "1Gi"}})
    topics = {"orders": [(0, 1, 3)], "wide": [(0, 1, 2, 9)]}
    cluster = scene.kafka.cluster = replace(_cluster(4, topics), racks=dict.fromkeys(range(4)))
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=3))
    scene.rounds(2)
    stays = f"the replicas of broker 9, which isn't there and isn't wanted, aren't copied: {WIDE}"
    assert scene.status["message"] == f"draining broker 3: 1 partition to go; {stays}"
    assert scene.condition("Reassigning") == ("True", "ReplicasMove")
    moved = _done(scene.kafka.cluster).topics["orders"]
    scene.kafka.cluster = replace(cluster, topics={**cluster.topics, "orders": moved})
    scene.pages.said[0] = Report(under_replicated=1)
    scene.rounds(6)
    assert scene.pods() == ["k-broker-0", "k-broker-1", "k-broker-2"]
    assert scene.status["message"] == stays


def test_a_drain_that_is_refused_keeps_no_missing_broker_from_being_replaced() -> None:
    scene = running(brokers={"replicas": 4, "storage": {"size": "1Gi"}})
    cluster = _cluster(4, {"wide": [(0, 1, 2, 3)], "old": [(0, 9)]})
    partition = replace(cluster.topics["old"].partitions[0], in_sync=frozenset({0}))
    topics = {**cluster.topics, "old": replace(cluster.topics["old"], partitions={0: partition})}
    scene.kafka.cluster = replace(cluster, topics=topics)
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=3))
    scene.rounds(2)
    assert scene.kafka.cluster.topics["old"].partitions[0].target in ((0, 1), (0, 2))
    assert scene.status["message"] == (
        "copying the replicas of broker 9, which isn't there and isn't wanted: 1 partition to go; "
        f"scaling down waits: {WIDE}"
    )
    scene.kafka.cluster = replace(
        scene.kafka.cluster, topics={**topics, "old": _done(scene.kafka.cluster).topics["old"]}
    )
    scene.rounds(2)
    assert scene.status["message"] == f"scaling down waits: {WIDE}"
    assert len(scene.pods()) == 4


def test_scaling_down_drains_first_and_up_shares_again() -> None:
    scene = running(brokers={"replicas": 4, "storage": {"size": "1Gi"}})
    scene.kafka.cluster = _cluster(4, {"orders": [(0, 1, 3), (3, 2, 0)]})
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=3))
    scene.rounds(2)
    assert scene.status["message"] == "draining broker 3: 2 partitions to go"
    assert scene.status["draining"] == [3]
    assert scene.kafka.dynamic["ottla.brokers.drained"] == "3"
    assert "k-broker-3" in scene.pods()
    scene.kafka.cluster = _done(scene.kafka.cluster)
    for _ in range(3):
        scene.reconcile()  # Kubernetes hasn't deleted the pod yet
    assert scene.world.objects["StatefulSet", "shop", "k-broker"]["spec"]["replicas"] == 3
    assert [reason for reason, _ in scene.world.events].count("ScalingDown") == 1
    scene.rounds(3)
    assert "k-broker-3" not in scene.pods()
    assert "ottla.brokers.drained" not in scene.kafka.dynamic
    assert scene.status["settled"] == [0, 1, 2]
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=4))
    scene.rounds(3)
    assert scene.status["message"] == "spreading replicas onto broker 3: 1 partition to go"
    scene.kafka.cluster = _done(scene.kafka.cluster)
    scene.rounds(2)
    assert scene.status["settled"] == [0, 1, 2, 3]
    assert "reassignment" not in scene.status


@pytest.mark.parametrize(("before", "after", "restarted"), [(1, 2, 1), (2, 3, 2), (3, 5, 0)])
def test_scaling_up_restarts_brokers_only_where_replication_factors_follow(
    before: int, after: int, restarted: int
) -> None:
    scene = running(brokers={"replicas": before, "storage": {"size": "1Gi"}})
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=after))
    scene.rounds(16)
    assert len(scene.pods()) == after
    told = [message for reason, message in scene.world.events if reason == "RollingRestart"]
    assert told == [f"k-broker-{broker} is restarted: its settings change" for broker in range(restarted)]


def test_a_broker_whose_pod_goes_during_a_visit_leaves_no_claims_to_note() -> None:
    """The StatefulSet has shrunk already, and the pod disappears between two lists of the pods in one reconcile. Before
    the fix, scaling failed for this broker, because no pod had its name then.
    """
    scene = running(brokers={"replicas": 4, "storage": {"size": "1Gi"}})
    scene.kafka.cluster = _cluster(4, {"orders": [(0, 1, 2)]})
    pod = scene.world.objects["Pod", "shop", "k-broker-3"]
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=3))
    for _ in range(4):
        scene.reconcile()
    scene.world.edit("Cluster", "k", lambda spec: spec.update(image="ottla:2"))
    scene.reconcile()
    scene.world.settle()
    scene.world.objects["Pod", "shop", "k-broker-3"] = pod  # the pod isn't deleted yet
    look_again = Found.look_again
    looks = []

    async def and_its_pod_is_gone(found: Found) -> None:
        scene.world.objects.pop(("Pod", "shop", "k-broker-3"), None)
        looks.append(scene.pods())
        await look_again(found)

    with patch.object(Found, "look_again", and_its_pod_is_gone):
        scene.reconcile()
    assert looks == [["k-broker-0", "k-broker-1", "k-broker-2"]]
    assert not [c for c in scene.status["conditions"] if c["type"] == "ScalingReconciled"]
    assert scene.status["message"] == "Rolling 0/3: restarting k-broker-0"
    scene.rounds(12)
    assert (scene.status["version"], len(scene.pods())) == ("2", 3)
    assert "ottla.brokers.drained" not in scene.kafka.dynamic


def test_a_broker_that_goes_keeps_its_way_in_until_its_pod_is_gone_and_its_port_for_its_return() -> None:
    """The broker leads partitions until it is drained. Before the fix, its Service was deleted at the first reconcile,
    and clients outside Kubernetes were cut off from it.
    """
    scene = Scene(listeners=OUTSIDE)
    scene.rounds(6)
    for broker in range(3):
        node = scene.world.objects["Service", "shop", f"k-broker-{broker}-node"]
        node["spec"]["ports"] = [{**node["spec"]["ports"][0], "nodePort": 31000 + broker}]
        scene.world.objects["Pod", "shop", f"k-broker-{broker}"]["spec"]["nodeName"] = "n"
    scene.world.create({"kind": "Node", "metadata": {"name": "n"}, "status": {"addresses": [NODE]}})
    scene.rounds(3)
    assert scene.status["listeners"][0]["bootstrap"] == "192.0.2.1:31000,192.0.2.1:31001,192.0.2.1:31002"
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=2))
    scene.rounds(4)
    assert "k-broker-2" in scene.pods(), scene.status["message"]
    assert ("Service", "shop", "k-broker-2-node") in scene.world.objects
    assert scene.kafka.own[2]["ottla.listener.addresses"] == "NODE://192.0.2.1:31002"
    assert scene.status["listeners"][0]["bootstrap"] == "192.0.2.1:31000,192.0.2.1:31001", "without broker 2"
    scene.kafka.cluster = _cluster(3, {"orders": [(0, 1), (1, 0)]})
    scene.rounds(6)
    assert "k-broker-2" not in scene.pods()
    assert ("Service", "shop", "k-broker-2-node") not in scene.world.objects
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=3))
    scene.rounds(1)
    assert scene.world.objects["Service", "shop", "k-broker-2-node"]["spec"]["ports"][0]["nodePort"] == 31002


def test_a_service_goes_only_after_a_list_of_pods_that_is_younger_than_its_brokers_removal() -> None:
    """Kubernetes may have made the broker's pod since the pods were listed. Before the fix, the reconcile that removed
    the broker deleted the Service, too.
    """
    scene = Scene(listeners=OUTSIDE)
    scene.rounds(6)
    scene.kafka.cluster = _cluster(3, {"orders": [(0, 1), (1, 0)]})
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=2))
    seen = []
    for _ in range(12):
        scene.world.objects.pop(("Pod", "shop", "k-broker-2"), None)
        scene.reconcile()
        brokers = scene.world.objects["StatefulSet", "shop", "k-broker"]["spec"]["replicas"]
        seen.append((brokers, ("Service", "shop", "k-broker-2-node") in scene.world.objects))
    removed = [brokers for brokers, _ in seen].index(2)
    assert seen[removed - 1 : removed + 1] == [(3, True), (2, True)]
    assert seen[removed + 1] == (2, False)


def _fixed(name: str, first: int = 31000) -> list[Object]:
    return [OUTSIDE[0], {"name": name, "port": 9095, "type": "NodePort", "nodePorts": {"first": first}}]


def _port(scene: Scene, service: str) -> int:
    return int(scene.world.objects["Service", "shop", service]["spec"]["ports"][0]["nodePort"])


def _has_failed(scene: Scene) -> bool:
    return bool(scene.world.warnings) or scene.condition("Ready")[1] in ("NotApplied", "InvalidObject")


def test_a_port_that_goes_from_one_of_the_clusters_services_to_another_is_waited_for() -> None:
    """Before the fix, the new Services were refused until the old ones were deleted, and the Cluster wasn't Ready."""
    scene = running(listeners=_fixed("node"))
    scene.world.edit("Cluster", "k", lambda spec: spec.update(listeners=_fixed("outside")))
    scene.reconcile()
    assert scene.status["message"].startswith("the Service k-broker-0-outside waits for the node port 31000")
    assert scene.condition("Progressing") == ("True", "Changing")
    for _ in range(6):
        assert not _has_failed(scene)
        scene.rounds(1)
    assert [_port(scene, f"k-broker-{broker}-outside") for broker in range(3)] == [31000, 31001, 31002]


def test_a_port_that_is_freed_only_after_its_service_is_gone_is_waited_for_and_not_for_ever() -> None:
    scene = running(listeners=_fixed("node"))
    scene.world.edit("Cluster", "k", lambda spec: spec.update(listeners=_fixed("outside")))
    scene.world.taken_ports = {31000}
    scene.rounds(3)
    assert ("Service", "shop", "k-broker-0-node") not in scene.world.objects
    assert not _has_failed(scene)
    scene.now += timedelta(seconds=11)
    scene.rounds(1)
    assert _has_failed(scene), "somebody else has the port by now"
    scene.world.taken_ports = set()
    scene.rounds(1)
    assert scene.condition("Ready") == ("True", "BrokersServe")
    assert _port(scene, "k-broker-0-outside") == 31000


def test_ports_that_move_by_one_are_waited_for() -> None:
    scene = running(listeners=_fixed("node"))
    scene.world.edit("Cluster", "k", lambda spec: spec.update(listeners=_fixed("node", 31001)))
    for _ in range(6):
        scene.rounds(1)
        assert not _has_failed(scene)
    assert [_port(scene, f"k-broker-{broker}-node") for broker in range(3)] == [31001, 31002, 31003]


def test_a_port_that_two_of_the_clusters_services_are_to_have_is_refused() -> None:
    scene = running(listeners=_fixed("node"))
    more = {"name": "more", "port": 9096, "type": "NodePort", "nodePorts": {"first": 31002}}
    scene.world.edit("Cluster", "k", lambda spec: spec.update(listeners=[*_fixed("node"), more]))
    scene.rounds(2)
    assert _has_failed(scene)


def test_the_broker_of_another_pool_that_gets_an_id_has_its_port_and_was_never_drained() -> None:
    """Before the fix, the new broker's Service was refused until the old one was deleted, and an Event said that the
    broker, which had just been removed, wasn't removed after all.
    """
    first = {"name": "broker", "firstId": 0, "replicas": 3}
    old, new = ({"name": name, "firstId": 100, "replicas": 1} for name in ("big", "huge"))
    scene = running(brokers={"storage": {"size": "1Gi"}, "pools": [first, old]}, listeners=_fixed("node"))
    scene.kafka.cluster = _cluster(3, {"orders": [(0, 1)]})
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(pools=[first, new]))
    for _ in range(16):
        scene.rounds(1)
        assert not _has_failed(scene)
    assert scene.pods() == ["k-broker-0", "k-broker-1", "k-broker-2", "k-huge-100"]
    assert _port(scene, "k-huge-100-node") == 31100
    assert "DrainEnded" not in [reason for reason, _ in scene.world.events]


def test_a_port_that_somebody_else_has_by_now_is_given_up() -> None:
    scene = Scene(listeners=OUTSIDE)
    scene.cluster["status"] = {"nodePorts": [{"listener": "node", "broker": 1, "port": 31001}]}
    scene.world.taken_ports.add(31001)
    scene.rounds(2)
    ports = scene.world.objects["Service", "shop", "k-broker-1-node"]["spec"]["ports"]
    assert [port.get("nodePort") for port in ports] == [None]
    assert ("Service", "shop", "k-broker-2-node") in scene.world.objects


def test_a_stray_pod_with_the_brokers_labels_is_nobodys() -> None:
    scene = running()
    labels = scene.world.objects["Pod", "shop", "k-broker-0"]["metadata"]["labels"]
    status = scene.status
    for name in ("ghost-7", "zz-0", "no-number", "k-broker-ghost-0", "k-broker-3"):
        meta = {"namespace": "shop", "name": name, "labels": dict(labels)}
        scene.world.create({"kind": "Pod", "metadata": meta, "spec": {"containers": [{"image": "busybox"}]}})
    strays = {"ghost": ([{"uid": "else"}], 7), "ghost-too": ([], 7), "zz": ([], 0)}
    for name, (owners, first) in strays.items():
        meta = {"namespace": "shop", "name": name, "labels": dict(labels), "ownerReferences": owners}
        spec = {"replicas": 2, "ordinals": {"start": first}, "selector": {"matchLabels": dict(labels)}}
        scene.world.create({"kind": "StatefulSet", "metadata": meta, "spec": spec})
    scene.world.writes.clear()
    for _ in range(3):
        scene.reconcile()
    assert set(scene.world.writes) == {"status k"}
    assert scene.condition("Ready") == ("True", "BrokersServe")
    assert scene.status["brokers"] == status["brokers"]
    assert scene.condition("PodsOwned") == ("False", "StrayPods")
    told = condition(scene.status, "PodsOwned")["message"]
    assert "pods ghost-7, k-broker-3, k-broker-ghost-0 and 2 more: labelled as the Cluster's own pods" in told
    assert len([event for event in scene.world.events if event[0] == "StrayPods"]) == 1
    for name in ("ghost-7", "zz-0", "no-number", "k-broker-ghost-0", "k-broker-3"):
        del scene.world.objects["Pod", "shop", name]
    scene.reconcile()
    assert not condition(scene.status, "PodsOwned")


def test_a_topic_that_is_made_on_a_broker_just_before_it_is_drained_is_not_left_there() -> None:
    scene = running(brokers={"replicas": 4, "storage": {"size": "1Gi"}})
    scene.kafka.cluster = _cluster(4, {"orders": [(0, 1, 2)]})
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=3))
    scene.reconcile()
    assert scene.status["draining"] == [3]
    assert "ottla.brokers.drained" not in scene.kafka.dynamic, "the drain is noted before the brokers are told"
    scene.reconcile()  # the broker has no replicas, and gets no more from now on
    assert scene.kafka.dynamic["ottla.brokers.drained"] == "3"
    scene.kafka.cluster = _cluster(4, {"orders": [(0, 1, 2)], "late": [(3,)]})
    scene.rounds(2)
    assert "k-broker-3" in scene.pods()
    assert scene.status["message"] == "draining broker 3: 1 partition to go"
    scene.kafka.cluster = _done(scene.kafka.cluster)
    scene.rounds(3)
    assert "k-broker-3" not in scene.pods()


def test_a_drain_is_given_up_when_the_spec_changes_back() -> None:
    scene = running(brokers={"replicas": 4, "storage": {"size": "1Gi"}})
    before = scene.kafka.cluster = _cluster(4, {"orders": [(0, 1, 3)]})
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=3))
    scene.rounds(2)
    assert _moving(scene.kafka.cluster.topics["orders"])
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=4))
    scene.rounds(2)
    assert scene.kafka.cluster.topics == before.topics
    assert "ottla.brokers.drained" not in scene.kafka.dynamic
    assert scene.pods()[-1] == "k-broker-3"
    assert ("DrainEnded", "broker 3 isn't removed after all") in scene.world.events


def _moving(topic: KafkaTopic) -> bool:
    return any(partition.moving for partition in topic.partitions.values())


def test_scaling_down_too_far_is_refused_and_said() -> None:
    scene = running(brokers={"replicas": 4, "storage": {"size": "1Gi"}})
    scene.kafka.cluster = _cluster(4, {"orders": [(0, 1, 2, 3)]})
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=3))
    scene.rounds(3)
    assert scene.status["message"].startswith("scaling down waits: topic orders has 4 replicas")
    assert scene.condition("Reassigning") == ("False", "Waiting")
    assert "ottla.brokers.drained" not in scene.kafka.dynamic  # broker 3 still leads partitions
    scene.world.edit("Cluster", "k", lambda spec: spec.update(image="ottla:2"))
    scene.rounds(14)
    assert scene.status["version"] == "2"  # broker 3 has the version, too
    assert len(scene.pods()) == 4
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=2))
    scene.rounds(3)
    assert [reason for reason, _ in scene.world.events].count("RollingRestart") == 4
    assert len(scene.pods()) == 4


def test_a_broker_that_can_not_be_removed_yet_is_waited_for_while_its_pod_is_missing() -> None:
    scene = running(brokers={"replicas": 4, "storage": {"size": "1Gi"}})
    scene.kafka.cluster = _cluster(4, {"orders": [(0, 1, 2, 3)]})
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=3))
    scene.rounds(3)
    scene.world.refused_pods.add("k-broker-3")
    del scene.world.objects["Pod", "shop", "k-broker-3"]
    scene.world.edit("Cluster", "k", lambda spec: spec.update(image="ottla:2"))
    scene.rounds(3)
    assert "RollingRestart" not in [reason for reason, _ in scene.world.events]
    assert "waiting for k-broker-3 to be created" in scene.status["message"]
    assert scene.budget() == 0
    scene.world.refused_pods.clear()
    scene.rounds(14)
    assert scene.status["version"] == "2"
    assert len(scene.pods()) == 4


def test_what_was_drained_stays_so_when_a_further_step_is_refused_and_comes_back_with_the_spec() -> None:
    scene = running(brokers={"replicas": 4, "storage": {"size": "1Gi"}})
    before = scene.kafka.cluster = _cluster(4, {"orders": [(0, 1, 3)]})
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=3))
    scene.rounds(2)
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=2))
    scene.rounds(2)
    assert scene.status["message"].startswith("scaling down waits")
    assert scene.kafka.dynamic["ottla.brokers.drained"] == "3"
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=4))
    scene.rounds(2)
    assert scene.kafka.cluster.topics == before.topics
    assert "ottla.brokers.drained" not in scene.kafka.dynamic


def test_a_broker_of_a_pool_that_goes_is_not_evicted_while_it_is_needed() -> None:
    pools = [{"name": "broker", "firstId": 0, "replicas": 3}, {"name": "big", "firstId": 100, "replicas": 1}]
    scene = running(brokers={"storage": {"size": "1Gi"}, "pools": pools})
    scene.kafka.cluster = _cluster(3, {"orders": [(0, 100)]})
    scene.pages.said[100] = Report(risks={"offline": ("orders-0",)})
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(pools=pools[:1]))
    scene.rounds(2)
    assert scene.status["message"] == "draining broker 100: 1 partition to go"
    assert scene.budget() == 0
    scene.pages.said.clear()
    scene.rounds(1)
    assert scene.budget() == 1


def test_a_pool_that_is_not_wanted_any_more_goes() -> None:
    pools = [{"name": "broker", "firstId": 0, "replicas": 3}, {"name": "big", "firstId": 100, "replicas": 1}]
    scene = running(brokers={"storage": {"size": "1Gi"}, "pools": pools})
    assert "k-big-100" in scene.pods()
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(pools=pools[:1]))
    scene.rounds(4)
    assert scene.pods() == ["k-broker-0", "k-broker-1", "k-broker-2"]
    assert scene.world.foreground == ["k-big"], "while the pool's pods run, they belong to the Cluster and stay drained"


def test_a_pool_without_brokers_that_is_not_wanted_any_more_goes() -> None:
    """Before the fix its StatefulSet stayed for ever, because StatefulSets were deleted only after a drain."""
    pools = [{"name": "broker", "firstId": 0, "replicas": 3}, {"name": "big", "firstId": 100, "replicas": 0}]
    scene = running(brokers={"storage": {"size": "1Gi"}, "pools": pools})
    assert ("StatefulSet", "shop", "k-big") in scene.world.objects
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(pools=pools[:1]))
    scene.rounds(2)
    assert ("StatefulSet", "shop", "k-big") not in scene.world.objects
    assert ("StatefulSet", "shop", "k-broker") in scene.world.objects


def test_a_pool_that_has_another_ones_ids_waits_until_its_brokers_are_drained_and_gone() -> None:
    """Without that wait, the volume of the removed pool's broker would be deleted before a drain, with the partitions
    that only this broker has."""
    first = {"name": "broker", "firstId": 0, "replicas": 3}
    old, new = ({"name": name, "firstId": 100, "replicas": 1} for name in ("big", "huge"))
    scene = running(brokers={"storage": {"size": "1Gi"}, "pools": [first, old]})
    scene.kafka.cluster = _cluster(3, {"orders": [(0, 100), (100,)]})
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(pools=[first, new]))
    scene.rounds(2)
    waits = "the pool huge waits until broker 100 of k-big is gone"
    assert scene.status["message"] == f"draining broker 100: 2 partitions to go; {waits}"
    assert scene.condition_message("Reassigning").endswith(waits)
    assert scene.condition("Progressing") == ("True", "Changing")
    assert scene.condition("Ready") == ("False", "BrokersNotReady")
    assert scene.status["brokers"]["summary"] == "3/4"
    assert [(each["name"], each["desired"], each["ready"]) for each in scene.status["pools"]] == [
        ("broker", 3, 3),
        ("huge", 1, 0),
    ]
    for _ in range(3):
        assert [pod for pod in scene.pods() if pod.endswith("-100")] == ["k-big-100"]
        scene.rounds(1)
    scene.kafka.cluster = _done(scene.kafka.cluster)
    scene.rounds(4)
    assert scene.world.foreground == ["k-big"]
    scene.rounds(4)
    assert scene.pods() == ["k-broker-0", "k-broker-1", "k-broker-2", "k-huge-100"]
    assert scene.status["brokers"]["summary"] == "4/4"


@pytest.mark.parametrize("ends", ["it comes back", "nothing is left on it", "its claims are deleted"])
def test_a_pool_does_not_take_the_id_of_a_broker_that_is_gone_with_replicas_on_its_volumes(ends: str) -> None:
    """The Cluster was made again with another pool. Before the fix the new pool's broker started as broker 100 with an
    empty volume, and would have led the partition whose records are on the old volume."""
    first = {"name": "broker", "firstId": 0, "replicas": 3}
    old, new = ({"name": name, "firstId": 100, "replicas": 1} for name in ("big", "huge"))
    scene = running(brokers={"storage": {"size": "1Gi"}, "pools": [first, old]})
    for key in [key for key in scene.world.objects if key[0] not in ("Cluster", "PersistentVolumeClaim")]:
        del scene.world.objects[key]
    scene.cluster["status"] = {}
    scene.kafka.cluster = replace(_cluster(3, {"orders": [(0, 1)], "old": [(100,)]}), racks=dict.fromkeys(range(3)))
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(pools=[first, new]))
    scene.rounds(8)
    assert scene.pods() == ["k-broker-0", "k-broker-1", "k-broker-2"]
    assert (
        "the pool huge waits, because broker 100 of k-big is gone without having been drained, and its volumes may "
        "have replicas (data-0-k-big-100): bring broker 100 back in a pool big, and remove it again, or delete these "
        "claims"
    ) in scene.status["message"]
    assert scene.condition("Ready") == ("False", "BrokersNotReady")
    assert scene.status["brokers"]["summary"] == "3/4"
    if ends == "it comes back":
        scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(pools=[first, old]))
    elif ends == "nothing is left on it":
        scene.kafka.cluster = _cluster(3, {"orders": [(0, 1)]})
    else:
        del scene.world.objects["PersistentVolumeClaim", "shop", "data-0-k-big-100"]
    scene.rounds(6)
    assert [pod for pod in scene.pods() if pod.endswith("-100")] == [
        "k-big-100" if ends == "it comes back" else "k-huge-100"
    ]
    assert scene.status["brokers"]["summary"] == "4/4"


def test_a_pool_that_comes_back_with_another_first_id_waits_until_its_brokers_are_drained_and_gone() -> None:
    """Before the fix its StatefulSet was numbered anew, and Kubernetes deleted the broker before it was drained."""
    first = {"name": "broker", "firstId": 0, "replicas": 3}
    old = {"name": "huge", "firstId": 100, "replicas": 1}
    scene = running(brokers={"storage": {"size": "1Gi"}, "pools": [first, old]})
    scene.kafka.cluster = _cluster(3, {"orders": [(0, 100), (100,)]})
    new = {**old, "firstId": 101, "replicas": 2}
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(pools=[first, new]))
    scene.rounds(4)
    assert scene.pods() == ["k-broker-0", "k-broker-1", "k-broker-2", "k-huge-100"]
    waits = "the pool huge waits until broker 100 of k-huge is gone"
    assert scene.status["message"] == f"draining broker 100: 2 partitions to go; {waits}"
    assert scene.status["brokers"]["summary"] == "3/5"
    scene.kafka.cluster = _done(scene.kafka.cluster)
    scene.rounds(8)
    assert scene.pods() == ["k-broker-0", "k-broker-1", "k-broker-2", "k-huge-101", "k-huge-102"]


def test_a_broker_of_a_removed_pool_that_does_not_start_gets_the_present_image_and_is_drained() -> None:
    """Before the fix, the broker kept an image that couldn't be pulled, whatever the spec said. So the partitions with
    their only replica on this broker had no leader, and the pool was never removed.
    """
    first = {"name": "broker", "firstId": 0, "replicas": 3}
    scene = running(brokers={"storage": {"size": "1Gi"}, "pools": [first, {**first, "name": "big", "firstId": 100}]})
    image = scene.world.objects["Pod", "shop", "k-broker-0"]["spec"]["containers"][0]["image"]
    scene.kafka.cluster = _cluster(3, {"orders": [(100,)]})
    scene.world.bad_images.add("ottla:bad")
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(pools=[first]))
    scene.world.edit("StatefulSet", "k-big", lambda spec: _only_container(spec["template"]).update(image="ottla:bad"))
    del scene.world.objects["Pod", "shop", "k-big-100"]
    scene.world.settle()
    assert _only_container(scene.world.objects["Pod", "shop", "k-big-100"])["image"] == "ottla:bad"
    scene.rounds(4)
    assert _only_container(scene.world.objects["Pod", "shop", "k-big-100"])["image"] == image
    stuck = "k-big-100 is stuck (ImagePullBackOff: no such image) and outdated (its image becomes ottla:1)"
    assert [event for event in scene.world.events if event[0] == "ReplacedStuckPod"] == [("ReplacedStuckPod", stuck)]
    scene.kafka.cluster = _done(scene.kafka.cluster)
    scene.rounds(4)
    assert scene.pods() == ["k-broker-0", "k-broker-1", "k-broker-2"]


def test_a_removed_pool_whose_brokers_start_keeps_its_image() -> None:
    """The pool's brokers are drained as they are, without a restart."""
    first = {"name": "broker", "firstId": 0, "replicas": 3}
    scene = running(brokers={"storage": {"size": "1Gi"}, "pools": [first, {**first, "name": "big", "firstId": 100}]})
    scene.kafka.cluster = _cluster(3, {"orders": [(100,)]})
    before = scene.world.objects["StatefulSet", "shop", "k-big"]["metadata"]["generation"]
    scene.world.edit(
        "Cluster", "k", lambda spec: spec.update(image="ottla:2", brokers=spec["brokers"] | {"pools": [first]})
    )
    scene.rounds(8)
    assert scene.world.objects["StatefulSet", "shop", "k-big"]["metadata"]["generation"] == before
    assert _only_container(scene.world.objects["Pod", "shop", "k-big-100"])["image"] == "ottla:1"
    assert _only_container(scene.world.objects["Pod", "shop", "k-broker-0"])["image"] == "ottla:2"


def test_a_pool_that_is_removed_while_its_set_is_made_again_is_drained_and_goes() -> None:
    """Before the fix, the pool's pods counted as foreign pods: they were neither drained nor removed, and a broker of
    another pool got the id of one that was still running.
    """
    first = {"name": "broker", "firstId": 0, "replicas": 3}
    old, new = ({"name": name, "firstId": 100, "replicas": 1} for name in ("big", "huge"))
    scene = running(brokers={"storage": {"size": "1Gi"}, "pools": [first, old]})
    scene.kafka.cluster = _cluster(3, {"orders": [(100,)]})
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(pools=[first, new]))
    asyncio.run(scene.world.delete("StatefulSet", "shop", "k-big", propagation="Orphan"))
    scene.rounds(4)
    assert scene.pods() == ["k-big-100", "k-broker-0", "k-broker-1", "k-broker-2"]
    assert not scene.condition_message("Ready").startswith("somebody else")
    assert scene.status["message"].startswith("draining broker 100: 1 partition to go")
    scene.kafka.cluster = _done(scene.kafka.cluster)
    scene.rounds(8)
    assert scene.pods() == ["k-broker-0", "k-broker-1", "k-broker-2", "k-huge-100"]
    assert ("ScalingDown", "k-big-100 is deleted: its pool isn't wanted any more") in scene.world.events


def test_any_broker_goes_where_each_has_a_pool_of_its_own_and_its_id_is_free_for_another() -> None:
    pools = [{"name": f"b{number}", "firstId": number, "replicas": 1} for number in range(4)]
    scene = running(brokers={"storage": {"size": "1Gi"}, "pools": pools})
    scene.kafka.cluster = _cluster(4, {"orders": [(0, 1, 2), (1, 2, 3)]})
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(pools=[*pools[:1], *pools[2:]]))
    scene.rounds(2)
    assert scene.status["message"] == "draining broker 1: 2 partitions to go"
    scene.kafka.cluster = _done(scene.kafka.cluster)
    scene.rounds(6)
    assert scene.pods() == ["k-b0-0", "k-b2-2", "k-b3-3"]
    another = {"name": "other", "firstId": 1, "replicas": 1}
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(pools=[*pools[:1], another, *pools[2:]]))
    scene.rounds(4)
    assert scene.pods() == ["k-b0-0", "k-b2-2", "k-b3-3", "k-other-1"]


def _only_container(pod: Object) -> Object:
    """The container of a pod or of a template of pods."""
    (found,) = pod["spec"]["containers"]
    assert isinstance(found, dict)
    return found


EVERYTHING: Object = {
    "metadata": {"etcd": {"members": 3, "snapshots": {"schedule": "0 * * * *"}, "tls": True}},
    "controllers": {"replicas": 2},
    "listeners": OUTSIDE,
    "networkPolicy": {"enabled": True},
}
VOLATILE = ("Cluster", "PersistentVolumeClaim", "ControllerRevision")


def test_what_is_deleted_comes_back() -> None:
    scene = running(**EVERYTHING)
    before = {key for key in scene.world.objects if key[0] not in VOLATILE}
    assert {kind for kind, _, _ in before} >= {*OWNED, "Pod", "Secret"} - {"EndpointSlice"}
    for key in before:
        del scene.world.objects[key]
    scene.rounds(8)
    assert scene.condition("Ready") == ("True", "BrokersServe")
    assert {key for key in scene.world.objects if key[0] not in VOLATILE} == before
    assert scene.world.objects["ConfigMap", "shop", "k-etcd"]["data"]["state"] == "existing"


def test_what_somebody_changes_is_changed_back_and_nobody_restarts() -> None:
    scene = running(**EVERYTHING)
    scene.rounds(4)
    whole = {key: copied(item) for key, item in scene.world.objects.items() if key[0] in OWNED}
    pods = {key: item["metadata"]["uid"] for key, item in scene.world.objects.items() if key[0] == "Pod"}
    changed = {
        "ConfigMap": lambda item: item["data"].update(dict.fromkeys(item["data"], "somebody's")),
        "Service": lambda item: item["spec"]["ports"][0].update(port=1),
        "StatefulSet": lambda item: item["spec"]["template"]["spec"]["containers"][0].update(image="other:1"),
        "PodDisruptionBudget": lambda item: item["spec"].update(maxUnavailable=3),
        "CronJob": lambda item: item["spec"].update(schedule="0 0 1 1 *"),
        "NetworkPolicy": lambda item: item["spec"].update(ingress=[{}]),
    }
    assert {kind for kind, _, _ in whole} == changed.keys()
    for key in whole:
        item = copied(scene.world.objects[key])
        changed[key[0]](item)
        assert item != whole[key], key
        scene.world.create(item)
    scene.rounds(6)
    for key, item in whole.items():
        now = scene.world.objects[key]
        assert {part: now.get(part) for part in ("spec", "data")} == {part: item.get(part) for part in ("spec", "data")}
    assert {key: scene.world.objects[key]["metadata"]["uid"] for key in pods} == pods


def test_a_paused_cluster_is_left_alone() -> None:
    scene = running()
    scene.world.edit("Cluster", "k", lambda spec: spec.update(paused=True, image="ottla:2"))
    scene.rounds(2)
    assert scene.condition("Paused") == ("True", "SpecPaused")
    assert scene.status["listeners"] == [{"name": "plain", "bootstrap": "k-bootstrap.shop.svc:9092"}]
    assert scene.status["brokers"]["summary"] == "3/3"
    scene.world.writes.clear()
    scene.rounds(3)
    assert scene.world.writes == []
    scene.world.edit("Cluster", "k", lambda spec: spec.update(paused=False))
    scene.rounds(12)
    assert scene.status["version"] == "2"
    assert not [c for c in scene.status["conditions"] if c["type"] == "Paused"]


def test_a_spec_that_can_not_be_followed_is_told_and_changes_nothing() -> None:
    scene = running()
    scene.world.edit("Cluster", "k", lambda spec: spec.update(config={"num.partitons": 3}))
    scene.rounds(1)
    assert scene.condition("Ready") == ("False", "InvalidSpec")
    assert scene.condition("Progressing") == ("False", "InvalidSpec")
    assert "num.partitions is meant" in scene.status["message"]
    assert scene.status["brokers"]["summary"] == "3/3"


def test_a_mistake_in_a_spec_keeps_nothing_from_being_mended() -> None:
    scene = running()
    settings = scene.world.objects["ConfigMap", "shop", "k-config"]["data"]
    scene.world.edit("Cluster", "k", lambda spec: spec.update(config={"num.partitions": 6, "num.partitons": 3}))
    scene.rounds(1)
    del scene.world.objects["Service", "shop", "k-bootstrap"]
    scene.pages.said[0] = Report(risks={"offline": ("orders-1",)})
    scene.rounds(2)
    assert ("Service", "shop", "k-bootstrap") in scene.world.objects
    assert scene.budget() == 0
    assert scene.world.objects["ConfigMap", "shop", "k-config"]["data"] == settings
    assert scene.condition("Ready") == ("False", "InvalidSpec")
    assert scene.status["observedGeneration"] == scene.cluster["metadata"]["generation"]
    scene.world.edit("Cluster", "k", lambda spec: spec.update(config={}))
    scene.pages.said.clear()
    scene.rounds(2)
    assert scene.condition("Ready") == ("True", "BrokersServe")


def test_a_mistake_in_a_spec_and_a_restart_of_the_operator_keep_nothing_from_being_mended() -> None:
    """Before the fix, the last valid spec was only in memory, so a restarted operator couldn't follow any spec."""
    scene = running()
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=0, storage=None))
    scene.restart()
    del scene.world.objects["Service", "shop", "k-bootstrap"]
    del scene.world.objects["Pod", "shop", "k-broker-1"]
    scene.rounds(3)
    assert scene.condition("Ready") == ("False", "InvalidSpec")
    assert ("Service", "shop", "k-bootstrap") in scene.world.objects
    assert len(scene.pods()) == 3
    assert scene.status["brokers"]["ready"] == 3, "the rest of the status is still up to date"
    scene.restart()
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=3, storage={"size": "1Gi"}))
    scene.rounds(3)
    assert scene.condition("Ready") == ("True", "BrokersServe")


@pytest.mark.parametrize("refused", [{"cordoned.log.dirs": "/data/0/log"}, {"log.of.yesterday": 1}])
def test_a_spec_of_an_earlier_release_is_followed_without_the_settings_that_this_one_refuses(refused: Object) -> None:
    """After the upgrade such a spec is invalid. Before the fix, the last valid spec was refused as well, so nothing was
    repaired."""
    scene = running(config={"num.partitions": 6}, configOverrides=[{"broker": 1, "config": {"log.roll.ms": 999999}}])
    scene.world.edit("Cluster", "k", lambda spec: spec["config"].update(refused))
    scene.world.edit("Cluster", "k", lambda spec: spec["configOverrides"].append({"broker": 2, "config": refused}))
    kept = scene.world.objects["ConfigMap", "shop", "k-followed"]["data"]
    kept["spec.json"] = json.dumps(scene.cluster["spec"])
    scene.restart()
    del scene.world.objects["Service", "shop", "k-bootstrap"]
    del scene.world.objects["Pod", "shop", "k-broker-1"]
    scene.rounds(3)
    assert scene.condition("Ready") == ("False", "InvalidSpec")
    assert next(iter(refused)) in scene.condition_message("Ready")
    assert ("Service", "shop", "k-bootstrap") in scene.world.objects
    assert len(scene.pods()) == 3
    files = scene.world.objects["ConfigMap", "shop", "k-config"]["data"]
    assert "num.partitions=6" in files["server.properties"]
    assert not any(name in file for name in refused for file in files.values())
    assert scene.kafka.own[1]["log.roll.ms"] == "999999"
    assert [reason for reason, _ in scene.world.events if reason == "RollingRestart"] == []


def test_a_value_that_this_release_refuses_is_left_out_of_nothing() -> None:
    """A setting whose value is refused isn't dropped from the spec that the operator follows. If the retention time
    were dropped, for example, the brokers would delete all records that are older than the default.
    """
    scene = running(config={"log.retention.ms": 31536000000})
    assert scene.kafka.dynamic["log.retention.ms"] == "31536000000"
    scene.world.edit("Cluster", "k", lambda spec: spec["config"].update({"log.roll.ms": "tomorrow"}))
    kept = scene.world.objects["ConfigMap", "shop", "k-followed"]["data"]
    kept["spec.json"] = json.dumps(scene.cluster["spec"])
    before = dict(kept)
    scene.restart()
    scene.rounds(3)
    assert scene.condition("Ready") == ("False", "InvalidSpec")
    assert scene.kafka.dynamic["log.retention.ms"] == "31536000000"
    assert scene.world.objects["ConfigMap", "shop", "k-followed"]["data"] == before


def test_what_another_cluster_of_that_name_followed_is_not_followed() -> None:
    scene = running()
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(storage=None))
    scene.cluster["metadata"]["uid"] = "another"
    scene.restart()
    scene.world.writes.clear()
    scene.reconcile()
    assert scene.world.writes == ["status k"]
    assert scene.condition("Ready") == ("False", "InvalidSpec")


def test_a_name_that_somebody_else_has_is_told() -> None:
    scene = Scene()
    scene.world.create({"kind": "Service", "metadata": {"namespace": "shop", "name": "k-brokers"}, "spec": {}})
    assert "doesn't belong to this Cluster" in scene.reconcile().failure
    assert scene.condition("Ready") == ("False", "NotApplied")
    assert "the Service k-brokers exists already" in scene.status["message"]


def test_a_cluster_that_goes_is_forgotten_at_once() -> None:
    scene = running()
    scene.cluster["metadata"]["deletionTimestamp"] = "2026-05-01T00:00:00Z"
    scene.world.writes.clear()
    assert scene.reconcile() == Result(gone=True)
    assert scene.world.writes == []


def test_a_cluster_that_is_another_operators_now_is_let_go() -> None:
    scene = running()
    scene.reconciler._ours = lambda key: False
    del scene.world.objects["Service", "shop", "k-bootstrap"]
    scene.world.writes.clear()
    assert scene.reconcile() == Result(gone=True)
    assert scene.world.writes == []


def _with_claims(scene: Scene, size: str) -> list[Object]:
    """Creates the PersistentVolumeClaims of the brokers' pods, all of one size."""
    labels = scene.world.objects["StatefulSet", "shop", "k-broker"]["metadata"]["labels"]
    for name in scene.pods():
        meta = {"namespace": "shop", "name": f"data-0-{name}", "labels": labels}
        spec = {"resources": {"requests": {"storage": size}}}
        scene.world.create({"kind": "PersistentVolumeClaim", "metadata": meta, "spec": spec})
    return [scene.world.objects["PersistentVolumeClaim", "shop", f"data-0-{name}"] for name in scene.pods()]


def _claimed(claims: list[Object]) -> set[str]:
    return {claim["spec"]["resources"]["requests"]["storage"] for claim in claims}


def test_volumes_grow_and_nobody_restarts() -> None:
    scene = running()
    claims = _with_claims(scene, "1Gi")
    uids = {scene.world.objects["Pod", "shop", name]["metadata"]["uid"] for name in scene.pods()}
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(storage={"size": "3Gi"}))
    scene.rounds(4)
    assert _claimed(claims) == {"3Gi"}
    (template,) = scene.world.objects["StatefulSet", "shop", "k-broker"]["spec"]["volumeClaimTemplates"]
    assert template["spec"]["resources"]["requests"]["storage"] == "3Gi"
    assert uids == {scene.world.objects["Pod", "shop", name]["metadata"]["uid"] for name in scene.pods()}
    assert scene.status["message"] == "3 of 3 brokers serve"


def test_volumes_that_somebody_else_grew_are_left_as_they_are_and_nobody_restarts() -> None:
    scene = running()
    claims = _with_claims(scene, "5Gi")
    scene.reconcile()
    scene.world.writes.clear()
    scene.rounds(3)
    assert scene.world.writes == []
    assert _claimed(claims) == {"5Gi"}


def test_brokers_get_addresses_outside_as_soon_as_there_are_any() -> None:
    listeners = [
        {"name": "plain", "port": 9092, "type": "Internal"},
        {"name": "lb", "port": 9094, "type": "LoadBalancer"},
        {"name": "node", "port": 9095, "type": "NodePort", "hostTemplate": "b{id}.example"},
    ]
    scene = Scene(listeners=listeners)
    scene.rounds(6)
    assert scene.condition("ListenersReady") == ("False", "NoAddress")
    assert scene.condition("Ready") == ("True", "BrokersServe")
    assert scene.status["message"] == "listener lb: broker 0 has no address yet"
    for broker in range(3):
        service = scene.world.objects["Service", "shop", f"k-broker-{broker}-lb"]
        service["status"] = {"loadBalancer": {"ingress": [{"ip": f"192.0.2.{broker}"}]}}
        node = scene.world.objects["Service", "shop", f"k-broker-{broker}-node"]
        node["spec"]["ports"] = [{**node["spec"]["ports"][0], "nodePort": 31000 + broker}]
    bootstrap = scene.world.objects["Service", "shop", "k-bootstrap-lb"]
    bootstrap["status"] = {"loadBalancer": {"ingress": [{"hostname": "lb.example"}]}}
    scene.rounds(3)
    assert scene.kafka.own[2] == {"ottla.listener.addresses": "LB://192.0.2.2:9094,NODE://b2.example:31002"}
    assert scene.status["listeners"] == [
        {"name": "lb", "bootstrap": "lb.example:9094"},
        {"name": "node", "bootstrap": "b0.example:31000,b1.example:31001,b2.example:31002"},
        {"name": "plain", "bootstrap": "k-bootstrap.shop.svc:9092"},
    ]
    assert scene.condition("ListenersReady") == ("True", "Advertised")
    scene.world.writes.clear()
    scene.now += timedelta(seconds=1)
    scene.rounds(2)
    assert scene.world.writes == [], "a condition's time moves only when it flips"
    client = scene.world.objects["ConfigMap", "shop", "k-client"]["data"]
    assert client["lb.bootstrap.servers"] == "lb.example:9094"
    scene.world.edit("Cluster", "k", lambda spec: spec.update(listeners=listeners[:1]))
    scene.rounds(14)
    assert not [name for kind, _, name in scene.world.objects if kind == "Service" and name.endswith(("lb", "node"))]


def test_a_broker_whose_pod_went_between_two_looks_is_told_no_address() -> None:
    """Before the fix, the operator took the broker's address from its first list of pods, and AddressesTold failed with
    a KeyError.
    """

    async def tell(reason: str, message: str) -> None:
        raise AssertionError(message)

    exposure = Exposure(World())  # type: ignore[arg-type]
    assert asyncio.run(exposure.tell({}, {100: {"lb": "192.0.2.1:9094"}, 101: {"lb": ""}}, PLAIN, tell)) == ""


def test_brokers_share_a_load_balancer_where_each_has_a_port_of_its_own() -> None:
    shared = {"name": "lb", "port": 9094, "type": "LoadBalancer", "brokerPorts": {"first": 9200}}
    scene = Scene(listeners=[{"name": "plain", "port": 9092, "type": "Internal"}, shared])
    scene.rounds(6)
    service = scene.world.objects["Service", "shop", "k-bootstrap-lb"]
    assert [name for kind, _, name in scene.world.objects if kind == "Service" and name.endswith("-lb")] == [
        "k-bootstrap-lb"
    ]
    assert "selector" not in service["spec"]
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    assert ports == {"bootstrap": 9094, "broker-0": 9200, "broker-1": 9201, "broker-2": 9202}
    service["status"] = {"loadBalancer": {"ingress": [{"ip": "192.0.2.9"}]}}
    scene.rounds(3)
    assert scene.kafka.own[2] == {"ottla.listener.addresses": "LB://192.0.2.9:9202"}
    assert scene.status["listeners"][0] == {"name": "lb", "bootstrap": "192.0.2.9:9094"}
    assert scene.condition("ListenersReady") == ("True", "Advertised")

    pods = {broker: f"k-broker-{broker}" for broker in range(3)}
    addresses = {f"broker-{broker}": [(f"ip-{name}", True)] for broker, name in pods.items()}
    assert _behind(scene, "k-bootstrap-lb") == {
        **addresses,
        "bootstrap": [(f"ip-{name}", True) for name in pods.values()],
    }
    # A broker isn't ready: new clients are sent to other brokers, and clients of this broker wait for it.
    pod = scene.world.objects["Pod", "shop", "k-broker-1"]
    pod["status"]["podIP"] = "ip-new"
    pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    scene.world.edit("Cluster", "k", lambda spec: spec.update(paused=True))
    scene.reconcile()
    behind = _behind(scene, "k-bootstrap-lb")
    assert behind["broker-1"] == [("ip-new", True)], "also while the Cluster is paused"
    assert behind["bootstrap"] == [("ip-k-broker-0", True), ("ip-new", False), ("ip-k-broker-2", True)]
    scene.world.edit("Cluster", "k", lambda spec: spec.update(paused=False, listeners=[*spec["listeners"][:1]]))
    scene.rounds(6)
    assert ("Service", "shop", "k-bootstrap-lb") not in scene.world.objects
    assert _behind(scene, "k-bootstrap-lb") == {}


def _behind(scene: Scene, service: str) -> dict[str, list[tuple[str, bool]]]:
    """For each port's name, the addresses behind the Service, and whether each of them takes connections, by the same
    fields of EndpointSlices that kube-proxy reads.
    """
    slices = [item for (kind, _, _), item in sorted(scene.world.objects.items()) if kind == "EndpointSlice"]
    return {
        port["name"]: [(each["addresses"][0], each["conditions"]["ready"]) for each in item["endpoints"]]
        for item in slices
        if item["metadata"]["labels"]["kubernetes.io/service-name"] == service
        for port in item["ports"]
    }


def test_network_policies_and_snapshots_come_and_go() -> None:
    scene = running()
    wishes = {"schedule": "0 * * * *"}
    scene.world.edit("Cluster", "k", lambda spec: spec["metadata"]["etcd"].update(snapshots=wishes))
    scene.world.edit("Cluster", "k", lambda spec: spec.update(networkPolicy={"enabled": True}))
    scene.rounds(2)
    kinds = [kind for kind, _, _ in scene.world.objects]
    assert (
        kinds.count("NetworkPolicy"),
        kinds.count("CronJob"),
        [name for kind, _, name in scene.world.objects if kind == "PersistentVolumeClaim" and "snap" in name],
    ) == (2, 1, ["k-etcd-snapshots"])
    scene.world.edit("Cluster", "k", lambda spec: spec["metadata"]["etcd"].pop("snapshots"))
    scene.world.edit("Cluster", "k", lambda spec: spec.pop("networkPolicy"))
    scene.rounds(2)
    kinds = [kind for kind, _, _ in scene.world.objects]
    assert (
        kinds.count("NetworkPolicy"),
        kinds.count("CronJob"),
        [name for kind, _, name in scene.world.objects if kind == "PersistentVolumeClaim" and "snap" in name],
    ) == (0, 0, ["k-etcd-snapshots"])


def test_controllers_of_their_own_stay_until_brokers_stand_for_it() -> None:
    scene = running(controllers={"replicas": 2})
    scene.rounds(10)
    assert scene.world.pods_of("k-controller") == ["k-controller-0", "k-controller-1"]
    file = scene.world.objects["ConfigMap", "shop", "k-config"]["data"]["server.properties"]
    assert "process.roles=broker\n" in file
    scene.world.edit("Cluster", "k", lambda spec: spec.update(controllers={"replicas": 0}))
    scene.rounds(2)
    assert scene.world.pods_of("k-controller")
    scene.rounds(14)
    assert not scene.world.pods_of("k-controller")


def test_certificates_are_made_kept_and_renewed_by_a_roll() -> None:
    scene = running(metadata={"etcd": {"members": 1, "tls": True}})
    scene.rounds(2)
    scene.world.writes.clear()
    scene.rounds(3)
    assert scene.world.writes == []
    pod = scene.world.objects["Pod", "shop", "k-broker-0"]
    mounted = next(volume["secret"] for volume in pod["spec"]["volumes"] if volume["name"] == "etcd-tls")
    assert {item["key"] for item in mounted["items"]} == {"ca.crt", "client.crt", "client.key"}
    del scene.world.objects["Secret", "shop", "k-etcd-tls"]
    scene.rounds(14)
    asked = [message for reason, message in scene.world.events if reason == "RollingRestart"]
    assert asked == [f"k-broker-{broker} is restarted: its certificates were renewed" for broker in range(3)]


def test_another_authority_is_trusted_by_everybody_before_it_signs() -> None:
    scene = running(metadata={"etcd": {"members": 1, "tls": True}})

    def secret(name: str) -> dict[str, bytes]:
        return decoded(scene.world.objects["Secret", "shop", name])

    first, first_pairs = secret("k-etcd-authority"), secret("k-etcd-tls")
    scene.now += timedelta(days=2 * AUTHORITY_DAYS / 3 + 1)
    scene.reconcile()
    assert secret("k-etcd-authority")["tls.key"] == first["tls.key"]
    assert secret("k-etcd-tls")["ca.crt"].count(b"BEGIN") == 2
    scene.world.settle()
    scene.reconcile()
    assert secret("k-etcd-authority")["tls.key"] == first["tls.key"], "not every member trusts the new authority yet"
    scene.rounds(14)
    second, second_pairs = secret("k-etcd-authority"), secret("k-etcd-tls")
    assert second.keys() == {"tls.crt", "tls.key", "before.crt"}
    assert second["before.crt"] == first["tls.crt"]
    assert second_pairs["ca.crt"].count(b"BEGIN") == 2
    assert second_pairs["client.crt"] != first_pairs["client.crt"]
    scene.rounds(10)
    told = [message for reason, message in scene.world.events if reason == "AuthorityRenewed"]
    renewed = [message for message in told if "etcd" in message]
    assert renewed == [
        "a new authority for etcd's certificates is added, and signs once all pods trust it",
        "a new authority for etcd's certificates signs",
    ]
    restarted = [message.split()[0] for reason, message in scene.world.events if reason == "RollingRestart"]
    assert Counter(restarted) == {"k-etcd-0": 1, "k-broker-0": 2, "k-broker-1": 2, "k-broker-2": 2}
    scene.world.writes.clear()
    scene.rounds(3)
    assert scene.world.writes == []


@pytest.mark.parametrize("began", [False, True])
def test_a_member_that_etcd_has_let_in_is_restarted_only_while_it_waits(began: bool) -> None:
    scene = running(metadata={"etcd": {"members": 3}})
    pod = scene.world.objects["Pod", "shop", "k-etcd-1"]
    uid = pod["metadata"]["uid"]

    def step(*_: Any) -> StartNow:
        if began:  # the pod has changed since it was listed
            pod["metadata"]["resourceVersion"] = "later"
        return StartNow("k-etcd-1", uid)

    with patch("ottla.operator.etcd.next_step", step):
        scene.reconcile()
    there = scene.world.objects.get(("Pod", "shop", "k-etcd-1"))
    assert (there is not None and there["metadata"]["uid"] == uid) == began
    assert ("EtcdMemberRestarted" in [reason for reason, _ in scene.world.events]) != began


def test_a_volume_of_a_member_that_came_back_just_now_stays() -> None:
    scene = running(metadata={"etcd": {"members": 3}})
    labels = scene.world.objects["StatefulSet", "shop", "k-etcd"]["metadata"]["labels"]
    claim = ("PersistentVolumeClaim", "shop", "data-k-etcd-1")
    size = {"resources": {"requests": {"storage": "1Gi"}}}
    meta = {"namespace": "shop", "name": claim[2], "labels": labels}
    scene.world.create({"kind": claim[0], "metadata": meta, "spec": size})
    pod = scene.world.objects.pop(("Pod", "shop", "k-etcd-1"))

    def left(*_: Any) -> list[str]:
        scene.world.objects["Pod", "shop", "k-etcd-1"] = pod  # the pod is back after the pods were listed
        return [claim[2]]

    with patch("ottla.operator.etcd.left_behind", left):
        scene.reconcile()
    assert claim in scene.world.objects
    del scene.world.objects["Pod", "shop", "k-etcd-1"]
    with patch("ottla.operator.etcd.left_behind", lambda *_: [claim[2]]):
        scene.reconcile()
    assert claim not in scene.world.objects


def test_members_go_on_talking_as_they_did_when_etcd_was_formed() -> None:
    scene = running(metadata={"etcd": {"members": 1, "tls": True}})
    config = scene.world.objects["ConfigMap", "shop", "k-etcd"]["data"]
    assert config["initial-cluster"] == "k-etcd-0=https://k-etcd-0.k-etcd.shop.svc:2380"

    def peers() -> list[str]:
        (process,) = scene.world.objects["StatefulSet", "shop", "k-etcd"]["spec"]["template"]["spec"]["containers"]
        return [argument for argument in process["args"] if "peer" in argument]

    assert peers() == [
        "--listen-peer-urls=https://0.0.0.0:2380",
        "--initial-advertise-peer-urls=https://$(POD_NAME).k-etcd.shop.svc:2380",
        "--peer-client-cert-auth",
        *("--peer-cert-file=/etc/etcd-tls/server.crt", "--peer-key-file=/etc/etcd-tls/server.key"),
        "--peer-trusted-ca-file=/etc/etcd-tls/ca.crt",
    ]
    config["initial-cluster"] = "k-etcd-0=http://k-etcd-0.k-etcd.shop.svc:2380"
    with patch.object(EtcdInMemory, "members", side_effect=EtcdUnreachable("nobody")):
        scene.rounds(1)
    assert peers()[0] == "--listen-peer-urls=http://0.0.0.0:2380"
    assert len(peers()) == 2


def test_secrets_of_another_etcd_are_looked_into_and_their_renewal_is_a_roll() -> None:
    external = {"endpoints": ["etcd.infra.svc:2379"], "tlsSecret": "etcd-client", "credentialsSecret": "etcd-user"}
    scene = Scene(metadata={"external": external})

    def put(name: str, **parts: bytes) -> None:
        data = encoded({part.replace("_", "."): content for part, content in parts.items()})
        scene.world.create({"kind": "Secret", "metadata": {"namespace": "shop", "name": name}, "data": data})

    def refused() -> str:
        assert scene.reconcile().failure == scene.status["message"]
        return str(scene.status["message"])

    assert refused() == "metadata.external.tlsSecret: the Secret etcd-client doesn't exist: create it"
    put("etcd-client", tls_crt=b"c", ca_crt=b"a")
    assert refused().endswith("the Secret etcd-client has only one of tls.crt and tls.key: add the other one")
    put("etcd-client", tls_crt=b"c", tls_key=b"k", ca_crt=b"a")
    put("etcd-user", username=b"u")
    assert refused() == "metadata.external.credentialsSecret: the Secret etcd-user has no password: add it"
    put("etcd-user", username=b"u", password=b"p")
    scene.rounds(3)
    file = scene.world.objects["ConfigMap", "shop", "k-config"]["data"]["server.properties"]
    assert "ottla.metadata.etcd.tls.certificate.file=/etc/ottla-etcd/tls/tls.crt\n" in file
    assert "ottla.metadata.etcd.tls.key.file=/etc/ottla-etcd/tls/tls.key\n" in file
    assert scene.condition("Ready") == ("True", "BrokersServe")
    put("etcd-client", tls_crt=b"c2", tls_key=b"k2", ca_crt=b"a")
    scene.rounds(12)
    asked = [message for reason, message in scene.world.events if reason == "RollingRestart"]
    assert asked == [f"k-broker-{broker} is restarted: its certificates were renewed" for broker in range(3)]


def test_maintenance_windows_are_etcds_and_the_controllers_too() -> None:
    nightly = [{"cron": "0 2 * * *", "durationMinutes": 60}]
    scene = running(maintenanceWindows=nightly, controllers={"replicas": 2})

    scene.world.edit("Cluster", "k", lambda spec: spec["metadata"]["etcd"].update(image="etcd:2"))
    uid = scene.world.objects["Pod", "shop", "k-etcd-0"]["metadata"]["uid"]
    controllers = [scene.world.objects["Pod", "shop", f"k-controller-{n}"]["metadata"]["uid"] for n in range(2)]
    scene.world.edit("Cluster", "k", lambda spec: spec["controllers"].update(resources={"requests": {"cpu": "1"}}))
    scene.rounds(3)
    assert scene.world.objects["Pod", "shop", "k-etcd-0"]["metadata"]["uid"] == uid
    assert controllers == [scene.world.objects["Pod", "shop", f"k-controller-{n}"]["metadata"]["uid"] for n in range(2)]
    said = "Rolling etcd 0/1: waiting for the next maintenance window, to restart k-etcd-0"
    assert scene.status["message"] == said
    assert scene.condition("Rolling") == ("True", "Waiting")
    assert scene.condition("Progressing") == ("True", "Changing")
    assert scene.condition("MetadataReady") == ("True", "EtcdAnswers")
    scene.now = scene.now.replace(hour=2, minute=30)
    scene.rounds(6)
    assert scene.world.objects["Pod", "shop", "k-etcd-0"]["metadata"]["uid"] != uid
    assert scene.status["message"] == "3 of 3 brokers serve"
    assert not set(controllers) & {
        scene.world.objects["Pod", "shop", f"k-controller-{n}"]["metadata"]["uid"] for n in range(2)
    }


def test_the_member_that_leads_is_restarted_last() -> None:
    scene = running(metadata={"etcd": {"members": 3}})
    scene.world.edit("Cluster", "k", lambda spec: spec["metadata"]["etcd"].update(image="etcd:2"))

    async def status(self: EtcdInMemory, address: str) -> MemberStatus:
        leads = address == "ip-k-etcd-0:2379"
        return MemberStatus(leads, size_bytes=1, used_bytes=1, version="3.6.0", revision=1)

    with patch.object(EtcdInMemory, "status", status):
        scene.rounds(8)
    restarted = [message.split()[0] for reason, message in scene.world.events if reason == "RollingRestart"]
    assert restarted == ["k-etcd-1", "k-etcd-2", "k-etcd-0"]


def test_every_action_is_an_event_and_what_is_wrong_a_warning() -> None:
    scene = running()
    made = [message for reason, message in scene.world.events if reason == "ObjectsMade"]
    assert "Service k-brokers" in made[0]
    scene.world.events.clear()
    del scene.world.objects["Service", "shop", "k-bootstrap"]
    scene.rounds(2)
    for value in (1000, "soon", None):
        scene.world.edit("Cluster", "k", lambda spec, value=value: spec.update(config={"log.retention.ms": value}))
        if value is None:
            scene.world.edit("Cluster", "k", lambda spec: spec.pop("config"))
        scene.rounds(2)
    assert [(reason, message.partition(" is ")[0]) for reason, message in scene.world.events] == [
        ("ObjectsMade", "Service k-bootstrap"),
        ("SettingsChanged", "all brokers: log.retention.ms=1000"),
        ("InvalidSpec", scene.world.events[2][1].partition(" is ")[0]),
        ("SettingsChanged", "all brokers: log.retention.ms (reset)"),
    ]
    assert "log.retention.ms" in scene.world.events[2][1]


def test_an_etcd_that_is_full_says_what_to_do_and_takes_writes_when_there_is_room() -> None:
    scene = running()
    scene.world.alarms.append({"memberID": "1", "alarm": "NOSPACE"})
    scene.world.used_bytes = 800 << 20
    clock = scene.reconciler._etcd._next_upkeep
    clock.clear()
    scene.rounds(2)
    assert scene.status["message"] == (
        "etcd: the database is full, and no metadata can be changed: 800 of 819 MiB are in use; "
        "raise metadata.etcd.storage.size"
    )
    assert scene.condition("MetadataReady") == ("False", "EtcdFull")
    scene.world.edit("Cluster", "k", lambda spec: spec["metadata"]["etcd"].update(storage={"size": "4Gi"}))
    scene.rounds(6)
    assert scene.world.alarms == []
    assert scene.condition("MetadataReady") == ("True", "EtcdAnswers")
    assert ("EtcdAlarmDisarmed", "etcd takes writes again: there is room below its quota") in scene.world.events


def test_a_cluster_that_comes_back_under_its_name_has_another_etcd() -> None:
    scene = running(metadata={"etcd": {"members": 1, "tls": True}})
    asked: list[Identity | None] = []

    def client(identity: Identity | None) -> EtcdInMemory:
        asked.append(identity)
        return EtcdInMemory(scene.world)

    scene.reconciler._etcd._make_client = client  # type: ignore[assignment]
    scene.cluster["metadata"]["deletionTimestamp"] = "2026-05-01T00:00:00Z"
    assert scene.reconcile().gone
    del scene.cluster["metadata"]["deletionTimestamp"]
    for key in [key for key in scene.world.objects if "k-etcd" in key[2]]:
        del scene.world.objects[key]
    scene.world.edit("Cluster", "k", lambda spec: spec["metadata"]["etcd"].update(tls=False))
    scene.reconcile()
    assert asked == [None]


def test_a_broker_whose_volume_is_lost_begins_anew_if_others_have_all_of_it() -> None:
    spec = {"replicas": 3, "storage": {"size": "1Gi"}, "lostVolumesAfterMinutes": 10}
    scene = running(brokers=spec)
    claims = [{"name": "data-0", "persistentVolumeClaim": {"claimName": "data-0-k-broker-2"}}]
    pod = scene.world.objects["Pod", "shop", "k-broker-2"]
    labels = scene.world.objects["StatefulSet", "shop", "k-broker"]["metadata"]["labels"]
    meta = {"namespace": "shop", "name": "data-0-k-broker-2", "labels": labels}
    size = {"resources": {"requests": {"storage": "1Gi"}}}
    scene.world.create({"kind": "PersistentVolumeClaim", "metadata": meta, "spec": size})

    def lost(since: str) -> str:
        condition = {
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": since,
            "message": "0/2 nodes are available: 2 node(s) had volume node affinity conflict.",
        }  # fmt: skip
        pod["status"] = {"conditions": [condition]}
        pod["spec"]["volumes"] = claims
        scene.reconcile()
        return str(scene.status["message"])

    assert "no node can run it" in lost("2026-05-01T11:55:00Z")
    scene.kafka.cluster = _cluster(3, {"orders": [(0, 1, 2), (2,)]})
    assert (
        lost("2026-05-01T11:00:00Z")
        == "the volume of k-broker-2 is lost, and no other broker has an in-sync replica of partition orders-1"
    )
    assert ("PersistentVolumeClaim", "shop", "data-0-k-broker-2") in scene.world.objects
    scene.kafka.cluster = _cluster(3, {"orders": [(0, 1, 2), (1, 2)]})
    lost("2026-05-01T11:00:00Z")
    assert ("PersistentVolumeClaim", "shop", "data-0-k-broker-2") not in scene.world.objects
    assert ("Pod", "shop", "k-broker-2") not in scene.world.objects


def test_a_member_whose_volume_is_lost_begins_anew_while_the_others_have_a_majority() -> None:
    scene = running(metadata={"etcd": {"members": 3, "lostVolumesAfterMinutes": 10}})
    condition = {
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "lastTransitionTime": "2026-05-01T11:55:00Z",
        "message": "0/2 nodes are available: 2 node(s) had volume node affinity conflict.",
    }  # fmt: skip

    def uid(name: str = "k-etcd-2") -> str:
        return str(scene.world.objects["Pod", "shop", name]["metadata"]["uid"])

    def lose(*names: str) -> None:
        for name in names:
            scene.world.objects["Pod", "shop", name]["status"] = {"conditions": [condition]}

    before = uid()
    lose("k-etcd-2")
    scene.reconcile()
    assert uid() == before, "the node may come back"
    scene.now += timedelta(minutes=10)
    lose("k-etcd-1", "k-etcd-2")
    scene.reconcile()
    assert uid() == before, "the others have no majority"
    scene.world.settle()
    lose("k-etcd-2")
    scene.reconcile()
    scene.world.settle()
    assert uid() != before
    assert (
        "LostVolumeReplaced",
        "k-etcd-2 starts on a new volume: its old volume's node is gone",
    ) in scene.world.events


def test_a_volume_whose_file_system_grows_at_a_start_gets_one() -> None:
    scene = running()
    pod = scene.world.objects["Pod", "shop", "k-broker-1"]
    pod["metadata"]["creationTimestamp"] = "2026-05-01T10:00:00Z"
    pending = {"type": "FileSystemResizePending", "status": "True", "lastTransitionTime": "2026-05-01T11:58:00Z"}
    scene.world.objects["PersistentVolumeClaim", "shop", "data-0-k-broker-1"]["status"] = {"conditions": [pending]}
    scene.reconcile()
    assert not [event for event in scene.world.events if event[0] == "RollingRestart"], "most grow without a start"
    scene.now += timedelta(minutes=10)
    scene.rounds(1)
    scene.world.objects["Pod", "shop", "k-broker-1"]["metadata"]["creationTimestamp"] = "2026-05-01T12:10:00Z"
    scene.rounds(5)
    assert [message for reason, message in scene.world.events if reason == "RollingRestart"] == [
        "k-broker-1 is restarted: its volume data-0-k-broker-1 grows only when the pod starts"
    ]


def test_a_node_without_a_rack_holds_up_only_its_own_pod() -> None:
    scene = running(brokers={"replicas": 3, "storage": {"size": "1Gi"}, "rackKey": "zone"})
    for broker in range(3):
        scene.world.objects["Pod", "shop", f"k-broker-{broker}"]["spec"]["nodeName"] = f"node-{broker}"
        labels = {"zone": f"z{broker}"} if broker else {}
        scene.world.create({"kind": "Node", "metadata": {"name": f"node-{broker}", "labels": labels}})
    scene.reconcile()
    annotations = [scene.world.objects["Pod", "shop", f"k-broker-{n}"]["metadata"]["annotations"] for n in range(3)]
    assert [found.get("ottla.dev/rack") for found in annotations] == [None, "z1", "z2"]
    assert scene.status["message"] == "rackKey: node node-0 of k-broker-0 has no label zone"


@pytest.mark.parametrize("verb", ["get", "merge"])
def test_a_refusal_for_one_pods_rack_holds_up_only_that_pod(verb: str) -> None:
    scene = running(brokers={"replicas": 3, "storage": {"size": "1Gi"}, "rackKey": "zone"})
    for broker in range(3):
        scene.world.objects["Pod", "shop", f"k-broker-{broker}"]["spec"]["nodeName"] = f"node-{broker}"
        scene.world.create({"kind": "Node", "metadata": {"name": f"node-{broker}", "labels": {"zone": f"z{broker}"}}})
    sound = getattr(scene.world, verb)

    async def refused(kind: str, namespace: str, name: str, *more: Any) -> Any:
        if (kind, name) in (("Node", "node-0"), ("Pod", "k-broker-0")):
            raise KubeError(422, f"{verb} {kind} {name}", "no")
        return await sound(kind, namespace, name, *more)

    setattr(scene.world, verb, refused)
    scene.reconcile()
    annotations = [scene.world.objects["Pod", "shop", f"k-broker-{n}"]["metadata"]["annotations"] for n in range(3)]
    assert [found.get("ottla.dev/rack") for found in annotations] == [None, "z1", "z2"]
    assert scene.condition("RacksReconciled")[0] == "False"


def test_a_volume_whose_class_isnt_there_is_named_in_the_status() -> None:
    scene = running(brokers={"replicas": 3, "storage": {"size": "1Gi", "className": "nope"}})
    labels = scene.world.objects["StatefulSet", "shop", "k-broker"]["metadata"]["labels"]
    meta = {"namespace": "shop", "name": "data-0-k-broker-2", "labels": labels}
    scene.world.create(
        {
            "kind": "PersistentVolumeClaim",
            "metadata": {**meta, "creationTimestamp": "2026-05-01T12:00:00Z"},
            "spec": {"storageClassName": "nope", "resources": {"requests": {"storage": "1Gi"}}},
            "status": {"phase": "Pending"},
        }
    )
    scene.reconcile()
    assert scene.condition("StorageReady") == ("False", "Pending")
    assert "volume data-0-k-broker-2 can't be made, because there is no StorageClass nope" in scene.status["message"]
    scene.world.create({"kind": "StorageClass", "metadata": {"name": "nope"}})
    scene.reconcile()
    assert scene.condition("StorageReady") == ("True", "AsWanted"), "the class may still make the volume"
    scene.now += timedelta(minutes=2)
    scene.reconcile()
    assert scene.condition("StorageReady") == ("False", "Pending")
    assert "its StorageClass nope hasn't done it" in scene.status["message"]
    made = {"phase": "Bound", "capacity": {"storage": "1Gi"}}
    scene.world.objects["PersistentVolumeClaim", "shop", "data-0-k-broker-2"]["status"] = made
    scene.reconcile()
    assert scene.condition("StorageReady") == ("True", "AsWanted")


def test_a_volume_that_no_pod_waits_for_yet_is_no_trouble() -> None:
    """Many storage classes create a volume only when its first pod has a node: the volume for snapshots waits for the
    first snapshot.
    """
    scene = running()
    labels = scene.world.objects["StatefulSet", "shop", "k-broker"]["metadata"]["labels"]
    scene.world.create(
        {
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "namespace": "shop",
                "name": "k-etcd-snapshots",
                "labels": labels,
                "creationTimestamp": "2026-05-01T00:00:00Z",
            },
            "spec": {"resources": {"requests": {"storage": "1Gi"}}},
            "status": {"phase": "Pending"},
        }
    )
    scene.reconcile()
    assert scene.condition("StorageReady") == ("True", "AsWanted")


def test_brokers_learn_their_rack_from_their_node() -> None:
    spec = {"replicas": 3, "storage": {"size": "1Gi"}, "rackKey": "topology.kubernetes.io/zone"}
    scene = running(brokers=spec)
    assert "ottla.dev/rack" not in scene.world.objects["Pod", "shop", "k-broker-0"]["metadata"]["annotations"]
    for broker in range(3):
        scene.world.objects["Pod", "shop", f"k-broker-{broker}"]["spec"]["nodeName"] = f"node-{broker}"
        labels = {"topology.kubernetes.io/zone": f"z{broker}"} if broker else {}
        scene.world.create({"kind": "Node", "metadata": {"name": f"node-{broker}", "labels": labels}})
    scene.reconcile()
    assert scene.status["message"] == "rackKey: node node-0 of k-broker-0 has no label topology.kubernetes.io/zone"
    scene.world.objects["Node", "", "node-0"]["metadata"]["labels"] = {"topology.kubernetes.io/zone": "z0"}
    scene.reconcile()
    racks = [
        scene.world.objects["Pod", "shop", f"k-broker-{broker}"]["metadata"]["annotations"]["ottla.dev/rack"]
        for broker in range(3)
    ]
    assert racks == ["z0", "z1", "z2"]
    process = scene.world.objects["Pod", "shop", "k-broker-0"]["spec"]["containers"][0]
    assert process["command"][:2] == ["/bin/sh", "-c"]
