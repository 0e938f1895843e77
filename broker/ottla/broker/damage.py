"""Where this broker has met something in a log that can't be read, and what doesn't go on for it.

A broker looks into no batch that it serves: it sends consumers the bytes of its files. What is wrong with them is
noticed by those who look for another reason: a follower checks the CRC of all that it copies, a compaction that of all
that it reads; a fetch walks over headers to find its offset; a coordinator reads all of its partition; a start, or a
truncation, reads an index or a header. What
the start cut off is told apart (`log/cuts.py`): it isn't there any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from ottla.broker.log.compactor import Compactor
    from ottla.broker.log.directories import LogDirectories
    from ottla.broker.partitions import PartitionTable
    from ottla.broker.replication import Replication


class Source(Protocol):
    """A broker, as far as it meets damage."""

    @property
    def logs(self) -> LogDirectories:
        """Its log directories."""

    @property
    def partitions(self) -> PartitionTable:
        """The replicas that it holds."""

    @property
    def compactor(self) -> Compactor:
        """Who reads all of a log."""

    @property
    def replication(self) -> Replication:
        """Who checks what it copies."""


class Damage(NamedTuple):
    """What was met in a partition's log. `offset` is that of the first batch that can't be read, None where the log as
    a whole can't be used; `trouble` says what is wrong and what doesn't go on."""

    topic: str
    partition: int
    offset: int | None
    trouble: str


def damages(broker: Source) -> Iterator[Damage]:
    """All that is known now. What is whole again, or isn't there any more, is left out."""
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
