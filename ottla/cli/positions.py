"""Finds the offsets at which a range (`ottla.cli.ranges`) starts and ends in each partition of the cluster.

An end beyond a partition's present end becomes the partition's end: the command doesn't wait for records that may never
come.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ottla.cli import lookup
from ottla.cli.errors import CommandError, ExitCode
from ottla.cli.output import Output
from ottla.cli.ranges import EARLIEST, End, FromEnd, FromStart, Moment, Offset, Start

if TYPE_CHECKING:
    from kafka import TopicPartition

    from ottla.cli.connection import Cluster

    Offsets = dict[TopicPartition, int]

_NAMED_MAX = 3


def starts(cluster: Cluster, partitions: list[TopicPartition], start: Start, ends: Offsets, isolation: str) -> Offsets:
    """For each partition, the offset at which reading begins. The parameter `ends` has the partitions' present end
    offsets for readers of this `isolation`."""
    if isinstance(start, Moment):
        return _at(cluster, start, partitions, ends, isolation)
    if isinstance(start, FromEnd) and not start.count:
        return ends
    firsts = lookup.end_offsets(cluster, partitions, earliest=True)
    if start == EARLIEST:
        return firsts
    if isinstance(start, FromEnd):
        return {one: max(firsts[one], ends[one] - start.count) for one in partitions}
    if isinstance(start, FromStart):
        return {one: min(firsts[one] + start.count, ends[one]) for one in partitions}
    if isolation == lookup.READ_COMMITTED:
        # Reading may begin in a transaction that is still open.
        ends = lookup.end_offsets(cluster, partitions)
    for one in partitions:
        if not firsts[one] <= start.number <= ends[one]:
            raise CommandError(
                f"{one.topic}:{one.partition} has no offset {start.number}",
                _extent(firsts[one], ends[one]),
                ExitCode.not_found,
                1,
            )
    return dict.fromkeys(partitions, start.number)


def ends(
    cluster: Cluster, output: Output, partitions: list[TopicPartition], end: End, now: Offsets, isolation: str
) -> Offsets:
    """For each partition, the offset before which reading ends. The parameter `now` has the partitions' present end
    offsets for readers of this `isolation`."""
    if isinstance(end, Moment):
        return _at(cluster, end, partitions, now, isolation)
    if not isinstance(end, Offset):
        return now
    short = [one for one in partitions if now[one] < end.number]
    if short:
        record = "committed record" if isolation == lookup.READ_COMMITTED else "record"
        output.warn(
            f"no {record} has offset {end.number - 1} yet in {_named(short)}",
            "The read ends at the present end instead.",
        )
    return {one: min(end.number, now[one]) for one in partitions}


def _at(
    cluster: Cluster, moment: Moment, partitions: Iterable[TopicPartition], ends: Offsets, isolation: str
) -> Offsets:
    from kafka.admin import OffsetTimestamp

    found = lookup.offsets_at(cluster, partitions, OffsetTimestamp(moment.ms), isolation)
    return {one: at if at >= 0 else ends[one] for one, at in found.items()}


def _named(partitions: list[TopicPartition]) -> str:
    names = [f"{one.topic}:{one.partition}" for one in partitions]
    more = f" and {len(names) - _NAMED_MAX} others" if len(names) > _NAMED_MAX else ""
    return ", ".join(names[:_NAMED_MAX]) + more


def _extent(start: int, end: int) -> str:
    """A sentence that says which offsets a partition has."""
    if start == end:
        return f"The partition is empty; the next record gets offset {end}."
    return f"The partition has offsets {start} to {end - 1}; the next record gets offset {end}."
