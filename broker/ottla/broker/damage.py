"""The damaged places that this broker has met in its logs, and the work that each of them stops.

A broker checks no batch that it serves: it sends consumers the bytes of its files. Damage is noticed by work that reads
a log for another reason. A follower checks the CRC of every batch that it copies, and a compaction checks the CRC of
every batch that it reads. A fetch reads the headers of batches to find its offset. A coordinator reads all of its
partition. A start, or a truncation, reads an index or a header. Batches that the start cut off are reported elsewhere
(`log/cuts.py`), because they aren't in the log any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from ottla.broker.ports import WithCompactor, WithLogs, WithPartitions, WithReplication


class Source(WithCompactor, WithLogs, WithPartitions, WithReplication, Protocol):
    """The parts of a broker that meet damage."""


class Damage(NamedTuple):
    """Damage in a partition's log. `offset` is that of the first batch that can't be read, None where the log as a
    whole can't be used. `trouble` says what is wrong and which work has stopped."""

    topic: str
    partition: int
    offset: int | None
    trouble: str


def damages(broker: Source) -> Iterator[Damage]:
    """All damage that is known now, without batches that have been repaired or removed since."""
    for topic, index, error in broker.logs.damaged():
        yield Damage(topic, index, None, f"offline on this broker: {error.strerror or error}")
    for partition in broker.partitions:
        if partition.damage_met is not None:
            offset, trouble = partition.damage_met
            if partition.log.log_start_offset <= offset < partition.log.log_end_offset:
                yield Damage(partition.topic, partition.index, offset, trouble)
    for log, damage in broker.compactor.damaged():
        yield Damage(log.topic, log.index, damage.offset, f"not compacted any more: {damage}")
    for partition, leader, corrupt in broker.replication.refused():
        trouble = f"not copied from broker {leader} any further: {corrupt.reason}"
        yield Damage(partition.topic, partition.index, corrupt.offset, trouble)
