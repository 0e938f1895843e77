"""The loops that turn Arrow's buffers into records, compiled by numba. No I/O.

`partition_of` chooses partitions by the murmur2 hash of the key, as Kafka's default partitioner does. `encode` writes
the records of one batch. All integers are int64, for the reason that `kernel` gives. Source: Kafka's Utils.murmur2 and
DefaultRecord.
"""

from __future__ import annotations

from typing import Any

from .compiling import compiled, copy_bytes, int64, njit, types

_bytes_in = types.Array(types.uint8, 1, "C", readonly=True)
_ends_in = types.Array(types.int32, 1, "C", readonly=True)
_bools_in = types.Array(types.boolean, 1, "C", readonly=True)


@njit  # type: ignore[untyped-decorator]
def _murmur2(data: Any, start: int, stop: int) -> Any:
    mask = int64(0xFFFFFFFF)
    m = int64(0x5BD1E995)
    size = stop - start
    h = int64(0x9747B28C) ^ size
    position = start
    while position + 4 <= stop:
        k = (
            int64(data[position])
            | int64(data[position + 1]) << 8
            | int64(data[position + 2]) << 16
            | int64(data[position + 3]) << 24
        )
        k = (k * m) & mask
        k ^= k >> 24
        k = (k * m) & mask
        h = ((h * m) & mask) ^ k
        position += 4
    rest = stop - position
    if rest == 3:
        h ^= int64(data[position + 2]) << 16
    if rest >= 2:
        h ^= int64(data[position + 1]) << 8
    if rest >= 1:
        h ^= int64(data[position])
        h = (h * m) & mask
    h ^= h >> 13
    h = (h * m) & mask
    h ^= h >> 15
    return h


@compiled(types.void(_ends_in, _bytes_in, _bools_in, int64, types.int32[::1]))
def partition_of(ends: Any, data: Any, valid: Any, count: int, chosen: Any) -> None:
    """Sets the partitions of rows by their keys: where `chosen` has −1 and the row has a key.

    The key of row i is data[ends[i]:ends[i + 1]]; it is null if valid[i] is false. `count` is the topic's number of
    partitions.
    """
    for row in range(chosen.shape[0]):
        if chosen[row] == -1 and valid[row]:
            chosen[row] = (_murmur2(data, int64(ends[row]), int64(ends[row + 1])) & 0x7FFFFFFF) % count


@njit  # type: ignore[untyped-decorator]
def _varint_size(value: int) -> Any:
    raw = (value << 1) ^ (value >> 63)
    size = int64(1)
    while raw > 0x7F:
        raw >>= 7
        size += 1
    return size


@njit  # type: ignore[untyped-decorator]
def _write_varint(out: Any, at: int, value: int) -> Any:
    raw = (value << 1) ^ (value >> 63)
    while raw > 0x7F:
        out[at] = raw & 0x7F | 0x80
        raw >>= 7
        at += 1
    out[at] = raw
    return at + 1


@njit  # type: ignore[untyped-decorator]
def _field_size(size: int) -> Any:
    return _varint_size(size) + (size if size > 0 else 0)


@njit  # type: ignore[untyped-decorator]
def _write_field(out: Any, at: int, data: Any, start: int, size: int) -> Any:
    at = _write_varint(out, at, size)
    if size <= 0:
        return at
    copy_bytes(out, at, data, start, size)
    return at + size


@compiled(
    types.UniTuple(int64, 2)(
        types.Array(types.int64, 1, "C", readonly=True),
        int64,
        int64,
        _ends_in,
        _bytes_in,
        _bools_in,
        _ends_in,
        _bytes_in,
        _bools_in,
        types.uint8[::1],
        int64,
    )
)
def encode(
    order: Any,
    first: int,
    stop: int,
    key_ends: Any,
    key_data: Any,
    key_valid: Any,
    value_ends: Any,
    value_data: Any,
    value_valid: Any,
    out: Any,
    limit: int,
) -> tuple[int, int]:
    """Writes the rows order[first:stop] to `out`, as records without headers whose timestamps are the batch's.

    Stops before the record that would exceed `limit` bytes, but writes at least one: `out` must have room for the
    largest record. Returns (the index in `order` of the first row that wasn't written, the number of bytes written).
    """
    at = int64(0)
    for index in range(first, stop):
        row = order[index]
        key_size = int64(key_ends[row + 1]) - int64(key_ends[row]) if key_valid[row] else int64(-1)
        value_size = int64(value_ends[row + 1]) - int64(value_ends[row]) if value_valid[row] else int64(-1)
        delta = int64(index - first)
        size = int64(3) + _varint_size(delta) + _field_size(key_size) + _field_size(value_size)
        if at > 0 and at + size + 10 > limit:
            return int64(index), at
        at = _write_varint(out, at, size)
        out[at] = 0  # attributes
        out[at + 1] = 0  # timestamp delta
        at = _write_varint(out, at + 2, delta)
        at = _write_field(out, at, key_data, int64(key_ends[row]), key_size)
        at = _write_field(out, at, value_data, int64(value_ends[row]), value_size)
        out[at] = 0  # no headers
        at += 1
    return int64(stop), at
