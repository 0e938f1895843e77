"""Brokers' reports of the ends of their logs, for partitions whose leader the metadata can't determine. Pure.

A broker reports the end of each of its logs of such partitions. This module says which partitions wait for reports, and
which brokers haven't reported yet. Two kinds of partitions wait:

A partition without a leader waits if all its replicas that were in sync or eligible, its *contenders*, came back from a
stop that may have cost them the ends of their logs. All contenders must have reported.

A restored partition (`Partition.restored`) has no leader until two groups of brokers have reported: the brokers that
the cluster awaits (`Cluster.awaited`: all brokers in the backup, except those that a person declared gone), and all
other registered brokers. A report counts once all its parts are there, and only while the registration lasts under
which it was made.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from .image import Image
from .model.partitions import NO_LEADER, Partition
from .model.reports import LogEnd

PartitionId = tuple[UUID, int]


def contenders(partition: Partition) -> tuple[int, ...]:
    """The replicas that may have every committed record: the ISR and the eligible leader replicas."""
    return (*partition.isr, *partition.elr)


def waits_for_reports(partition: Partition) -> bool:
    """Whether the partition's leader may have to be chosen by the ends of the replicas' logs."""
    return partition.restored or (partition.leader == NO_LEADER and len(contenders(partition)) > 1)


def waiting_partitions(image: Image) -> Iterator[PartitionId]:
    """The partitions for which an election by reports may be due."""
    for topic_id, states in image.partitions.items():
        for index, state in states.items():
            if waits_for_reports(state):
                yield topic_id, index


def contenders_ends(image: Image, partition: Partition) -> dict[int, LogEnd]:
    """The log ends of the partition's contenders, as far as they have reported, by broker id."""
    partition_id = (partition.topic_id, partition.index)
    ends = ((broker, reported(image, broker, partition_id)) for broker in contenders(partition))
    return {broker: end for broker, end in ends if end is not None}


def reporters(image: Image) -> frozenset[int]:
    """The registered brokers whose reports of log ends are complete."""
    return frozenset(broker_id for broker_id in image.brokers if _parts(image, broker_id))


def silent(image: Image) -> frozenset[int]:
    """The awaited and the registered brokers whose reports of log ends are missing or incomplete."""
    awaited = () if image.cluster is None else image.cluster.awaited
    return frozenset(awaited).union(image.brokers) - reporters(image)


def reported(image: Image, broker_id: int, partition_id: PartitionId) -> LogEnd | None:
    """The reported end of the broker's log of a partition; None if the broker has no such log or hasn't reported."""
    for part in range(_parts(image, broker_id)):
        end = image.reports[broker_id, part].logs.get(partition_id)
        if end is not None:
            return end
    return None


def _parts(image: Image, broker_id: int) -> int:
    """The number of parts of the broker's report of log ends; 0 while any part is missing or of an old registration."""
    broker = image.brokers.get(broker_id)
    first = image.reports.get((broker_id, 0))
    if broker is None or first is None:
        return 0
    parts = (image.reports.get((broker_id, part)) for part in range(first.parts))
    return first.parts if all(part is not None and part.broker_epoch == broker.epoch for part in parts) else 0
