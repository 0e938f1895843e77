"""Removes superseded records from batches, so that a log keeps only the last record of each key. Pure, on bytes.

A round reads the dirty part of a log into a map (key → offset of the key's last record), then filters every batch from
the start of the log to the offset at which the map ends:

- a record stays if the map has no later record of its key; a record without a key is removed;
- a tombstone (no value) also stays until its batch's *delete horizon*, which the first round that reads the batch
  stamps (now + `delete.retention.ms`, in the base timestamp, attribute bit 6; KIP-534), so that slow consumers still
  see it;
- offsets never change. A batch whose records are all removed is removed, too, unless it has an active producer's last
  sequence, or is the last batch of the round or of a new segment: then the batch's header stays, without records. So
  each segment still ends where the next begins, and recovery can distinguish a hole from a removal by compaction (Kafka
  keeps only the round's last header);
- records of aborted transactions are removed at once, and never count as the last of their key;
- a transaction's marker stays as long as the transaction has data (`compaction_transactions`), and then until the
  marker's own delete horizon, which the first round that finds the transaction without data stamps. So a consumer that
  has read the data still sees the marker. The marker also stays if it is all that is left of an active producer,
  because it has the producer's epoch;
- a batch that unpacks to more than `unpacked_bytes_max` stays as it is, and its records supersede no others. Tombstones
  behind it stay, too, because the record that a tombstone deletes may be in that batch.

The bytes of a kept record stay the same, unless its batch's base timestamp changes: then records are written anew.
Source: Kafka's LogCleaner (Cleaner.cleanInto, buildOffsetMap) and MemoryRecords.filterTo.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import NamedTuple

from crc32c import crc32c

from ottla.protocol.batches import (
    CODEC_MASK,
    CRC_START,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_OVERHEAD,
    BatchHeader,
    records,
    write_record,
)
from ottla.protocol.codecs import compress
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.markers import read_marker
from ottla.protocol.received import Buffer
from ottla.protocol.unpacking import MAX_BYTES, decompress
from ottla.protocol.varints import read_varint
from ottla.storage.indexes import MAX_RELATIVE_OFFSET, AbortedTransaction

from .compaction_transactions import ReadTransactions

NO_DATA = -1  # in place of the offset of a producer's last data
_LONGEST_PLAIN_KEY = 32
_SEGMENTS_PER_GROUP = 20  # a segment takes three or four renames, and one turn of the event loop does a group's renames
_header = struct.Struct(">qiibIhiqqqhii")


@dataclass(slots=True)
class Cleaning:
    """One round over one log. `segment_ends` are the end offsets of the new segments. `producers` holds the last data
    offset (NO_DATA where only a marker is left) and the epoch of each active producer, by its id. A batch that unpacks
    to more than `unpacked_bytes_max` bytes isn't filtered; `too_large` counts these batches from the log's start on.
    `aborted` are the aborted transactions whose records may be among those of the round. `noted` and `filtered` follow
    the transactions of the batches that were noted and filtered."""

    now_ms: int
    delete_retention_ms: int
    end_offset: int = 0
    segment_ends: frozenset[int] = frozenset()
    latest: dict[bytes, int] = field(default_factory=dict)
    producers: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    aborted: InitVar[Sequence[AbortedTransaction]] = ()
    unpacked_bytes_max: int = MAX_BYTES
    too_large: int = 0
    noted: ReadTransactions = field(init=False)
    filtered: ReadTransactions = field(init=False)

    def __post_init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self.noted = ReadTransactions(aborted)
        self.filtered = ReadTransactions(aborted)


class _RawRecord(NamedTuple):
    start: int
    end: int
    offset: int
    timestamp: int
    key: bytes | None
    is_tombstone: bool


def fingerprint(key: bytes) -> bytes:
    """The map's entry for a key: the key itself, or a hash of 16 bytes for a long key."""
    return key if len(key) <= _LONGEST_PLAIN_KEY else hashlib.blake2b(key, digest_size=16).digest()


def note_keys(cleaning: Cleaning, batch: Buffer, header: BatchHeader) -> None:
    """Adds the keys of a dirty batch to the map, which then ends after that batch."""
    cleaning.end_offset = header.last_offset + 1
    if header.is_control:
        if (marker := read_marker(batch)) is not None:
            cleaning.noted.marker_read(header, marker)
        return
    if cleaning.noted.data_read(header):
        return
    payload = _payload(batch, header, cleaning.unpacked_bytes_max)
    if payload is None:
        return
    latest = cleaning.latest
    for raw in _raw_records(payload, header):
        if raw.key is not None:
            latest[fingerprint(raw.key)] = raw.offset


