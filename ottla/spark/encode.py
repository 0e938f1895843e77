"""Encodes Arrow rows as records, grouped by the topic's partition that each row goes to. No I/O.

Rows of one partition keep their order. Rows that have neither a key nor a partition go to one partition for STICKY_ROWS
rows, then to the next partition, and so on. So batches stay large, as with Kafka's sticky partitioner.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from . import encode_python

kernel: ModuleType | None
try:
    from . import encode_kernel as kernel
except ImportError:  # numba is missing, or doesn't support this Python yet
    kernel = None

STICKY_ROWS = 1000


class EncodedRecords(NamedTuple):
    """The encoded records of one batch, without the batch's header. `rows` is their number."""

    partition: int
    body: bytes
    rows: int


def encode(
    keys: pa.Array | None,
    values: pa.Array,
    headers: pa.Array | None,
    chosen: Any | None,
    partitions: int,
    batch_bytes: int,
    sticky: int,
) -> Iterator[EncodedRecords]:
    """The rows as batches of at most `batch_bytes` bytes each; a larger record gets a batch of its own.

    `keys` and `values` are binary arrays, `headers` an array of lists of (key, value) structs. `chosen` is an int32
    array of partitions; where it has −1, the key decides, by Kafka's default partitioner. `partitions` is the topic's
    number of partitions. The first STICKY_ROWS rows without a key go to the partition `sticky` modulo `partitions`.
    """
    rows = len(values)
    plain = headers is None or headers.null_count == rows
    use_kernel = kernel is not None and plain
    target = np.full(rows, -1, np.int32) if chosen is None else np.array(chosen, np.int32)
    key_buffers = _buffers(keys, rows)
    if kernel is not None:
        kernel.partition_of(*key_buffers, partitions, target)
    elif keys is not None:
        for row, key in enumerate(keys.to_pylist()):
            if target[row] < 0 and key is not None:
                target[row] = encode_python.partition_of(key, partitions)
    left = np.flatnonzero(target < 0)
    target[left] = (sticky + np.arange(len(left)) // STICKY_ROWS) % partitions
    order = np.argsort(target, kind="stable")
    counts = np.bincount(target, minlength=partitions)
    stop = 0
    for partition in np.flatnonzero(counts):
        first, stop = stop, stop + int(counts[partition])
        if use_kernel:
            pieces = _by_kernel(order, first, stop, key_buffers, _buffers(values, rows), batch_bytes)
        else:
            pieces = _by_python(order[first:stop], keys, values, headers, batch_bytes)
        for body, count in pieces:
            yield EncodedRecords(int(partition), body, count)


def _by_kernel(
    order: Any, first: int, stop: int, keys: tuple[Any, Any, Any], values: tuple[Any, Any, Any], batch_bytes: int
) -> Iterator[tuple[bytes, int]]:
    assert kernel is not None
    largest = int(np.diff(keys[0]).max(initial=0)) + int(np.diff(values[0]).max(initial=0)) + 64
    out = np.empty(max(batch_bytes, largest) + 64, np.uint8)
    while first < stop:
        following, size = kernel.encode(order, first, stop, *keys, *values, out, batch_bytes)
        yield out[:size].tobytes(), following - first
        first = following


def _by_python(
    order: Any, keys: pa.Array | None, values: pa.Array, headers: pa.Array | None, batch_bytes: int
) -> Iterator[tuple[bytes, int]]:
    indexes = pa.array(order)
    some_keys = [None] * len(order) if keys is None else pc.take(keys, indexes).to_pylist()
    some_headers = [None] * len(order) if headers is None else pc.take(headers, indexes).to_pylist()
    rows = [
        (key, value, [(each["key"], each["value"]) for each in entries or ()])
        for key, value, entries in zip(some_keys, pc.take(values, indexes).to_pylist(), some_headers, strict=True)
    ]
    first = 0
    while first < len(rows):
        following, body = encode_python.encode(rows, first, len(rows), batch_bytes)
        yield body, following - first
        first = following


def _buffers(array: pa.Array | None, rows: int) -> tuple[Any, Any, Any]:
    """(ends, bytes, valid) of a binary array of `rows` rows, as the kernel takes them. For None, every row is null."""
    if array is None:
        return _read_only(np.zeros(rows + 1, np.int32), np.zeros(0, np.uint8), np.zeros(rows, np.bool_))
    _, ends, data = array.buffers()
    if ends is None or rows == 0:
        return _read_only(np.zeros(rows + 1, np.int32), np.zeros(0, np.uint8), np.zeros(rows, np.bool_))
    return _read_only(
        np.frombuffer(ends, np.int32)[array.offset : array.offset + rows + 1],
        np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8),
        array.is_valid().to_numpy(zero_copy_only=False),
    )


def _read_only(*arrays: Any) -> tuple[Any, Any, Any]:
    for array in arrays:
        array.flags.writeable = False
    first, second, third = arrays
    return first, second, third
