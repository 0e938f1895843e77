"""Record batches of magic 2: their headers and their records. Pure.

The broker's hot path reads headers only. Records are read only where they are needed (in internal topics, compaction,
lookups by timestamp, tools), and then with a bound on the size of the decompressed records.

Source: Kafka's DefaultRecordBatch and DefaultRecord (KIP-98); big-endian throughout:

    0 baseOffset i64 | 8 length i32, of the bytes after it | 12 partitionLeaderEpoch i32 | 16 magic i8 |
    17 crc u32, CRC-32C of all bytes from 21 on | 21 attributes i16 | 23 lastOffsetDelta i32 | 27 baseTimestamp i64 |
    35 maxTimestamp i64 | 43 producerId i64 | 51 producerEpoch i16 | 53 baseSequence i32 | 57 count i32 | 61 records
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from .codecs import compress
from .errors import ErrorCode, KafkaError, ProtocolError
from .received import Buffer
from .unpacking import MAX_BYTES, decompress
from .varints import read_varint, write_varint

HEADER_SIZE = 61
LOG_OVERHEAD = 12  # the fields base offset and length: the length counts the bytes after them
CRC_START = 21
MAGIC = 2

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_SEQUENCE = -1

_header = struct.Struct(">qiibIhiqqqhii")
_after_crc = struct.Struct(">hiqqqhii")
_before_crc = struct.Struct(">qiibI")
_int32 = struct.Struct(">i")
_int64 = struct.Struct(">q")
_uint32 = struct.Struct(">I")
_new = tuple.__new__  # a NamedTuple's own constructor is a Python function, and takes twice as long


class BatchHeader(NamedTuple):
    """The 61 bytes before a batch's records."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which a header doesn't need

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return LOG_OVERHEAD + self.length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """The last record's sequence number, which wraps from 2**31−1 to 0; −1 if the batch has no sequence numbers."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def log_append_time(self) -> bool:
        """Whether all records carry `max_timestamp`, the time of the append."""
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def delete_horizon(self) -> int | None:
        """The time from which compaction may drop this batch's tombstones (KIP-534), in ms; None if none is set."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None


class Record(NamedTuple):
    """One record, with its absolute offset and timestamp (ms)."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`, unchecked. Raises ProtocolError if the buffer ends inside it."""
    try:
        return _new(BatchHeader, _header.unpack_from(buffer, position))
    except struct.error:
        raise ProtocolError("the bytes end inside a batch header") from None


