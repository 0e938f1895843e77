"""The loops over batches and records that turn a record set into Arrow's buffers, compiled by numba. No I/O.

`scan` parses the headers of a record set's batches. `walk` decodes the records of the batches in a plan, and writes
them to the buffers of each wanted column:

- Each row of the plan says where the uncompressed records of one batch are, and what its header says (P_ columns).
- The array `totals` receives how many rows and bytes were written (T_ entries).
- The caller allocates buffers that can't overflow: `walk` writes at most as many rows as the headers of the batches
  state, and at most as many bytes as the batches have.
- Each read is checked against the end of the batch. A malformed record ends `walk`, and T_ERROR names its batch.

All integers are int64, because numba turns a mix of int64 and uint64 into float64.

Source of the format: Kafka's DefaultRecordBatch and DefaultRecord.
"""

from __future__ import annotations

from typing import Any

from ottla.protocol.batches import HEADER_SIZE, LOG_OVERHEAD

from .compiling import compiled, copy_bytes, int64, njit, types, uint64
from .headers import (
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_BASE_TIMESTAMP,
    H_COUNT,
    H_CRC,
    H_LAST_OFFSET,
    H_MAGIC,
    H_MAX_TIMESTAMP,
    H_POSITION,
    H_PRODUCER_ID,
    H_SIZE,
)

P_START, P_END, P_BASE_OFFSET, P_BASE_TIMESTAMP, P_APPEND_TIME, P_COUNT = range(6)
(
    T_ROWS,
    T_KEY,
    T_VALUE,
    T_HEADERS,
    T_NAME,
    T_CONTENT,
    T_KEY_NULLS,
    T_VALUE_NULLS,
    T_HEADER_NULLS,
    T_CONTENT_NULLS,
    T_ERROR,
) = range(11)
PLAN_COLUMNS, TOTALS = 6, 11
NOT_APPENDED = -(2**63)  # P_APPEND_TIME of batches whose records carry their own timestamps

_bytes_in = types.Array(types.uint8, 1, "C", readonly=True)
_bytes_out = types.uint8[::1]
_int32s = types.int32[::1]
_int64s = types.int64[::1]


@njit  # type: ignore[untyped-decorator]
def _number(source: Any, position: int, size: int) -> Any:
    """The signed big-endian integer in the `size` bytes at `position`."""
    value = int64(0)
    for index in range(size):
        value = value << 8 | int64(source[uint64(position + index)])
    spare = int64(64 - 8 * size)
    return (value << spare) >> spare


@compiled(int64(_bytes_in, types.int64[:, ::1]))
def scan(source: Any, headers: Any) -> Any:
    """Writes the header of each whole batch in `source` to a row of `headers`, until all its rows are used.

    The columns are the H_ constants of the module `headers`. Returns the number of whole batches, which may be larger
    than the number of rows, or −1 if a batch states a length below that of its own header.
    """
    found = int64(0)
    position = int64(0)
    end = int64(source.shape[0])
    while position + HEADER_SIZE <= end:
        size = LOG_OVERHEAD + _number(source, position + 8, 4)
        if size < HEADER_SIZE:
            return int64(-1)
        if position + size > end:
            break
        if found < headers.shape[0]:
            base_offset = _number(source, position, 8)
            headers[found, H_POSITION] = position
            headers[found, H_SIZE] = size
            headers[found, H_BASE_OFFSET] = base_offset
            headers[found, H_LAST_OFFSET] = base_offset + _number(source, position + 23, 4)
            headers[found, H_MAGIC] = source[position + 16]
            headers[found, H_CRC] = _number(source, position + 17, 4) & 0xFFFFFFFF
            headers[found, H_ATTRIBUTES] = _number(source, position + 21, 2)
            headers[found, H_BASE_TIMESTAMP] = _number(source, position + 27, 8)
            headers[found, H_MAX_TIMESTAMP] = _number(source, position + 35, 8)
            headers[found, H_PRODUCER_ID] = _number(source, position + 43, 8)
            headers[found, H_COUNT] = _number(source, position + 57, 4)
        found += 1
        position += size
    return found


@njit  # type: ignore[untyped-decorator]
def _varint(source: Any, position: int, end: int) -> tuple[int, int]:
    """(value of the varint at `position`, the position after it). The position is −1 if the varint isn't complete."""
    raw = int64(0)
    shift = int64(0)
    while position < end and shift < 64:
        byte = int64(source[uint64(position)])  # with an unsigned index, numba doesn't check for a negative one
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return ((raw >> 1) & 0x7FFFFFFFFFFFFFFF) ^ -(raw & 1), position
        shift += 7
    return int64(0), int64(-1)


