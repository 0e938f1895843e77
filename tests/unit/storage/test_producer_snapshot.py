"""Producer snapshots can be read back, and are refused if they are damaged. Kafka's snapshots can be read, too."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from ottla.storage.producer_snapshot import (
    NOT_TOLD,
    KeptBatch,
    SnapshotEntry,
    read_marked_to,
    read_snapshot,
    sealed_snapshot,
    snapshot_pieces,
)

int16, int32, int64 = st.integers(-1, 2**15 - 1), st.integers(-1, 2**31 - 1), st.integers(-1, 2**63 - 1)
batches = st.builds(KeptBatch, int32, st.integers(0, 2**63 - 1), int32, int64)


@st.composite
def entries(draw: st.DrawFn) -> SnapshotEntry:
    kept = tuple(draw(st.lists(batches, max_size=6)))
    timestamp = kept[-1].timestamp if kept else draw(int64)
    return SnapshotEntry(draw(int64), draw(int16), kept, timestamp, draw(int32), draw(int64))


def sealed(producers: list[SnapshotEntry]) -> bytes:
    return sealed_snapshot(snapshot_pieces((entry.producer_id, entry) for entry in producers), 77)


@given(st.lists(entries(), max_size=250, unique_by=lambda entry: entry.producer_id))
def test_what_was_written_is_read(producers: list[SnapshotEntry]) -> None:
    assert list(read_snapshot(sealed(producers))) == producers
    assert read_marked_to(sealed(producers)) == 77


def test_a_snapshot_of_kafkas_has_one_batch_of_each_producer() -> None:
    body = struct.pack(">iqhiqiqiq", 1, 7, 2, 11, 40, 3, 1000, -1, 38)
    written = struct.pack(">hI", 1, crc32c(body)) + body
    [entry] = read_snapshot(written)
    assert read_marked_to(written) == read_marked_to(sealed([entry])[:-8]) == NOT_TOLD
    assert entry == SnapshotEntry(7, 2, (KeptBatch(11, 40, 3, 1000),), 1000, -1, 38)
    assert (entry.last_sequence, entry.last_offset) == (11, 40)
    assert sealed([entry])[6:] == body + bytes(4) + struct.pack(">q", 77), (
        "Ottla's additions follow Kafka's entries, and Kafka doesn't read beyond its entries"
    )


def test_a_damaged_snapshot_is_refused() -> None:
    data = sealed([SnapshotEntry(7, 0, (KeptBatch(0, 0, 0, 1000),), 1000, -1, -1)])
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        with pytest.raises(ValueError, match="snapshot"):
            list(read_snapshot(bytes(damaged)))
        with pytest.raises(ValueError, match="snapshot"):
            list(read_snapshot(data[:position]))
