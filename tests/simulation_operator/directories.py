"""The replicas on each volume of a broker, placed and moved as a broker does it.

A new replica goes to the log directory with the fewest replicas, among the directories that get new replicas. On
request a broker copies a replica to another log directory, which takes one step of the scenario. If the broker stops
before the copy is complete, the copy is dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from uuid import UUID

from ottla.operator.objects import Object
from ottla.operator.plan.names import log_directory
from ottla.operator.plan.topic import KafkaTopic
from ottla.operator.plan.volumes import LogDirectory
from ottla.placement import PartitionName
from ottla.protocol.errors import ErrorCode, KafkaError

CORDONED = "cordoned.log.dirs"
_Replica = tuple[UUID, int]


class Directories:
    """The log directories of all brokers of one Cluster."""

    def __init__(
        self,
        topics: Callable[[], Iterable[KafkaTopic]],
        pods: Callable[[], Mapping[int, Object]],
        own: Mapping[int, Mapping[str, str]],
    ) -> None:
        """`pods`: the pods of the brokers that serve; `own`: the brokers' own dynamic settings."""
        self._topics = topics
        self._pods = pods
        self._own = own
        self._lies: dict[int, dict[_Replica, str]] = {}  # broker → replica → the claim of the volume that has it
        self._arriving: dict[int, dict[_Replica, str]] = {}

    def step(self) -> None:
        """One step: copies are completed, new replicas are placed, and deleted ones removed."""
        for broker, pod in self._pods().items():
            self._lies.setdefault(broker, {}).update(self._arriving.pop(broker, {}))
            self._place(broker, pod)

    def started(self, broker: int) -> None:
        """Notes a new process of a broker: incomplete copies are dropped."""
        self._arriving.pop(broker, None)

    def left_out(self, broker: int, pod: Object) -> list[str]:
        """The broker's replicas on volumes that its pod lacks, as `topic-index on claim`. A pod of another pool
        that has the broker's id lacks all of them, because it has volumes of its own."""
        has = claims(pod).values()
        named = self._replicas(broker)
        lies = self._lies.get(broker, {})
        return sorted(
            f"{named[replica][0]}-{named[replica][1]} on {claim}"
            for replica, claim in lies.items()
            if replica in named and claim not in has
        )

    def homes(self) -> dict[int, str]:
        """For each broker that has replicas, the name of the pod whose volumes have them."""
        return {
            broker: next(iter(claims)).removeprefix("data-").partition("-")[2]
            for broker, lies in self._lies.items()
            if (claims := [lies[replica] for replica in self._replicas(broker).keys() & lies.keys()])
        }

    def describe(self, broker: int) -> list[LogDirectory]:
        """The broker's answer to DescribeLogDirs."""
        pod = self._pods()[broker]
        self._place(broker, pod)
        cordoned = self._cordoned(broker)
        return [
            LogDirectory(
                path,
                sizes=self._on(self._lies, broker, claim),
                arriving=self._on(self._arriving, broker, claim),
                cordoned=path in cordoned,
            )
            for volume, claim in sorted(claims(pod).items())
            for path in (log_directory(volume),)
        ]

    def move(self, broker: int, moves: Mapping[str, Sequence[PartitionName]]) -> None:
        """Begins to copy replicas to other log directories. Raises KafkaError."""
        pod = self._pods()[broker]
        self._place(broker, pod)
        has = {log_directory(volume): claim for volume, claim in claims(pod).items()}
        known = {name: replica for replica, name in self._replicas(broker).items()}
        for path, names in moves.items():
            if path not in has:
                raise KafkaError(ErrorCode.log_dir_not_found, path)
            for replica in (known[name] for name in names if name in known):
                arriving = self._arriving.setdefault(broker, {})
                if self._lies[broker][replica] == has[path]:
                    arriving.pop(replica, None)
                else:
                    arriving[replica] = has[path]

    def cordoned(self, broker: int) -> bool:
        """Whether some of the broker's log directories get no new replicas."""
        return bool(self._cordoned(broker))

    def _place(self, broker: int, pod: Object) -> None:
        has, cordoned, replicas = claims(pod), self._cordoned(broker), self._replicas(broker)
        lies = {replica: claim for replica, claim in self._lies.get(broker, {}).items() if replica in replicas}
        self._lies[broker] = lies
        takers = {volume for volume in has if log_directory(volume) not in cordoned} or has.keys()
        for replica in replicas:
            if replica not in lies:
                counts = Counter(lies.values())
                lies[replica] = has[min(takers, key=lambda volume: (counts[has[volume]], volume))]

    def _replicas(self, broker: int) -> dict[_Replica, PartitionName]:
        return {
            (topic.id, index): (topic.name, index)
            for topic in self._topics()
            for index, one in topic.partitions.items()
            if broker in one.replicas
        }

    def _on(self, held: Mapping[int, Mapping[_Replica, str]], broker: int, claim: str) -> dict[PartitionName, int]:
        named = self._replicas(broker)
        its = held.get(broker, {})
        return {named[replica]: 1 for replica, where in its.items() if where == claim and replica in named}

    def _cordoned(self, broker: int) -> set[str]:
        return {path for path in self._own.get(broker, {}).get(CORDONED, "").split(",") if path}


def volumes(pod: Object) -> set[int]:
    """The ids of the volumes that a broker's pod has."""
    return set(claims(pod))


def claims(pod: Object) -> dict[int, str]:
    """The names of the claims of a broker's pod, by the ids of their volumes."""
    named = (each["persistentVolumeClaim"]["claimName"] for each in pod["spec"]["volumes"] if _is_claim(each))
    return {int(name.removesuffix(f"-{pod['metadata']['name']}").rpartition("-")[2]): name for name in named}


def templates(stateful_set: Object) -> dict[int, str]:
    """The sizes of the volumes in a StatefulSet's volumeClaimTemplates, by the volumes' ids."""
    return {
        int(each["metadata"]["name"].rpartition("-")[2]): each["spec"]["resources"]["requests"]["storage"]
        for each in stateful_set["spec"].get("volumeClaimTemplates") or ()
    }


def _is_claim(volume: Object) -> bool:
    return "persistentVolumeClaim" in volume
