"""After a restore from a backup: which partitions wait for a leader, and for whose reports. Pure.

A restored partition (`model.Partition.restored`) is led by nobody until the brokers have said what their logs hold. Who
must have said it: the brokers that the cluster awaits (`model.Cluster.awaited`: all that the backup knew of, without
those that a person declared gone), and every other one that is registered. A report counts under the registration that
it was made in, and when all its parts are there.
"""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from .image import Image
from .model import LogEnd

PartitionId = tuple[UUID, int]


def restored_partitions(image: Image) -> Iterator[PartitionId]:
    """The partitions that nobody has been elected for since the restore."""
    for topic_id, states in image.partitions.items():
        for index, state in states.items():
            if state.restored:
                yield topic_id, index


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
