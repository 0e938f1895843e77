"""The entries of index files as Kafka leaves them: preallocated, torn, whole."""

from __future__ import annotations

import struct

from ottla.storage.indexes import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    AbortedTransaction,
    aborted_transactions,
    offset_entries,
    time_entries,
)


def test_preallocated_zeros_and_a_torn_entry_are_no_entries() -> None:
    offsets = OFFSET_ENTRY.pack(0, 0) + OFFSET_ENTRY.pack(9, 4100)
    assert list(offset_entries(offsets + bytes(800), 100)) == [(100, 0), (109, 4100)]
    assert list(offset_entries(offsets + b"torn", 100)) == [(100, 0), (109, 4100)]
    times = TIME_ENTRY.pack(1000, 0) + TIME_ENTRY.pack(2000, 9)
    assert list(time_entries(times + bytes(1200), 100)) == [(1000, 100), (2000, 109)]
    assert list(time_entries(times + b"torn", 100)) == [(1000, 100), (2000, 109)]
    assert list(time_entries(bytes(1200), 100)) == []


def test_aborted_transactions() -> None:
    entry = struct.pack(">hqqqq", 0, 7, 10, 20, 15)
    assert list(aborted_transactions(entry + entry[:-1])) == [AbortedTransaction(7, 10, 20, 15)]
