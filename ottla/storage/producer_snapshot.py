"""The snapshot of a log's producers as bytes: `.snapshot` files, so that a restart needn't read the whole log. Pure.

A file is big-endian: version i16 (1), CRC-32C u32 of all that follows, count i32, then per producer: id i64, epoch
i16, last sequence i32, last offset i64, offset delta i32, timestamp i64, coordinator epoch i32, first offset of the
open transaction i64 (−1: none). Behind these entries, in bytes that Kafka doesn't read, Ottla's snapshots have the
producers' earlier batches, so that a restarted broker recognises a repetition of each of these batches, too.
Format: count i32, then per batch, older ones first: producer id i64, last sequence i32, last offset i64, offset delta
i32, timestamp i64.
After these batches the file ends with the offset (i64) after the last transaction marker, so that a truncation to that
offset or a later one needn't look for markers in the log.

Source: Kafka's ProducerStateManager (readSnapshot, writeSnapshot).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple, Protocol

from crc32c import crc32c

from ottla.protocol.batches import NO_SEQUENCE

_PRODUCERS_A_PIECE = 100
_prefix = struct.Struct(">hIi")
_version_and_checksum = struct.Struct(">hI")
_entry = struct.Struct(">qhiqiqiq")
_count = struct.Struct(">i")
_offset = struct.Struct(">q")
NOT_TOLD = -1  # by a snapshot that Kafka wrote
_earlier = struct.Struct(">qiqiq")


class KeptBatch(NamedTuple):
    """One of a producer's last batches."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int


class SnapshotEntry(NamedTuple):
    """One producer. `batches` are its last batches, older ones first: one in Kafka's own snapshots, none if only a
    transaction marker is left. `transaction_start` is the first offset of the open transaction, −1 for none."""

    producer_id: int
    epoch: int
    batches: tuple[KeptBatch, ...]
    last_timestamp: int
    coordinator_epoch: int
    transaction_start: int

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else -1


class ProducerState(Protocol):
    """The part of a producer's state that a snapshot has."""

    @property
    def epoch(self) -> int: ...
    @property
    def batches(self) -> tuple[KeptBatch, ...]: ...
    @property
    def last_timestamp(self) -> int: ...
    @property
    def coordinator_epoch(self) -> int: ...
    @property
    def transaction_start(self) -> int: ...


class SnapshotPiece(NamedTuple):
    """Some producers of a snapshot file: their number, their entries as bytes, and the number and the bytes of their
    earlier batches. The earlier batches of a producer are its kept batches without the last one."""

    producer_count: int
    entries: bytes
    earlier_count: int
    earlier: bytes


def snapshot_pieces(producers: Iterable[tuple[int, ProducerState]]) -> Iterator[SnapshotPiece]:
    """The content of a snapshot file with these (producer id, state), in pieces. Each piece takes about half a
    millisecond, and the caller can let other work run between two pieces."""
    items = iter(producers)
    while some := list(islice(items, _PRODUCERS_A_PIECE)):
        piece, earlier = bytearray(), bytearray()
        for producer_id, state in some:
            last = state.batches[-1] if state.batches else KeptBatch(NO_SEQUENCE, -1, 0, state.last_timestamp)
            piece += _entry.pack(
                producer_id,
                state.epoch,
                last.last_sequence,
                last.last_offset,
                last.offset_delta,
                state.last_timestamp,
                state.coordinator_epoch,
                state.transaction_start,
            )
            for kept in state.batches[:-1]:
                earlier += _earlier.pack(producer_id, *kept)
        yield SnapshotPiece(len(some), bytes(piece), len(earlier) // _earlier.size, bytes(earlier))


def sealed_snapshot(pieces: Iterable[SnapshotPiece], marked_to: int) -> bytes:
    """The bytes of a snapshot file, from all of its pieces. No transaction marker has the offset `marked_to` or a later
    one."""
    whole = list(pieces)
    count, earlier_count = sum(piece.producer_count for piece in whole), sum(piece.earlier_count for piece in whole)
    entries, earlier = [piece.entries for piece in whole], [piece.earlier for piece in whole]
    body = b"".join([_count.pack(count), *entries, _count.pack(earlier_count), *earlier, _offset.pack(marked_to)])
    return _version_and_checksum.pack(1, crc32c(body)) + body


def read_snapshot(data: bytes) -> Iterator[SnapshotEntry]:
    """The producers in a snapshot file. Raises ValueError if the file is damaged or has another version than 1."""
    if len(data) < _prefix.size:
        raise ValueError("a producer snapshot ends inside its header")
    version, crc, count = _prefix.unpack_from(data)
    if version != 1:
        raise ValueError(f"a producer snapshot has version {version}, and only version 1 can be read")
    if crc32c(memoryview(data)[6:]) != crc or len(data) < _prefix.size + count * _entry.size:
        raise ValueError("a producer snapshot is damaged")
    earlier = _read_earlier(data, _prefix.size + count * _entry.size)
    for position in range(_prefix.size, _prefix.size + count * _entry.size, _entry.size):
        producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, start = _entry.unpack_from(
            data, position
        )
        batches: tuple[KeptBatch, ...] = ()
        if offset >= 0:
            batches = (*earlier.get(producer_id, ()), KeptBatch(sequence, offset, delta, timestamp))
        yield SnapshotEntry(producer_id, epoch, batches, timestamp, coordinator_epoch, start)


def read_marked_to(data: bytes) -> int:
    """The offset after the last transaction marker, from a snapshot file that `read_snapshot` accepts; NOT_TOLD if
    Kafka wrote the file."""
    end = _earlier_end(data, _prefix.size + _prefix.unpack_from(data)[2] * _entry.size)
    return int(_offset.unpack_from(data, end)[0]) if len(data) >= end + _offset.size else NOT_TOLD


def _earlier_end(data: bytes, position: int) -> int:
    """Where the earlier batches that begin at `position` end."""
    if len(data) < position + _count.size:
        return len(data)
    return position + _count.size + int(_count.unpack_from(data, position)[0]) * _earlier.size


def _read_earlier(data: bytes, position: int) -> dict[int, list[KeptBatch]]:
    """Producer id → the producer's batches before its last one. Empty for a snapshot that Kafka wrote."""
    found: dict[int, list[KeptBatch]] = {}
    end = min(_earlier_end(data, position), len(data))
    for at in range(position + _count.size, end - _earlier.size + 1, _earlier.size):
        producer_id, *kept = _earlier.unpack_from(data, at)
        found.setdefault(producer_id, []).append(KeptBatch(*kept))
    return found
