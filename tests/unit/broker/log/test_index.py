"""Sparse indexes are compared with sorted lists, while their last entries are on disk, in memory, or in both."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from ottla.broker.log.disk import RealDisk
from ottla.broker.log.index import OffsetIndex, TimeIndex, _SparseIndex
from ottla.storage.indexes import OffsetPosition, TimestampOffset
from tests.unit.examples import examples

BASE = 10_000


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("index")


OFFSETS: dict[str, Any] = {
    "steps": st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000)), max_size=1500),
    "spills": st.sets(st.integers(0, 1500)),
    "probe": st.integers(-5, 80_000),
    "cut": st.integers(0, 80_000),
}
TIMES: dict[str, Any] = {
    "steps": st.lists(st.tuples(st.integers(0, 3), st.integers(-50, 90)), max_size=700),
    "probe": st.integers(-5, 3000),
    "cut": st.integers(0, 1500),
}


@given(**OFFSETS)
@settings(max_examples=examples(60), deadline=None)
def test_offset_index_is_a_sorted_list(
    directory: Path, steps: list[tuple[int, int]], spills: set[int], probe: int, cut: int
) -> None:
    path = directory / "a.index"
    path.unlink(missing_ok=True)
    index, model = OffsetIndex(RealDisk(), str(path), BASE), [OffsetPosition(BASE, 0)]
    for at, (offset_step, position_step) in enumerate(steps):
        last = model[-1]
        model.append(OffsetPosition(last.offset + offset_step, last.position + position_step))
        index.append(*model[-1])
        if at in spills:
            index.write_out()
    assert list(index.entries()) == model[1:]
    assert index.floor(BASE + probe) == max(
        (entry for entry in model if entry.offset <= BASE + probe), default=OffsetPosition(BASE, 0)
    )
    index.seal()
    reopened = OffsetIndex(RealDisk(), str(path), BASE, path.stat().st_size if path.exists() else 0)
    assert list(reopened.entries()) == model[1:]
    reopened.truncate_to(BASE + cut)
    assert list(reopened.entries()) == [entry for entry in model[1:] if entry.offset < BASE + cut]


@given(**TIMES)
@settings(max_examples=examples(60), deadline=None)
def test_time_index_keeps_only_greater_timestamps(
    directory: Path, steps: list[tuple[int, int]], probe: int, cut: int
) -> None:
    path = directory / "a.timeindex"
    path.unlink(missing_ok=True)
    index, model = TimeIndex(RealDisk(), str(path), BASE), [TimestampOffset(-1, BASE)]
    timestamp, offset = 100, BASE
    for offset_step, time_step in steps:
        offset, timestamp = offset + offset_step, timestamp + time_step
        if timestamp > model[-1].timestamp:
            model.append(TimestampOffset(timestamp, offset))
        index.append(timestamp, offset)
    assert list(index.entries()) == model[1:]
    assert index.floor(probe) == max(entry for entry in model if entry.timestamp <= max(probe, -1))
    index.truncate_to(BASE + cut)
    assert list(index.entries()) == [entry for entry in model[1:] if entry.offset < BASE + cut]
    assert index.last() == [entry for entry in model if entry.offset < BASE + cut or entry.timestamp < 0][-1]


def test_what_a_preallocating_broker_left_behind_is_cut(directory: Path) -> None:
    path = directory / "b.index"
    index = OffsetIndex(RealDisk(), str(path), 0)
    index.append(5, 100)
    index.write_out()
    with path.open("ab") as file:
        file.write(bytes(800))
    index.seal()
    assert path.stat().st_size == 8


def test_a_thread_between_two_steps_of_writing_out_counts_nothing_twice(directory: Path) -> None:
    """Before the fix, a thread counted the tail's entries twice: behind the stored entries, and in the tail again."""
    path = directory / "c.index"
    path.unlink(missing_ok=True)
    index = OffsetIndex(RealDisk(), str(path), 0)
    index.append(1, 10)
    index.write_out()
    for number in range(2, 9):
        index.append(number, 10 * number)
    seen: list[Any] = []

    def between(frame: Any, event: str, argument: Any) -> Any:
        if frame.f_code is _SparseIndex.write_out.__code__:
            seen.append((len(index), [index.floor(number).position for number in range(1, 10)]))
            return between
        return None

    before = sys.gettrace()
    sys.settrace(between)
    try:
        index.write_out()
    finally:
        sys.settrace(before)
    assert len(seen) > 3
    assert all(each == (8, [10, 20, 30, 40, 50, 60, 70, 80, 80]) for each in seen)


def any_timestamp(self: TimeIndex, timestamp: int, offset: int) -> None:
    self._add(self.entry.pack(timestamp, offset - self.base_offset))


whole = _SparseIndex._count_at_most
# The first failing example is enough, so examples aren't shrunk.
HUNT = settings(max_examples=60, deadline=None, database=None, phases=(Phase.generate,))


def one_less(self: Any, column: int, value: int, wait: bool = True) -> int:
    return max(whole(self, column, value, wait) - 1, 0)


@pytest.mark.parametrize(
    ("owner", "name", "broken", "test", "given_to_it"),
    [
        (_SparseIndex, "_count_at_most", one_less, test_offset_index_is_a_sorted_list, OFFSETS),
        (OffsetIndex, "seal", lambda self: self.let_go(), test_offset_index_is_a_sorted_list, OFFSETS),
        (OffsetIndex, "truncate_to", lambda self, offset: None, test_offset_index_is_a_sorted_list, OFFSETS),
        (TimeIndex, "append", any_timestamp, test_time_index_keeps_only_greater_timestamps, TIMES),
        (TimeIndex, "truncate_to", lambda self, offset: None, test_time_index_keeps_only_greater_timestamps, TIMES),
    ],
)
def test_planted_bugs_are_found(
    owner: Any,
    name: str,
    broken: Any,
    test: Any,
    given_to_it: dict[str, Any],
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, name, broken)

    @HUNT
    @given(**given_to_it)
    def hunt(**case: Any) -> None:
        test.hypothesis.inner_test(directory, **case)

    with pytest.raises((AssertionError, ExceptionGroup)):
        hunt()
