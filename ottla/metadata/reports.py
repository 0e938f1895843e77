"""What brokers report of their logs where the metadata can't say who should lead, and whose reports are missing. Pure.

Two kinds of partitions wait for reports. One is left without a leader because all that were in sync, or eligible, came
back from a stop that may have cost them the end of their logs: those *contenders* must all have reported.

A restored partition (`model.Partition.restored`) is led by nobody until the brokers have said what their logs hold. Who
must have said it: the brokers that the cluster awaits (`model.Cluster.awaited`: all that the backup knew of, without
those that a person declared gone), and every other one that is registered. A report counts under the registration that
it was made in, and when all its parts are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from .image import Image
from .model import NO_LEADER, LogEnd, Partition

PartitionId = tuple[UUID, int]


def contenders(partition: Partition) -> tuple[int, ...]:
    """Who may have all that was committed: the ISR and the eligible replicas."""
    return (*partition.isr, *partition.elr)


def waits_for_reports(partition: Partition) -> bool:
    """Whether the logs may have to say who leads."""
    return partition.restored or (partition.leader == NO_LEADER and len(contenders(partition)) > 1)


def waiting_partitions(image: Image) -> Iterator[PartitionId]:
    """The partitions that an election by reports may be due for."""
    for topic_id, states in image.partitions.items():
        for index, state in states.items():
            if waits_for_reports(state):
                yield topic_id, index


def contenders_ends(image: Image, partition: Partition) -> dict[int, LogEnd]:
    """What those of the contenders hold who have said so."""
    partition_id = (partition.topic_id, partition.index)
    ends = ((broker, reported(image, broker, partition_id)) for broker in contenders(partition))
    return {broker: end for broker, end in ends if end is not None}


def reporters(image: Image) -> frozenset[int]:
    """The registered brokers whose reports are complete."""
    return frozenset(broker_id for broker_id in image.brokers if _parts(image, broker_id))


def silent(image: Image) -> frozenset[int]:
    """The brokers that must report yet."""
    awaited = () if image.cluster is None else image.cluster.awaited
    return frozenset(awaited).union(image.brokers) - reporters(image)


def reported(image: Image, broker_id: int, partition_id: PartitionId) -> LogEnd | None:
    """What the broker's log of a partition holds; None where it has none, or hasn't reported."""
    for part in range(_parts(image, broker_id)):
        end = image.reports[broker_id, part].logs.get(partition_id)
        if end is not None:
            return end
    return None


def _parts(image: Image, broker_id: int) -> int:
    """Of how many parts the broker's report is; 0 while any of them is missing."""
    broker = image.brokers.get(broker_id)
    first = image.reports.get((broker_id, 0))
    if broker is None or first is None:
        return 0
    parts = (image.reports.get((broker_id, part)) for part in range(first.parts))
    return first.parts if all(part is not None and part.broker_epoch == broker.epoch for part in parts) else 0
