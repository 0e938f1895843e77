"""The brokers and etcd as the operator sees them: their state, their reports, and their reactions to requests.

Topics are on the brokers' volumes, and are the only state that can't be restored. A move of replicas takes one step of
the scenario, a started broker catches up within a few steps, and a broker's report about its stop follows from the
ISRs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import replace
from uuid import UUID

from ottla.operator.objects import Object
from ottla.operator.plan.etcd_members import Member
from ottla.operator.plan.roll import Report
from ottla.operator.plan.topic import (
    DRAINED,
    Configure,
    Create,
    Delete,
    Grow,
    KafkaCluster,
    KafkaPartition,
    KafkaTopic,
    Move,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.settings.properties import properties_checksum
from tests.simulation_operator.directories import Directories
from tests.simulation_operator.kubernetes import ApiServer
from tests.unit.operator.test_scale import _asked

REPLICATION_FACTOR = 2  # of topics whose Topic names none
INTERNAL = "__consumer_offsets"
CATCH_UP_STEPS = 4
Refusals = dict[str, KafkaError | None]


class Brokers:
    """All brokers of one Cluster, and the state on their volumes."""

    def __init__(self, server: ApiServer, cluster: str) -> None:
        self.topics: dict[str, KafkaTopic] = {}
        self.settings: dict[str, str] = {}
        self.own: dict[int, dict[str, str]] = {}
        self.started_with: dict[int, str] = {}  # broker → the checksum of the files that it read
        self.blocking: set[int] = set()  # brokers that always refuse to be stopped
        self.directories = Directories(self.topics_now, self._serving, self.own)
        self._server = server
        self._cluster = cluster
        self._behind: dict[int, int] = {}  # broker → steps until it has caught up
        self._ids = 0
        self._revision = 0

    # ---- state

    def running(self) -> dict[int, str]:
        """The ids of the brokers that serve, and the names of their pods."""
        pods = self._server.made("broker")
        return {int(name.rpartition("-")[2]): name for name in sorted(pods) if self._server.serves(name)}

    def _serving(self) -> dict[int, Object]:
        pods = self._server.made("broker")
        return {broker: pods[name] for broker, name in self.running().items()}

    def topics_now(self) -> list[KafkaTopic]:
        """All topics, the internal one included."""
        return list(self.topics.values())

    def started(self, broker: int) -> None:
        """Notes that a broker has read its files and registered, and has to catch up."""
        self.directories.started(broker)
        self._behind[broker] = CATCH_UP_STEPS
        self.started_with[broker] = self.files(broker)

    def files(self, broker: int) -> str:
        """The checksum of the configuration files that the broker would read if it started now."""
        config = self._server.get_now("ConfigMap", f"{self._cluster}-config")
        data = config["data"] if config is not None else {}
        return properties_checksum(data.get("server.properties", "") + data.get(f"broker-{broker}.properties", ""))

    def step(self) -> None:
        """One step of the simulation: replicas catch up, and moves end."""
        running = self.running()
        for broker in list(self._behind):
            self._behind[broker] -= 1
            if self._behind[broker] <= 0 or broker not in running:
                del self._behind[broker]
        for topic in list(self.topics.values()):
            partitions = {
                index: KafkaPartition(one.target, frozenset(one.target))
                if one.moving and set(one.target) <= running.keys() and running.keys() & set(one.original)
                else one
                for index, one in topic.partitions.items()
            }
            self.topics[topic.name] = replace(topic, partitions=partitions)
        if INTERNAL not in self.topics and running:
            self._place(INTERNAL, 2, min(REPLICATION_FACTOR, len(running)), {})
        self.directories.step()

    def now(self, *, internal: bool = True) -> KafkaCluster:
        """The cluster's metadata, as a broker would describe it. `internal`: whether the internal topic is included."""
        running = self.running()
        in_sync = running.keys() - self._behind.keys()
        topics = {}
        load: dict[int, int] = {}
        for topic in self.topics.values():
            # The last in-sync replica stays in the ISR when it stops. Here every replica counts as the last one.
            partitions = {
                index: replace(one, in_sync=(frozenset(one.original) & in_sync) or frozenset(one.original))
                for index, one in topic.partitions.items()
            }
            for one in partitions.values():
                for broker in one.target:
                    load[broker] = load.get(broker, 0) + 1
            if internal or topic.name != INTERNAL:
                topics[topic.name] = replace(topic, partitions=partitions)
        racks = {broker: self._rack_of(pod) for broker, pod in running.items()}
        return KafkaCluster(racks, topics, load, dict(self.settings))

    def rack(self, broker: int) -> str | None:
        """The rack of a broker that serves."""
        return self._rack_of(self.running()[broker])

    def _rack_of(self, name: str) -> str | None:
        """The rack that the environment of the pod `name` gives to its broker; None if it gives none."""
        pod = self._server.get_now("Pod", name)
        assert pod is not None
        told = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
        return told.get("OTTLA_BROKER_RACK")

    def only_holders(self, leaving: Iterable[int]) -> list[str]:
        """The partitions that have a replica on one of the brokers `leaving`."""
        gone = set(leaving)
        return [
            f"{topic.name}-{index}"
            for topic in self.topics.values()
            for index, one in topic.partitions.items()
            if gone & set(one.replicas)
        ]

    def needed_beside(self, wanted: Collection[int]) -> set[int]:
        """The brokers that have the replicas of partitions of which no broker in `wanted` has a replica."""
        partitions = (one for topic in self.topics.values() for one in topic.partitions.values())
        return {broker for one in partitions if not set(one.original) & set(wanted) for broker in one.original}

    def report(self, broker: int, stopping: frozenset[int] = frozenset()) -> Report:
        """The broker's report for the operator. Its risks are those of the broker's own stop, or of the stop of all
        brokers in `stopping`.
        """
        risks: dict[str, tuple[str, ...]] = {}
        self._revision += 1
        missing, unled = [], []
        under_replicated = 0
        running = self.running()
        for topic in self.now().topics.values():
            for index, one in topic.partitions.items():
                name = f"{topic.name}-{index}"
                leads = min(one.in_sync & running.keys(), default=None)
                if leads is None:
                    unled.append(name)
                under_replicated += leads == broker and len(one.in_sync) < len(one.replicas)
                if broker in one.replicas and broker in self._behind:
                    missing.append(name)
        if alone := self.lost_by(stopping or {broker}, alone=True):
            risks["only_copy"] = alone
        if offline := self.lost_by(stopping or {broker}):
            risks["offline"] = offline
        if self.blocking & (stopping or {broker}):
            risks["below_min_isr"] = ("wide-0",)
        return Report(
            risks=risks,
            metadata_connected=self._server.etcd_serves(self._cluster),
            controls=broker == min(self.running(), default=0),
            missing=tuple(missing),
            under_replicated=under_replicated,
            without_leader=tuple(unled),
            file_checksum=self.started_with.get(broker, ""),
            revision=self._revision,
            brokers=stopping,
        )

    def lost_by(self, stopping: Set[int], *, alone: bool = False) -> tuple[str, ...]:
        """The partitions that lose their leader if all these brokers stop together: partitions with several replicas
        or, with `alone`, partitions with a single replica.
        """
        serving = self.running().keys() - self._behind.keys()
        return tuple(
            f"{topic.name}-{index}"
            for topic in self.now().topics.values()
            for index, one in topic.partitions.items()
            if (len(one.replicas) == 1) is alone and (last := one.in_sync & serving) and last <= stopping
        )

    # ---- requests

    def create(self, step: Create) -> KafkaError | None:
        if step.topic in self.topics:
            return KafkaError(ErrorCode.topic_already_exists, "it exists")
        factor = REPLICATION_FACTOR if step.replication_factor == -1 else step.replication_factor
        if factor > len(self.now().takers):
            return KafkaError(ErrorCode.invalid_replication_factor, "not so many brokers.")
        self._place(step.topic, max(step.partitions, 1), factor, dict(step.config))
        return None

    def configure(self, step: Configure) -> KafkaError | None:
        topic = self.topics.get(step.topic)
        if topic is None:
            return KafkaError(ErrorCode.unknown_topic_or_partition, "no such topic")
        overrides = {name: value for name, value in topic.overrides.items() if name not in step.reset}
        self.topics[step.topic] = replace(topic, overrides={**overrides, **step.given})
        return None

    def grow(self, step: Grow) -> KafkaError | None:
        topic = self.topics.get(step.topic)
        if topic is None:
            return KafkaError(ErrorCode.unknown_topic_or_partition, "no such topic")
        partitions = dict(topic.partitions)
        for index in range(len(partitions), step.partitions):
            partitions[index] = self._partition(index, topic.replication_factor)
        self.topics[step.topic] = replace(topic, partitions=partitions)
        return None

    def move(self, step: Move) -> KafkaError | None:
        if step.topic not in self.topics:
            return KafkaError(ErrorCode.unknown_topic_or_partition, "no such topic")
        registered = self.running()
        if any(target and not set(target) <= registered.keys() for target in step.targets.values()):
            return KafkaError(ErrorCode.invalid_replica_assignment, "no such broker")
        self.topics = dict(_asked(self.now(), (step,)).topics)
        return None

    def delete(self, step: Delete) -> KafkaError | None:
        topic = self.topics.get(step.topic)
        if topic is not None and topic.id == step.id:
            del self.topics[step.topic]
        return None

    def _place(self, name: str, partitions: int, factor: int, overrides: dict[str, str]) -> None:
        self._ids += 1
        made = {index: self._partition(index, factor) for index in range(partitions)}
        self.topics[name] = KafkaTopic(name, UUID(int=self._ids), made, overrides)

    def _partition(self, index: int, factor: int) -> KafkaPartition:
        """A new partition, with its replicas on as many racks as possible."""
        takers = self.now().takers
        first = sorted(takers)[index % len(takers) :] + sorted(takers)[: index % len(takers)]
        used: Counter[str | None] = Counter()
        replicas: list[int] = []
        while len(replicas) < min(factor, len(takers)):
            replicas.append(min((each for each in first if each not in replicas), key=lambda each: used[takers[each]]))
            used[takers[replicas[-1]]] += 1
        return KafkaPartition(tuple(replicas), frozenset(replicas))

    def drained(self) -> set[int]:
        """The drained brokers, which are not to lead partitions."""
        return {int(part) for part in self.settings.get(DRAINED, "").split(",") if part}


class EtcdMembers:
    """etcd's list of its members. It can be read while a majority of the pods is ready."""

    def __init__(self, server: ApiServer, cluster: str) -> None:
        self._server = server
        self._cluster = cluster

    def members(self) -> Sequence[Member] | None:
        """The members; None if no majority is ready."""
        if not self._server.etcd_serves(self._cluster):
            return None
        named = sorted(self._server.pods("etcd"))
        host = f"{self._cluster}-etcd.shop.svc:2380"
        scheme = "https" if any("--peer-client-cert-auth" in str(pod["spec"]) for pod in self._etcd_pods()) else "http"
        return [Member(name, name, f"{scheme}://{name}.{host}") for name in named]

    def _etcd_pods(self) -> Iterable[Object]:
        return self._server.pods("etcd").values()


def altered(settings: dict[str, str], given: Mapping[str, str], reset: Iterable[str]) -> None:
    """Applies settings and resets to `settings`."""
    settings.update(given)
    for name in reset:
        settings.pop(name, None)
