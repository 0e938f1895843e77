"""Plans which offsets of which partition each task reads. Pure.

Source: Spark's KafkaOffsetRangeCalculator (splitting) and KafkaMicroBatchStream.rateLimit (admission), rule for rule.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.net.names import TopicPartition

TASKS_ALONE = 32  # up to so many tasks, each has one range
TASK_OFFSETS_MAX = 10_000  # of a task with several ranges


class OffsetRange(NamedTuple):
    """Offsets [start, end) of one partition."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many offsets; compaction may have left fewer records."""
        return self.end - self.start


def split(ranges: Iterable[OffsetRange], min_partitions: int | None, max_records: int | None) -> list[OffsetRange]:
    """The ranges for tasks: none empty, none above `max_records`, about `min_partitions` in all.

    With `min_partitions`, ranges that hold more than their share are cut into equal parts.
    """
    pieces = [piece for each in ranges if each.size > 0 for piece in _cut(each, _parts_for(each.size, max_records))]
    if min_partitions is None or len(pieces) >= min_partitions:
        return pieces
    total = sum(each.size for each in pieces)
    whole = [each for each in pieces if _share(each.size, total, min_partitions) == 1]
    total_cut = total - sum(each.size for each in whole)
    parts_cut = max(min_partitions - len(whole), 1)
    kept = set(whole)
    return [
        part
        for each in pieces
        for part in _cut(each, 1 if each in kept else _share(each.size, total_cut, parts_cut))
        if part.size > 0
    ]


def tasks(
    ranges: Iterable[OffsetRange], min_partitions: int | None, max_records: int | None
) -> list[tuple[OffsetRange, ...]]:
    """What each task reads: the pieces of `split`, small neighbours together where there are very many.

    Spark takes some 50 ms for each task that runs Python, and a fetch of a few records takes one: a thousand small
    topics are read in a few dozen tasks. Never fewer than min_partitions or TASKS_ALONE, where there are enough pieces.
    """
    pieces = split(ranges, min_partitions, max_records)
    count_max = max(len(pieces) // max(TASKS_ALONE, min_partitions or 0), 1)
    size_max = TASK_OFFSETS_MAX if max_records is None else min(TASK_OFFSETS_MAX, max_records)
    found: list[tuple[OffsetRange, ...]] = []
    group: list[OffsetRange] = []
    size = 0
    for piece in pieces:
        if group and (len(group) == count_max or size + piece.size > size_max):
            found.append(tuple(group))
            group, size = [], 0
        group.append(piece)
        size += piece.size
    return [*found, tuple(group)] if group else found


def rate_limited(
    limit: int, start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Ends between `start` and `latest` that admit about `limit` offsets, in proportion to each partition's backlog.

    A partition with any backlog gets at least one offset, so `limit` may be exceeded by less than one a partition.
    """
    backlog = {each: end - start[each] for each, end in latest.items() if each in start and end > start[each]}
    total = sum(backlog.values())
    admitted = dict(latest)
    for each, size in backlog.items():
        share = limit * (size / total)
        whole = math.ceil(share) if share < 1 else math.floor(share)
        admitted[each] = min(latest[each], start[each] + whole)
    return admitted


def _parts_for(size: int, max_records: int | None) -> int:
    return 1 if max_records is None else -(-size // max_records)


def _share(size: int, total: int, parts: int) -> int:
    return max(math.floor(size / total * parts + 0.5), 1)


def _cut(whole: OffsetRange, parts: int) -> Sequence[OffsetRange]:
    """Equal parts; the last takes what division leaves."""
    cut = []
    start, remaining = whole.start, whole.size
    for part in range(parts):
        size = remaining // (parts - part)
        cut.append(OffsetRange(whole.partition, start, start + size))
        start += size
        remaining -= size
    return cut