def filtered(cleaning: Cleaning, batch: Buffer, header: BatchHeader) -> Buffer | None:
    """The bytes that stay of a batch: the batch itself, a smaller one, its header alone, or None."""
    if header.is_control:
        return _filtered_control(cleaning, batch, header)
    aborted = cleaning.filtered.data_read(header)
    if header.base_offset >= cleaning.end_offset:
        return batch
    payload = b"" if aborted else _payload(batch, header, cleaning.unpacked_bytes_max)
    if payload is None:
        cleaning.too_large += 1
        return batch
    kept = [raw for raw in _raw_records(payload, header) if _stays(cleaning, header, raw)] if payload else []
    if not kept:
        return _empty(header) if _header_stays(cleaning, header) else None
    if header.delete_horizon is None and any(raw.is_tombstone for raw in kept):
        return _stamped(cleaning, batch, header, {raw.offset for raw in kept})
    if len(kept) == header.count:
        return batch
    body = b"".join(payload[raw.start : raw.end] for raw in kept)
    greatest = max(raw.timestamp for raw in kept)
    if header.log_append_time:
        greatest = header.max_timestamp
    return _assemble(header._replace(max_timestamp=greatest, count=len(kept)), body)


def _filtered_control(cleaning: Cleaning, batch: Buffer, header: BatchHeader) -> Buffer | None:
    """As `filtered`, for a control batch: a transaction's marker, or what compaction left of one."""
    marker = read_marker(batch)
    if marker is None and header.count:
        return batch  # of another type
    may_go = marker is None or cleaning.filtered.marker_read(header, marker)
    if header.base_offset >= cleaning.end_offset or not may_go:
        return batch
    if marker is not None:
        horizon = header.delete_horizon
        if horizon is None:
            return _stamped(cleaning, batch, header, {record.offset for record in records(batch)})
        if cleaning.now_ms < horizon or _has_last_epoch(cleaning, header):
            return batch
    return _empty(header) if _header_stays(cleaning, header) else None


def _has_last_epoch(cleaning: Cleaning, header: BatchHeader) -> bool:
    """Whether a marker is all that is left of an active producer."""
    return cleaning.producers.get(header.producer_id) == (NO_DATA, header.producer_epoch)


def _stays(cleaning: Cleaning, header: BatchHeader, raw: _RawRecord) -> bool:
    if raw.offset >= cleaning.end_offset:
        return True
    if raw.key is None or raw.offset < cleaning.latest.get(fingerprint(raw.key), -1):
        return False
    horizon = header.delete_horizon
    return not raw.is_tombstone or horizon is None or cleaning.now_ms < horizon or cleaning.too_large > 0


def _header_stays(cleaning: Cleaning, header: BatchHeader) -> bool:
    end = header.last_offset + 1
    if end == cleaning.end_offset or end in cleaning.segment_ends:
        return True
    producer = cleaning.producers.get(header.producer_id)
    return producer is not None and producer[0] == header.last_offset


def _stamped(cleaning: Cleaning, batch: Buffer, header: BatchHeader, offsets: set[int]) -> bytes:
    """A batch of the kept records. Its base timestamp, to which the records' timestamps are relative, is the delete
    horizon."""
    horizon = cleaning.now_ms + cleaning.delete_retention_ms
    body = bytearray()
    greatest = -1
    count = 0
    for record in records(batch):
        if record.offset in offsets:
            write_record(body, record, header.base_offset, horizon)
            greatest = max(greatest, record.timestamp)
            count += 1
    return _assemble(
        header._replace(
            attributes=header.attributes | DELETE_HORIZON,
            base_timestamp=horizon,
            max_timestamp=header.max_timestamp if header.log_append_time else greatest,
            count=count,
        ),
        bytes(body),
    )


def _empty(header: BatchHeader) -> bytes:
    """The batch's header without records. The offsets and sequences, which restore a producer's state, stay."""
    attributes = header.attributes & ~(CODEC_MASK | DELETE_HORIZON)
    return _assemble(header._replace(attributes=attributes, base_timestamp=header.max_timestamp, count=0), b"")


def _assemble(header: BatchHeader, body: bytes) -> bytes:
    """A batch of this header and these records, with the right length and CRC."""
    payload = compress(header.codec, body) if body else b""
    length = HEADER_SIZE - LOG_OVERHEAD + len(payload)
    start = bytearray(_header.pack(*header._replace(length=length, crc=0)))
    crc = crc32c(payload, crc32c(memoryview(start)[CRC_START:]))
    struct.pack_into(">I", start, 17, crc)
    return bytes(start) + payload


