"""Checks what is inside a produced batch against what its header states. Pure.

Kafka's leader walks every record of a batch (LogValidator, about 1 µs a record). Here the same questions are asked in
two ways:

- *alike*: records of one size lie a fixed stride apart, so a field of all of them is one slice (`data[k::stride]`).
  10 to 70 ns a record, and always worth asking; it may answer "I can't tell".
- *walked*: record by record, in a loop without calls. About 0.35 µs a record, so the broker hangs it on a setting.

Both answer for every record: the chain of lengths ends exactly at the batch's end after `count` records, offset deltas
count up from 0, keys exist on a compacted topic, and which timestamps occur. What they leave out, and Kafka looks at,
are the lengths of value and headers *inside* a record; `ottla.protocol.batches.records` reads those.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from .batches import CODEC_MASK, HEADER_SIZE, LOG_APPEND_TIME, LOG_OVERHEAD, BatchHeader
from .codecs import MAX_BYTES, decompress
from .errors import ErrorCode, KafkaError, ProtocolError
from .received import Buffer, Frame
from .varints import read_varint, write_varint

_ODD = bytes(range(1, 256, 2))
_WIDTHS = ((1, 64), (2, 8192))  # offset deltas below 64 take one byte, below 8192 two
_NULL = 1  # zigzag of −1
_new = tuple.__new__  # a NamedTuple's own constructor is a Python function, and takes twice as long


class Timestamps(NamedTuple):
    """The least and the greatest timestamp of a batch's records, ms."""

    minimum: int
    maximum: int


def validate_records(batch: Buffer, header: BatchHeader, *, compacted: bool, max_bytes: int = MAX_BYTES) -> Timestamps:
    """Checks the inside of the batch that starts `batch`; returns the timestamps that really occur.

    The caller compares them with the header's maximum (Kafka corrects a wrong one) and with the topic's bounds. A
    compressed batch is decompressed, to at most `max_bytes`. Raises KafkaError invalid_record where count, lengths,
    offset deltas or (on a `compacted` topic) keys are wrong, corrupt_message where it can't be decompressed,
    record_list_too_large beyond the bound.
    """
    payload = decompress(header.codec, memoryview(batch)[HEADER_SIZE : header.size], max_bytes)
    data = payload if isinstance(payload, bytes) else bytes(payload)
    if header.count <= 0:
        raise _invalid(f"the batch states {header.count} records")
    count, end = header.count, len(data)
    return _timestamps(header, _alike(data, 0, end, count, compacted) or _walked(data, 0, end, count, compacted))


def validate_alike(buffer: Frame, header: BatchHeader, start: int = 0, compacted: bool = False) -> Timestamps | None:
    """As `validate_records`, where records are uncompressed and of one size; None where they aren't, or are wrong.

    The batch lies at `start` and is looked at in place. A single record is always walked, because that is cheaper."""
    count = header.count
    if header.attributes & CODEC_MASK or count <= 0:
        return None
    first, end = start + HEADER_SIZE, start + LOG_OVERHEAD + header.length
    if count == 1:
        return _timestamps(header, _walked(buffer, first, end, count, compacted))
    deltas = _alike(buffer, first, end, count, compacted)
    return None if deltas is None else _timestamps(header, deltas)


def _timestamps(header: BatchHeader, deltas: tuple[int, int]) -> Timestamps:
    if header.attributes & LOG_APPEND_TIME:
        return Timestamps(header.max_timestamp, header.max_timestamp)
    base = header.base_timestamp
    return _new(Timestamps, (base + deltas[0], base + deltas[1]))


def _alike(data: Frame, position: int, stop: int, count: int, compacted: bool) -> tuple[int, int] | None:
    """(least, greatest) timestamp delta of the records data[position:stop]; None for "walk them".

    Where the offset delta takes a byte more, at 64, a new stride begins.
    """
    index = 0
    least, greatest = 1 << 63, -1
    for width, limit in _WIDTHS:
        last = min(count, limit)
        number = last - index
        try:
            size, body = read_varint(data, position)
        except ProtocolError:
            return None
        stride = body - position + size
        end = position + number * stride
        if size < 4 + width or end > stop:
            return None
        for at in range(position, body):
            if data[at:end:stride] != data[at : at + 1] * number:
                return None
        times = data[body + 1 : end : stride]
        if not times.isascii() or times.translate(None, _ODD) != times:  # one byte each, not negative
            return None
        for byte, column in enumerate(_offset_columns()[:width]):
            if data[body + 2 + byte : end : stride] != column[index:last]:
                return None
        if compacted and _NULL in data[body + 2 + width : end : stride]:
            return None
        least, greatest = min(least, min(times) >> 1), max(greatest, max(times) >> 1)
        position, index = end, last
        if index == count:
            return (least, greatest) if position == stop else None
    return None


def _walked(data: Frame, position: int, end: int, count: int, compacted: bool) -> tuple[int, int]:
    """(least, greatest) timestamp delta of the records data[position:end]. Varints of one and two bytes are read in
    place, for speed; a record that reaches beyond `end` is found out at last, because the chain doesn't end there."""
    least, greatest = 1 << 70, -1 << 70
    try:
        for expected in range(count):
            byte = data[position]
            if byte < 128:
                field = position + 1
                position = field + (byte >> 1)
            elif (second := data[position + 1]) < 128:
                field = position + 2
                position = field + ((byte & 127 | second << 7) >> 1)
            else:
                size, field = read_varint(data, position)
                position = field + size
            byte = data[field + 1]
            if byte < 128:
                field += 2
                time = byte >> 1 ^ -(byte & 1)
            elif (second := data[field + 2]) < 128:
                byte = byte & 127 | second << 7
                field += 3
                time = byte >> 1 ^ -(byte & 1)
            else:
                time, field = read_varint(data, field + 1)
            if time < least:
                least = time
            if time > greatest:
                greatest = time
            byte = data[field]
            if byte < 128:
                field += 1
            elif (second := data[field + 1]) < 128:
                byte = byte & 127 | second << 7
                field += 2
            else:
                delta, field = read_varint(data, field)
                byte = delta << 1
            if byte != expected << 1:
                raise _invalid(f"record {expected} states another offset delta")
            if field >= position:
                raise _invalid(f"record {expected} is shorter than its fields")
            if compacted and data[field] & 1 and read_varint(data, field)[0] < 0:
                raise _invalid("a compacted topic takes no record without a key")
    except (IndexError, ProtocolError) as error:
        raise _invalid("the batch ends inside a record") from error
    if position != end:
        raise _invalid(f"the batch states {count} records and holds another number of bytes")
    return least, greatest


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.invalid_record, message)


@cache
def _offset_columns() -> tuple[bytes, bytes]:
    """The first and the second byte of every offset delta below 8192 (0 where there is no second)."""
    first, second = bytearray(), bytearray()
    for delta in range(_WIDTHS[-1][1]):
        varint = bytearray()
        write_varint(varint, delta)
        first.append(varint[0])
        second.append(varint[1] if len(varint) > 1 else 0)
    return bytes(first), bytes(second)
