"""Leader epochs: assignment, lookups and truncation, against Kafka's rules."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.log.disk import RealDisk
from ottla.broker.log.epochs import EpochEnd, LeaderEpochs, load
from ottla.storage.checkpoints import EpochEntry, parse_epochs
from tests.unit.broker.log.workbench import Workbench, append, batch_of


def epochs(path: Path, *entries: tuple[int, int]) -> LeaderEpochs:
    return LeaderEpochs(RealDisk(), str(path), [EpochEntry(*entry) for entry in entries])


def test_ends(tmp_path: Path) -> None:
    known = epochs(tmp_path, (2, 10), (4, 20), (7, 30))
    table = {1: (1, 10), 2: (2, 20), 3: (2, 20), 4: (4, 30), 6: (4, 30), 7: (7, 99), 8: (-1, -1), -1: (-1, -1)}
    assert {epoch: known.end_offset_for(epoch, 99) for epoch in table} == {
        epoch: EpochEnd(*end) for epoch, end in table.items()
    }
    assert epochs(tmp_path).end_offset_for(0, 5) == EpochEnd(-1, -1)
    assert [known.epoch_of(offset) for offset in (9, 10, 19, 20, 1000)] == [-1, 2, 2, 4, 7]


def test_truncation(tmp_path: Path) -> None:
    known = epochs(tmp_path, (2, 10), (4, 20), (7, 30))
    known.truncate_from_end(30)
    assert known.entries == [(2, 10), (4, 20)]
    known.truncate_from_start(15)
    assert known.entries == [(2, 15), (4, 20)]
    known.truncate_from_start(25)
    assert known.entries == [(4, 25)]
    on_disk = load(RealDisk(), str(tmp_path))
    assert on_disk.entries == [(2, 10), (4, 20)], "a new log start doesn't wait for a file to be written"
    on_disk.truncate_from_start(25)
    assert on_disk.entries == [(4, 25)]
    known.assign(5, 40)
    known.write_out()
    assert load(RealDisk(), str(tmp_path)).entries == [(4, 25), (5, 40)]
    known.clear()
    assert (known.latest, load(RealDisk(), str(tmp_path)).entries) == (-1, [])


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 100)), max_size=20))
def test_both_columns_always_ascend(assignments: list[tuple[int, int]]) -> None:
    class Nowhere(RealDisk):
        def write_atomically(self, path: str, data: bytes, *, fsync: bool = True) -> None:
            assert parse_epochs(data) == known.entries

    known = LeaderEpochs(Nowhere(), "")
    for epoch, offset in assignments:
        known.assign(epoch, offset)
        assert known.latest == known.epochs[-1]
        assert known.epoch_of(max(offset, known.entries[-1].start_offset)) == known.latest
    for earlier, later in zip(known.entries, known.entries[1:], strict=False):
        assert earlier.epoch < later.epoch
        assert earlier.start_offset < later.start_offset


def test_an_epoch_that_begins_is_written_with_the_next_sync(tmp_path: Path) -> None:
    log = Workbench(tmp_path).log()
    append(log, batch_of([b"x"]), epoch=3)
    log.epochs.assign(5, log.log_end_offset)
    assert not (tmp_path / "leader-epoch-checkpoint").exists(), "a new leader of thousands can't wait for each file"
    assert Workbench(tmp_path).log(clean=False).epochs.entries == [(3, 0)]
    append(log, batch_of([b"x"]), epoch=5)
    log.flush()
    assert load(RealDisk(), str(tmp_path)).entries == [(3, 0), (5, 1)]