@compiled(
    types.void(
        _bytes_in,
        types.int64[:, ::1],
        int64,
        int64,
        _int64s,
        _int64s,
        _int32s,
        types.boolean,
        _int32s,
        _bytes_out,
        _bytes_out,
        types.boolean,
        _int32s,
        _bytes_out,
        _bytes_out,
        types.boolean,
        _int32s,
        _bytes_out,
        _int32s,
        _bytes_out,
        _int32s,
        _bytes_out,
        _bytes_out,
        _int64s,
    )
)
def walk(
    source: Any,
    plan: Any,
    start: int,
    end: int,
    offsets: Any,
    timestamps: Any,
    timestamp_types: Any,
    want_key: bool,
    key_ends: Any,
    key_bytes: Any,
    key_valid: Any,
    want_value: bool,
    value_ends: Any,
    value_bytes: Any,
    value_valid: Any,
    want_headers: bool,
    header_ends: Any,
    header_valid: Any,
    name_ends: Any,
    name_bytes: Any,
    content_ends: Any,
    content_bytes: Any,
    content_valid: Any,
    totals: Any,
) -> None:
    """Fills the columns' buffers with the records of `plan` whose offsets are in [start, end).

    The validity bitmaps, `totals` and the first value of each array of ends must be zero. If a record is malformed,
    totals[T_ERROR] becomes 1 + the index of its batch in `plan`, and the buffers aren't usable.
    """
    rows = int64(0)
    keys = int64(0)
    values = int64(0)
    headers = int64(0)
    names = int64(0)
    contents = int64(0)
    for batch in range(plan.shape[0]):
        position = plan[batch, P_START]
        batch_end = plan[batch, P_END]
        append_time = plan[batch, P_APPEND_TIME]
        for _ in range(plan[batch, P_COUNT]):
            size, position = _varint(source, position, batch_end)
            record_end = position + size
            if position < 0 or size < 0 or record_end > batch_end or position >= record_end:
                totals[T_ERROR] = batch + 1
                return
            delta, position = _varint(source, position + 1, record_end)
            if position < 0:
                totals[T_ERROR] = batch + 1
                return
            offset_delta, position = _varint(source, position, record_end)
            if position < 0:
                totals[T_ERROR] = batch + 1
                return
            offset = plan[batch, P_BASE_OFFSET] + offset_delta
            if offset < start or offset >= end:
                position = record_end
                continue
            key_size, position = _varint(source, position, record_end)
            if position < 0 or position + key_size > record_end:
                totals[T_ERROR] = batch + 1
                return
            if key_size >= 0:
                if want_key:
                    copy_bytes(key_bytes, keys, source, position, key_size)
                    keys += key_size
                    key_valid[rows >> 3] |= 1 << (rows & 7)
                position += key_size
            else:
                totals[T_KEY_NULLS] += 1
            value_size, position = _varint(source, position, record_end)
            if position < 0 or position + value_size > record_end:
                totals[T_ERROR] = batch + 1
                return
            if value_size >= 0:
                if want_value:
                    copy_bytes(value_bytes, values, source, position, value_size)
                    values += value_size
                    value_valid[rows >> 3] |= 1 << (rows & 7)
                position += value_size
            else:
                totals[T_VALUE_NULLS] += 1
            if want_key:
                key_ends[rows + 1] = keys
            if want_value:
                value_ends[rows + 1] = values
            if want_headers:
                count, position = _varint(source, position, record_end)
                if position < 0 or count < 0:
                    totals[T_ERROR] = batch + 1
                    return
                if count > 0:
                    header_valid[rows >> 3] |= 1 << (rows & 7)
                else:
                    totals[T_HEADER_NULLS] += 1
                for _ in range(count):
                    name_size, position = _varint(source, position, record_end)
                    if position < 0 or name_size < 0 or position + name_size > record_end:
                        totals[T_ERROR] = batch + 1
                        return
                    copy_bytes(name_bytes, names, source, position, name_size)
                    names += name_size
                    position += name_size
                    content_size, position = _varint(source, position, record_end)
                    if position < 0 or position + content_size > record_end:
                        totals[T_ERROR] = batch + 1
                        return
                    if content_size >= 0:
                        copy_bytes(content_bytes, contents, source, position, content_size)
                        contents += content_size
                        position += content_size
                        content_valid[headers >> 3] |= 1 << (headers & 7)
                    else:
                        totals[T_CONTENT_NULLS] += 1
                    headers += 1
                    name_ends[headers] = names
                    content_ends[headers] = contents
                header_ends[rows + 1] = headers
            offsets[rows] = offset
            if append_time == NOT_APPENDED:
                timestamps[rows] = (plan[batch, P_BASE_TIMESTAMP] + delta) * 1000
                timestamp_types[rows] = 0
            else:
                timestamps[rows] = append_time * 1000
                timestamp_types[rows] = 1
            rows += 1
            position = record_end
    totals[T_ROWS] = rows
    totals[T_KEY] = keys
    totals[T_VALUE] = values
    totals[T_HEADERS] = headers
    totals[T_NAME] = names
    totals[T_CONTENT] = contents
