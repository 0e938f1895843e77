"""Planning of tasks and of micro-batches, and the ranges that remain under filters."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual, Not

from ottla.net.names import TopicPartition
from ottla.spark.offsets import (
    TASK_OFFSETS_MAX,
    TASKS_ALONE,
    OffsetRange,
    rate_limited,
    split,
    tasks,
)
from ottla.spark.pushdown import push

RANGES = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 5000)), min_size=1, max_size=8).map(
    lambda sizes: [
        OffsetRange(TopicPartition("t", index), start, start + size) for index, (start, size) in enumerate(sizes)
    ]
)


@given(RANGES, st.none() | st.integers(1, 40), st.none() | st.integers(1, 800))
def test_pieces_cover_every_offset_once(ranges: list[OffsetRange], least: int | None, most: int | None) -> None:
    pieces = split(ranges, least, most)
    assert all(piece.size > 0 for piece in pieces)
    if most is not None:
        assert all(piece.size <= most for piece in pieces)
    offsets = [(piece.partition, offset) for piece in pieces for offset in range(piece.start, piece.end)]
    assert offsets == [(each.partition, offset) for each in ranges for offset in range(each.start, each.end)]


def test_large_ranges_are_cut_and_small_ones_kept() -> None:
    ranges = [OffsetRange(TopicPartition("t", 0), 0, 1000), OffsetRange(TopicPartition("t", 1), 0, 10)]
    assert [piece.size for piece in split(ranges, 5, None)] == [250, 250, 250, 250, 10]


@given(
    st.lists(st.integers(0, 12_000), max_size=300), st.none() | st.integers(1, 100), st.none() | st.integers(800, 5000)
)
def test_tasks_are_few_but_not_too_few(sizes: list[int], least: int | None, most: int | None) -> None:
    ranges = [OffsetRange(TopicPartition("t", index), 5, 5 + size) for index, size in enumerate(sizes)]
    pieces = split(ranges, least, most)
    planned = tasks(ranges, least, most)
    assert [piece for task in planned for piece in task] == pieces
    assert len(planned) >= min(len(pieces), max(TASKS_ALONE, least or 0))
    bound = min(TASK_OFFSETS_MAX, most or TASK_OFFSETS_MAX)
    assert all(len(task) == 1 or sum(piece.size for piece in task) <= bound for task in planned)


def test_a_thousand_small_topics_are_a_few_dozen_tasks() -> None:
    assert len(tasks([OffsetRange(TopicPartition(f"t{index}", 0), 0, 1) for index in range(1000)], None, None)) == 33


@given(RANGES, st.integers(1, 10_000))
def test_a_limit_is_shared_and_starves_nobody(ranges: list[OffsetRange], limit: int) -> None:
    start = {each.partition: each.start for each in ranges}
    latest = {each.partition: each.end for each in ranges}
    admitted = rate_limited(limit, start, latest)
    assert all(start[each] <= admitted[each] <= latest[each] for each in latest)
    assert all(admitted[each.partition] > each.start for each in ranges if each.size)
    assert sum(admitted[each] - start[each] for each in latest) <= limit + len(ranges)


def test_filters_become_bounds() -> None:
    ranges = [OffsetRange(TopicPartition("t", index), 0, 100) for index in range(4)]
    noon = datetime(2024, 1, 1, 12, tzinfo=UTC)
    later = GreaterThan(("timestamp",), noon)
    before = LessThan(("timestamp",), noon)
    other = Not(EqualTo(("partition",), 3))
    filters = [
        In(("partition",), (0, 1, 2)),
        EqualTo(("partition",), 2),
        GreaterThan(("offset",), 10),
        GreaterThanOrEqual(("offset",), 5),
        LessThan(("offset",), 50),
        LessThanOrEqual(("offset",), 48),
        later,
        before,
        other,
    ]
    bounds, rest = push(filters)
    assert rest == [later, before, other]
    assert bounds.since_ms == int(noon.timestamp() * 1000)
    assert bounds.apply(ranges) == [OffsetRange(TopicPartition("t", 2), 11, 49)]