def _payload(batch: Buffer, header: BatchHeader, max_bytes: int) -> bytes | None:
    """The batch's records, uncompressed; None where they are more than `max_bytes`."""
    if not header.count:
        return b""
    try:
        payload = decompress(header.codec, memoryview(batch)[HEADER_SIZE : header.size], max_bytes)
    except KafkaError as error:
        if error.code == ErrorCode.record_list_too_large:
            return None
        raise
    return payload if isinstance(payload, bytes) else bytes(payload)


def _raw_records(data: bytes, header: BatchHeader) -> Iterator[_RawRecord]:
    """The position of each record, and the fields by which compaction keeps or removes the record. Raises KafkaError
    INVALID_RECORD."""
    position, base_offset, base_timestamp = 0, header.base_offset, header.base_timestamp
    try:
        for _ in range(header.count):
            size, body = read_varint(data, position)
            end = body + size
            delta, place = read_varint(data, body + 1)
            offset_delta, place = read_varint(data, place)
            key_size, place = read_varint(data, place)
            key = None
            if key_size >= 0:
                key = data[place : place + key_size]
                place += key_size
            value_size, place = read_varint(data, place)
            if size < 0 or end > len(data) or place > end:
                raise KafkaError(ErrorCode.invalid_record, f"a record of the batch at {base_offset} is too long")
            yield _RawRecord(position, end, base_offset + offset_delta, base_timestamp + delta, key, value_size < 0)
            position = end
    except ProtocolError as error:
        raise KafkaError(ErrorCode.invalid_record, f"a record of the batch at {base_offset} can't be read") from error


# ---- the choice of segments


class SegmentSizes(NamedTuple):
    """The properties of a sealed or active segment that `cleanable` and `grouped` need."""

    base_offset: int
    end_offset: int
    size: int
    index_size: int
    largest_timestamp: int


class Cleanable(NamedTuple):
    """The dirty part of a log that may be compacted: its offsets, and its share of the log's bytes."""

    first_dirty: int
    end_offset: int
    dirty_ratio: float
    overdue: bool


def cleanable(
    segments: Sequence[SegmentSizes],
    *,
    first_dirty: int,
    stable_offset: int,
    now_ms: int,
    min_lag_ms: int,
    max_lag_ms: int,
) -> Cleanable:
    """The part of a log that may be compacted: segments before the active one, wholly below `stable_offset`, whose
    records are older than `min_lag_ms`.

    `overdue`: a dirty record is older than `max_lag_ms`. Source: Kafka's LogCleanerManager.cleanableOffsets.
    """
    first_dirty = max(first_dirty, segments[0].base_offset)
    end = segments[0].base_offset
    for segment in segments[:-1]:
        young = min_lag_ms > 0 and segment.end_offset > first_dirty and segment.largest_timestamp > now_ms - min_lag_ms
        if segment.end_offset > stable_offset or young:
            break
        end = segment.end_offset
    if end <= first_dirty:
        return Cleanable(first_dirty, first_dirty, 0.0, False)
    clean = sum(segment.size for segment in segments if segment.end_offset <= first_dirty)
    dirty = [segment for segment in segments if first_dirty < segment.end_offset <= end]
    dirty_bytes = sum(segment.size for segment in dirty)
    overdue = any(0 <= segment.largest_timestamp < now_ms - max_lag_ms for segment in dirty)
    ratio = dirty_bytes / (clean + dirty_bytes) if dirty_bytes else 0.0
    return Cleanable(first_dirty, end, ratio, overdue)


def grouped(
    segments: Sequence[SegmentSizes], *, segment_bytes: int, segment_index_bytes: int
) -> list[list[SegmentSizes]]:
    """Groups of neighbouring segments that fit into one segment together, so that compaction doesn't leave many small
    segments. If a log has very many segments, later rounds reduce their number further."""
    groups: list[list[SegmentSizes]] = []
    size = index_size = 0
    for segment in segments:
        group = groups[-1] if groups else None
        if (
            group is not None
            and len(group) < _SEGMENTS_PER_GROUP
            and size + segment.size <= segment_bytes
            and index_size + segment.index_size <= segment_index_bytes
            and segment.end_offset - group[0].base_offset <= MAX_RELATIVE_OFFSET
        ):
            group.append(segment)
            size += segment.size
            index_size += segment.index_size
        else:
            groups.append([segment])
            size, index_size = segment.size, segment.index_size
    return groups


class Throttle:
    """Computes the pauses by which reads and writes stay within a rate of bytes per second. Times are inputs."""

    __slots__ = ("_bytes_per_second", "_free_at")

    def __init__(self, bytes_per_second: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._free_at = 0.0

    def wait_seconds(self, count: int, now: float) -> float:
        """Notes `count` bytes at `now`, in seconds. Returns for how many seconds to pause."""
        self._free_at = max(self._free_at, now) + count / self._bytes_per_second
        return max(self._free_at - now - 0.1, 0.0)
