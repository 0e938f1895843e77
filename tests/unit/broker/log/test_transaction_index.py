"""A segment's transaction index: its file, its newest entries (in memory until they fill a page), its truncation, and
the aborted transactions that a fetch gets from it."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.log.disk import RealDisk
from ottla.broker.log.transaction_index import TransactionIndex
from ottla.storage.indexes import AbortedTransaction


def entry(number: int, stable: int | None = None) -> AbortedTransaction:
    """The transaction `number`. The transactions overlap: when one ends, the next one is open already."""
    first, marker = number * 10, number * 10 + 15
    return AbortedTransaction(number, first, marker, first + 10 if stable is None else stable)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "00000000000000000000.txnindex"


def found(index: TransactionIndex, offset: int, end_offset: int) -> tuple[list[int], bool]:
    transactions: list[AbortedTransaction] = []
    complete = index.find(offset, end_offset, transactions)
    return [transaction.producer_id for transaction in transactions], complete


def test_the_file_is_kafkas_and_exists_only_with_an_entry(path: Path) -> None:
    index = TransactionIndex(RealDisk(), str(path))
    index.write_out()
    assert not path.exists()
    assert index.files() == []
    index.append(entry(3, 7))
    assert not path.exists(), "the entry is in memory until the indexes are written"
    index.seal()
    assert path.read_bytes() == struct.pack(">hqqqq", 0, 3, 30, 45, 7)
    index.truncate_to(45)
    assert not path.exists()
    assert index.size_bytes == 0


def test_many_entries_are_written_page_by_page(path: Path) -> None:
    index = TransactionIndex(RealDisk(), str(path))
    for number in range(500):
        index.append(entry(number))
    assert 0 < index.stored_bytes == path.stat().st_size < index.size_bytes == 500 * 34
    assert index.entries() == [entry(number) for number in range(500)]
    index.write_out()
    again = TransactionIndex(RealDisk(), str(path), path.stat().st_size)
    with pytest.raises(BlockingIOError):
        again.load(wait=False)
    assert again.entries() == index.entries()
    again.load(wait=False)
    again.let_go()
    again.append(entry(500))
    assert again.entries()[-2:] == [entry(499), entry(500)]


@given(stored=st.integers(0, 6), tail=st.integers(0, 6), end=st.integers(0, 150))
def test_a_truncation_drops_markers_at_or_behind_the_end(
    stored: int, tail: int, end: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("index") / "00000000000000000000.txnindex"
    index = TransactionIndex(RealDisk(), str(path))
    for number in range(stored):
        index.append(entry(number))
    index.write_out()
    for number in range(stored, stored + tail):
        index.append(entry(number))
    index.truncate_to(end)
    left = [entry(number) for number in range(stored + tail) if entry(number).last_offset < end]
    assert index.entries() == left
    assert path.exists() == bool(index.stored_bytes)
    index.append(entry(20))
    index.seal()
    assert TransactionIndex(RealDisk(), str(path), path.stat().st_size).entries() == [*left, entry(20)]


def test_a_reader_is_told_what_overlaps_its_records(path: Path) -> None:
    index = TransactionIndex(RealDisk(), str(path))
    for number in range(5):
        index.append(entry(number))
    assert found(index, 0, 200) == ([0, 1, 2, 3, 4], False)
    assert found(index, 26, 31) == ([2, 3], True), "transaction 1 ended before 26, and 4 began after 31"
    assert found(index, 0, 1) == ([0], True)


def test_the_search_ends_where_nothing_older_was_open(path: Path) -> None:
    """The first transaction ended while another one, from offset 2 on, was open: the search goes on to that one."""
    index = TransactionIndex(RealDisk(), str(path))
    index.append(AbortedTransaction(1, 5, 10, 2))
    index.append(AbortedTransaction(2, 2, 20, 21))
    index.append(AbortedTransaction(3, 22, 30, 31))
    assert found(index, 6, 8) == ([1, 2], True)


def test_a_write_that_fails_is_repeated(path: Path) -> None:
    class Failing(RealDisk):
        failing = True

        def open(self, path: str, *, create: bool = False):  # type: ignore[no-untyped-def]
            if self.failing:
                raise OSError("no room")
            return super().open(path, create=create)

    disk = Failing()
    index = TransactionIndex(disk, str(path))
    for number in range(200):
        index.append(entry(number))
    with pytest.raises(OSError, match="no room"):
        index.seal()
    disk.failing = False
    index.seal()
    assert path.stat().st_size == 200 * 34
    assert index.entries() == [entry(number) for number in range(200)]
