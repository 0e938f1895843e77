"""When compaction removes aborted data, markers, and the entries of the transaction index."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from ottla.broker.log.compaction import NO_DATA, Cleaning, filtered, note_keys
from ottla.protocol.batches import Record, assign, build_batch, read_header, records
from ottla.protocol.markers import Marker, marker_batch, read_marker
from ottla.storage.indexes import AbortedTransaction

NOW, RETENTION = 1_000, 500
ABORTED = AbortedTransaction(7, 0, 2, 3)


@dataclass
class Batches:
    """The batches of a log, and its transaction index. Each round of compaction (`clean`) begins with the batches and
    the index entries that the round before has left."""

    left: list[bytes] = field(default_factory=list)
    index: list[AbortedTransaction] = field(default_factory=list)

    def data(self, offset: int, producer: int = 7, *, transactional: bool = True, key: bytes = b"k") -> None:
        self.left.append(
            build_batch(
                [Record(offset, 0, key, b"value")], base_offset=offset, producer_id=producer, producer_epoch=0,
                base_sequence=offset, transactional=transactional,
            )
        )  # fmt: skip

    def marker(self, offset: int, producer: int = 7, *, committed: bool, epoch: int = 0) -> None:
        batch = marker_batch(producer, epoch, Marker(committed, 4, 0))
        assign(batch, 0, offset, 0)
        self.left.append(bytes(batch))

    def clean(self, now: int = NOW, producers: dict[int, tuple[int, int]] | None = None, end: int = 100) -> list[int]:
        """Compacts the log once. Returns the base offsets of the batches that stay."""
        cleaning = Cleaning(now, RETENTION, aborted=self.index, producers=producers or {})
        for batch in self.left:
            note_keys(cleaning, batch, read_header(batch))
        cleaning.end_offset = end
        kept = [filtered(cleaning, batch, read_header(batch)) for batch in self.left]
        self.left = [bytes(batch) for batch in kept if batch is not None]
        self.index = cleaning.filtered.take_kept()
        return [read_header(batch).base_offset for batch in self.left]


def test_aborted_data_goes_at_once_and_its_marker_in_two_rounds_of_its_own() -> None:
    log = Batches(index=[ABORTED])
    log.data(0)
    log.data(1)
    log.marker(2, committed=False)
    assert log.clean() == [2]
    assert log.index == [ABORTED], "a reader may have fetched a part of the removed data, and still needs the entry"
    assert log.clean() == [2]
    assert log.index == [], "no data of the transaction was left when this round began"
    header = read_header(log.left[0])
    assert header.delete_horizon == NOW + RETENTION
    assert read_marker(log.left[0]) == Marker(False, 4, 0)
    assert log.clean(NOW + RETENTION - 1) == [2]
    assert log.clean(NOW + RETENTION) == []


def test_a_committed_marker_stays_as_long_as_its_transaction_has_data() -> None:
    log = Batches()
    log.data(0)
    log.marker(1, committed=True)
    assert log.clean() == log.clean(10**6) == [0, 1]
    log.data(2, producer=8, transactional=False)
    assert log.clean() == [1, 2], "the data has a successor"
    assert log.clean() == [1, 2]
    assert log.clean(NOW + RETENTION) == [2]


def test_what_was_aborted_supersedes_nothing() -> None:
    log = Batches(index=[AbortedTransaction(7, 1, 2, 3)])
    log.data(0, producer=8, transactional=False)
    log.data(1)
    log.marker(2, committed=False)
    log.data(3, key=b"other")
    log.marker(4, committed=True)
    assert log.clean(end=3) == [0, 2, 3, 4]


def test_data_is_aborted_by_its_own_transaction_only() -> None:
    log = Batches(index=[AbortedTransaction(7, 4, 5, 6)])
    log.data(0, key=b"a")
    log.marker(1, committed=True)
    log.data(2, producer=8, key=b"b")
    log.data(4, key=b"c")
    log.marker(5, committed=False)
    log.marker(6, producer=8, committed=True)
    log.data(7, key=b"d")
    assert log.clean() == [0, 1, 2, 5, 6, 7]


def test_a_transaction_whose_marker_comes_after_the_round_is_known_by_its_index_entry() -> None:
    log = Batches(index=[AbortedTransaction(7, 0, 200, 201)])
    log.data(0)
    assert log.clean() == []


def test_an_aborted_transaction_that_no_index_names_keeps_its_marker() -> None:
    log = Batches()
    log.data(0)
    log.marker(1, committed=False)
    assert log.clean() == log.clean() == [0, 1]


def test_an_active_producers_last_data_stays_empty_and_so_does_its_marker() -> None:
    log = Batches(index=[ABORTED])
    log.data(0)
    log.data(1)
    log.marker(2, committed=False)
    known = {7: (1, 0)}
    assert log.clean(producers=known) == log.clean(10**6, producers=known) == [1, 2]
    assert list(records(log.left[0])) == []
    assert log.index == [ABORTED]


@pytest.mark.parametrize("epoch", [3, 4])
def test_an_active_producer_without_data_keeps_the_marker_with_its_epoch(epoch: int) -> None:
    log = Batches()
    log.marker(0, committed=True, epoch=3)
    known = {7: (NO_DATA, epoch)}
    log.clean(producers=known)
    assert log.clean(10**6, producers=known) == ([0] if epoch == 3 else [])


def test_a_rounds_last_marker_leaves_its_header() -> None:
    log = Batches()
    log.marker(0, committed=True)
    log.clean(end=1)
    assert log.clean(10**6, end=1) == [0]
    assert read_marker(log.left[0]) is None
    assert read_header(log.left[0]).is_control
    assert log.clean(10**6, end=2) == []


def test_other_control_records_stay() -> None:
    other = build_batch([Record(0, 0, b"\0\0\0\2", b"")], producer_id=7, producer_epoch=0, control=True)
    log = Batches([other])
    assert log.clean(10**6) == [0]
    assert log.left == [other]
