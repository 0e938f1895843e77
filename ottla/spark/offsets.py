"""Plans which offsets of which partition each task reads. Pure.

`split` has the rules of Spark's KafkaOffsetRangeCalculator, and `rate_limited` those of
KafkaMicroBatchStream.rateLimit. `tasks` goes further than Spark's Kafka source: it combines small ranges.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.net.names import TopicPartition

TASKS_ALONE = 32  # ranges are combined only as far as at least this number of tasks remains
TASK_OFFSETS_MAX = 10_000  # the limit for a task with several ranges


class OffsetRange(NamedTuple):
    """Offsets [start, end) of one partition."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of offsets. The number of records may be smaller, for example after compaction."""
        return self.end - self.start


def split(ranges: Iterable[OffsetRange], min_partitions: int | None, max_records: int | None) -> list[OffsetRange]:
    """Cuts ranges into pieces for tasks: no piece is empty or has more than `max_records` offsets.

    If fewer than `min_partitions` pieces result, the larger ones are cut into equal parts, until there are about
    `min_partitions` pieces. The larger a piece is, the more parts it is cut into.
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
    """The ranges that each task reads: one piece of `split` or, if there are many, several consecutive small pieces.

    Spark takes about 50 ms to run a Python task, and a fetch of a few records takes 1 ms. So a thousand small topics
    are read by a few dozen tasks. If there are enough pieces, there are at least TASKS_ALONE tasks, and at least
    `min_partitions`. A task with several pieces has at most TASK_OFFSETS_MAX and at most `max_records` offsets.
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
    """The end of the next micro-batch in each partition of `latest`. The micro-batch has about `limit` offsets in all.

    A partition's backlog is the number of offsets from `start` to `latest`. The limit is shared in proportion to the
    backlogs. A partition with a backlog gets at least one offset, so the micro-batch may exceed `limit` by less than
    one offset for each partition. A partition without a backlog, or without a start, ends at `latest`.
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
    """Cuts a range into parts, in order. Their sizes differ by at most one offset, and the larger ones come last."""
    cut = []
    start, remaining = whole.start, whole.size
    for part in range(parts):
        size = remaining // (parts - part)
        cut.append(OffsetRange(whole.partition, start, start + size))
        start += size
        remaining -= size
    return cut