def iterate_headers(buffer: Buffer, position: int = 0, stop: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each whole batch. Bytes after the last whole batch are left out.

    Raises KafkaError corrupt_message if a batch states a length below that of its own header.
    """
    end = len(buffer) if stop is None else stop
    while position + HEADER_SIZE <= end:
        header = BatchHeader._make(_header.unpack_from(buffer, position))
        size = LOG_OVERHEAD + header.length
        if size < HEADER_SIZE:
            raise KafkaError(ErrorCode.corrupt_message, f"a batch states a length of {header.length}")
        if position + size > end:
            return
        yield position, header
        position += size


def crc_valid(buffer: Buffer, position: int, size: int) -> bool:
    """Whether the CRC-32C in the header of the batch of `size` bytes at `position` is right."""
    (stated,) = _uint32.unpack_from(buffer, position + 17)
    return bool(crc32c(memoryview(buffer)[position + CRC_START : position + size]) == stated)


def records(batch: Buffer, max_bytes: int = MAX_BYTES) -> Iterator[Record]:
    """The records of the batch at the start of `batch`, of which at most `max_bytes` are decompressed.

    Raises KafkaError corrupt_message or invalid_record if the content doesn't follow the format, and
    record_list_too_large if it exceeds the bound.
    """
    header = read_header(batch)
    payload = decompress(header.codec, memoryview(batch)[HEADER_SIZE : header.size], max_bytes)
    data = payload if isinstance(payload, bytes) else bytes(payload)
    position = 0
    append_time = header.max_timestamp if header.log_append_time else None
    try:
        for _ in range(header.count):
            size, position = read_varint(data, position)
            end = position + size
            if size < 0 or end > len(data):
                raise KafkaError(ErrorCode.invalid_record, "a record extends beyond the end of its batch")
            record = _record(data, position, end, header, append_time)
            position = end
            yield record
    except ProtocolError as error:
        raise KafkaError(ErrorCode.invalid_record, f"a record can't be read: {error}") from error
    if position != len(data):
        raise KafkaError(
            ErrorCode.invalid_record,
            f"the batch states {header.count} records, but holds more bytes after these records",
        )


def _record(data: bytes, position: int, end: int, header: BatchHeader, append_time: int | None) -> Record:
    timestamp_delta, position = read_varint(data, position + 1)
    offset_delta, position = read_varint(data, position)
    key, position = _bytes(data, position)
    value, position = _bytes(data, position)
    count, position = read_varint(data, position)
    if count < 0:
        raise KafkaError(ErrorCode.invalid_record, f"a record states {count} headers")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, position = _bytes(data, position)
        if name is None:
            raise KafkaError(ErrorCode.invalid_record, "a record header has no name")
        content, position = _bytes(data, position)
        headers.append((name.decode("utf-8", "replace"), content))
    if position != end:
        raise KafkaError(ErrorCode.invalid_record, "a record's fields don't fill its length")
    timestamp = header.base_timestamp + timestamp_delta if append_time is None else append_time
    return Record(header.base_offset + offset_delta, timestamp, key, value, headers)


def _bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = read_varint(data, position)
    if size < 0:
        return None, position
    end = position + size
    if end > len(data):
        raise KafkaError(ErrorCode.invalid_record, "a field extends beyond the end of its batch")
    return data[position:end], end


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    codec: int = 0,
    level: int | None = None,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    log_append_time: int | None = None,
    last_offset: int | None = None,
    delete_horizon: int | None = None,
) -> bytes:
    """One batch of `records`, whose offsets are absolute, ascending and at least `base_offset`.

    `last_offset` may be greater than the last record's offset, as in a compacted batch, which keeps its range of
    offsets. With `log_append_time` all records take that time. With `delete_horizon` the base timestamp is the horizon
    (KIP-534).
    """
    items = list(records)
    maximum = max((record.timestamp for record in items), default=NO_TIMESTAMP)
    base_timestamp = items[0].timestamp if items else NO_TIMESTAMP
    attributes = codec | (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)
    if log_append_time is not None:
        attributes |= LOG_APPEND_TIME
        maximum = log_append_time
    if delete_horizon is not None:
        attributes |= DELETE_HORIZON
        base_timestamp = delete_horizon
    body = bytearray()
    for record in items:
        write_record(body, record, base_offset, base_timestamp)
    if last_offset is None:
        last_offset = items[-1].offset if items else base_offset
    return seal_batch(
        body,
        len(items),
        attributes=attributes,
        level=level,
        base_offset=base_offset,
        last_offset_delta=last_offset - base_offset,
        leader_epoch=leader_epoch,
        base_timestamp=base_timestamp,
        max_timestamp=maximum,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def seal_batch(
    body: Buffer,
    count: int,
    *,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    last_offset_delta: int,
    level: int | None = None,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
) -> bytes:
    """A batch with the records in `body`, compressed by the codec in `attributes`.

    `body` has `count` records, as `write_record` writes them.
    """
    payload = compress(attributes & CODEC_MASK, body, level)
    rest = _after_crc.pack(
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    start = _before_crc.pack(
        base_offset, HEADER_SIZE - LOG_OVERHEAD + len(payload), leader_epoch, MAGIC, crc32c(payload, crc32c(rest))
    )
    return start + rest + payload


def write_record(out: bytearray, record: Record, base_offset: int, base_timestamp: int) -> None:
    """Appends `record` to `out`, encoded as inside a batch with that base offset and base timestamp."""
    body = bytearray(b"\x00")
    write_varint(body, record.timestamp - base_timestamp)
    write_varint(body, record.offset - base_offset)
    for field in (record.key, record.value):
        _write_bytes(body, field)
    write_varint(body, len(record.headers))
    for name, content in record.headers:
        _write_bytes(body, name.encode())
        _write_bytes(body, content)
    write_varint(out, len(body))
    out += body


def _write_bytes(out: bytearray, field: bytes | None) -> None:
    if field is None:
        out.append(1)  # zigzag of −1
    else:
        write_varint(out, len(field))
        out += field


def assign(buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Writes the base offset and leader epoch, which the leader assigns, into the batch at `position`.

    The CRC covers neither of them.
    """
    _int64.pack_into(buffer, position, base_offset)
    _int32.pack_into(buffer, position + LOG_OVERHEAD, leader_epoch)


def stamp_append_time(buffer: bytearray | memoryview, position: int, now_ms: int) -> None:
    """Sets the batch at `position` to LogAppendTime, with the time `now_ms`, and recomputes the CRC."""
    header = read_header(buffer, position)
    _rewrite_times(buffer, position, header, header.attributes | LOG_APPEND_TIME, now_ms)


def stamp_create_time(buffer: bytearray | memoryview, position: int, max_timestamp: int) -> None:
    """Sets the batch at `position` to CreateTime, with that maximum timestamp, and recomputes the CRC."""
    header = read_header(buffer, position)
    _rewrite_times(buffer, position, header, header.attributes & ~LOG_APPEND_TIME, max_timestamp)


def _rewrite_times(
    buffer: bytearray | memoryview, position: int, header: BatchHeader, attributes: int, max_timestamp: int
) -> None:
    struct.pack_into(">h", buffer, position + CRC_START, attributes)
    _int64.pack_into(buffer, position + 35, max_timestamp)
    crc = crc32c(memoryview(buffer)[position + CRC_START : position + header.size])
    _uint32.pack_into(buffer, position + 17, crc)
