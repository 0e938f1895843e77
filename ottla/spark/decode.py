"""Decodes record sets into Arrow record batches, without a Python loop over the records. No I/O.

This module allocates the buffers of the columns, the compiled `kernel` fills them, and this module makes Arrow arrays
of them. Kafka batches are decoded together until their records fill BYTES_MAX: even if a producer's batches are small,
Spark gets large Arrow batches. `decode_python` decodes instead if numba is missing, and also if a header's name isn't
ASCII: Arrow's strings must be valid UTF-8, which the kernel doesn't check.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from ottla.protocol.batches import CODEC_MASK, HEADER_SIZE, LOG_APPEND_TIME
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.unpacking import decompress

from . import decode_python
from .headers import (
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_BASE_TIMESTAMP,
    H_COUNT,
    H_MAX_TIMESTAMP,
    H_POSITION,
    H_SIZE,
)
from .schema import ARROW_TYPES, BATCH_BYTES_MAX, HEADER_ARROW, repeated_int, repeated_string
from .selection import kernel

BYTES_MAX = 16 << 20


def decode(
    record_set: bytes | memoryview,
    batches: Any,
    start: int,
    end: int,
    topic: str,
    partition: int,
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    """Arrow record batches of `schema` with the records whose offsets are in [start, end).

    `batches` has a row (see `headers`) for each batch to decode. `schema` has any of the columns of Spark's Kafka
    source, in any order. Raises KafkaError invalid_record for a malformed record.
    """
    if kernel is None:
        yield from decode_python.decode(record_set, batches, start, end, topic, partition, schema)
        return
    for group, source, plan in _groups(record_set, batches):
        made = _arrow(source, plan, start, end, topic, partition, schema)
        if made is None:
            yield from decode_python.decode(record_set, group, start, end, topic, partition, schema)
        else:
            yield from _slices(made, int((plan[:, kernel.P_END] - plan[:, kernel.P_START]).sum()))


def _slices(made: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    """Cuts the Arrow record batch `made` into pieces of about BYTES_MAX, because a single Kafka batch may be far
    larger.

    `size` is the number of bytes of the Kafka records in `made`, uncompressed.
    """
    pieces = -(-size // BYTES_MAX)
    rows = max(-(-made.num_rows // max(pieces, 1)), 1)
    for first in range(0, made.num_rows, rows):
        yield made.slice(first, rows)


def _groups(record_set: bytes | memoryview, batches: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Groups consecutive batches: each group has at most BYTES_MAX uncompressed bytes, or is a single larger batch.

    Yields (the group's rows of `batches`, bytes that contain the group's uncompressed records, the kernel's plan for
    these bytes). If no batch is compressed, the bytes are those of `record_set`, without a copy.
    """
    if not (batches[:, H_ATTRIBUTES] & CODEC_MASK).any():
        source = np.frombuffer(record_set, np.uint8)
        starts = batches[:, H_POSITION] + HEADER_SIZE
        ends = batches[:, H_POSITION] + batches[:, H_SIZE]
        for first, stop in _cuts((ends - starts).tolist()):
            yield batches[first:stop], source, _plan(batches[first:stop], starts[first:stop], ends[first:stop])
        return
    view = memoryview(record_set)
    payloads: list[Any] = []
    first = size = 0
    for index, (position, length, attributes) in enumerate(
        batches[:, (H_POSITION, H_SIZE, H_ATTRIBUTES)].tolist(),
    ):
        compressed = view[position + HEADER_SIZE : position + length]
        payload = decompress(attributes & CODEC_MASK, compressed, BATCH_BYTES_MAX)
        if payloads and size + len(payload) > BYTES_MAX:
            yield _joined(batches[first:index], payloads)
            payloads, first, size = [], index, 0
        payloads.append(payload)
        size += len(payload)
    if payloads:
        yield _joined(batches[first:], payloads)


def _cuts(sizes: list[int]) -> Iterator[tuple[int, int]]:
    """Groups consecutive items of these sizes in bytes: yields (first, stop), the indexes of each group's items.

    Each group has at most BYTES_MAX bytes, or is a single larger item.
    """
    first = total = 0
    for index, size in enumerate(sizes):
        if index > first and total + size > BYTES_MAX:
            yield first, index
            first, total = index, 0
        total += size
    if first < len(sizes):
        yield first, len(sizes)


def _joined(batches: Any, payloads: list[Any]) -> tuple[Any, Any, Any]:
    ends = np.cumsum([len(payload) for payload in payloads])
    starts = np.concatenate(([0], ends[:-1]))
    return batches, np.frombuffer(b"".join(payloads), np.uint8), _plan(batches, starts, ends)


def _plan(batches: Any, starts: Any, ends: Any) -> Any:
    """The kernel's plan of `batches`: the uncompressed records of batch i are at the positions [starts[i], ends[i])."""
    assert kernel is not None
    plan = np.empty((len(batches), kernel.PLAN_COLUMNS), np.int64)
    plan[:, kernel.P_START] = starts
    plan[:, kernel.P_END] = ends
    plan[:, kernel.P_BASE_OFFSET] = batches[:, H_BASE_OFFSET]
    plan[:, kernel.P_BASE_TIMESTAMP] = batches[:, H_BASE_TIMESTAMP]
    appended = batches[:, H_ATTRIBUTES] & LOG_APPEND_TIME != 0
    plan[:, kernel.P_APPEND_TIME] = np.where(appended, batches[:, H_MAX_TIMESTAMP], kernel.NOT_APPENDED)
    plan[:, kernel.P_COUNT] = batches[:, H_COUNT]
    return plan


def _arrow(
    source: Any, plan: Any, start: int, end: int, topic: str, partition: int, schema: pa.Schema
) -> pa.RecordBatch | None:
    """The Arrow record batch. None if a header's name isn't ASCII: then `decode_python` has to decode the group."""
    assert kernel is not None
    source.flags.writeable = False
    rows_max = int(plan[:, kernel.P_COUNT].sum())
    bytes_max = int((plan[:, kernel.P_END] - plan[:, kernel.P_START]).sum())
    names = set(schema.names)
    key = _Binary("key" in names, rows_max, bytes_max)
    value = _Binary("value" in names, rows_max, bytes_max)
    with_headers = "headers" in names
    headers_max = bytes_max // 2 if with_headers else 0  # the two lengths of a header take at least one byte each
    name = _Binary(with_headers, headers_max, bytes_max)
    content = _Binary(with_headers, headers_max, bytes_max)
    header_ends = np.zeros(rows_max + 1 if with_headers else 1, np.int32)
    header_valid = np.zeros((rows_max >> 3) + 1, np.uint8)
    offsets, timestamps = _empty(rows_max, np.int64), _empty(rows_max, np.int64)
    timestamp_types = _empty(rows_max, np.int32)
    totals = np.zeros(kernel.TOTALS, np.int64)
    kernel.walk(
        source,
        plan,
        start,
        end,
        offsets,
        timestamps,
        timestamp_types,
        key.wanted,
        *key.buffers,
        value.wanted,
        *value.buffers,
        with_headers,
        header_ends,
        header_valid,
        *name.buffers[:2],
        *content.buffers,
        totals,
    )
    if totals[kernel.T_ERROR]:
        base_offset = plan[totals[kernel.T_ERROR] - 1, kernel.P_BASE_OFFSET]
        raise KafkaError(
            ErrorCode.invalid_record, f"{topic}-{partition}: the batch at offset {base_offset} is malformed"
        )
    rows = int(totals[kernel.T_ROWS])
    if with_headers and name.bytes[: totals[kernel.T_NAME]].max(initial=0) > 0x7F:
        return None
    columns: list[pa.Array] = []
    for field in schema:
        if field.name == "key":
            column = key.array(rows, totals[kernel.T_KEY], totals[kernel.T_KEY_NULLS], pa.binary())
        elif field.name == "value":
            column = value.array(rows, totals[kernel.T_VALUE], totals[kernel.T_VALUE_NULLS], pa.binary())
        elif field.name == "topic":
            column = repeated_string(topic, rows)
        elif field.name == "partition":
            column = repeated_int(partition, rows)
        elif field.name == "offset":
            column = _fixed(offsets, rows, pa.int64())
        elif field.name == "timestamp":
            column = _fixed(timestamps, rows, ARROW_TYPES["timestamp"])
        elif field.name == "timestampType":
            column = _fixed(timestamp_types, rows, pa.int32())
        else:
            count = int(totals[kernel.T_HEADERS])
            names_array = name.array(count, totals[kernel.T_NAME], 0, pa.string())
            contents = content.array(count, totals[kernel.T_CONTENT], totals[kernel.T_CONTENT_NULLS], pa.binary())
            entries = pa.StructArray.from_arrays([names_array, contents], fields=list(HEADER_ARROW))
            nulls = int(totals[kernel.T_HEADER_NULLS])
            validity = pa.py_buffer(header_valid) if nulls else None
            buffers = [validity, pa.py_buffer(header_ends)]
            column = pa.Array.from_buffers(ARROW_TYPES["headers"], rows, buffers, nulls, children=[entries])
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class _Binary:
    """The buffers of one column of strings or binary values: the values' ends, their bytes, and a validity bitmap.

    A column that isn't wanted gets buffers of minimal size, because the kernel takes buffers for every column.
    """

    def __init__(self, wanted: bool, rows_max: int, bytes_max: int) -> None:
        self.wanted = wanted
        self.ends = _empty(rows_max + 1 if wanted else 1, np.int32)
        self.ends[0] = 0
        self.bytes = _empty(bytes_max if wanted else 0, np.uint8)
        self.valid = np.zeros((rows_max >> 3) + 1 if wanted else 1, np.uint8)

    @property
    def buffers(self) -> tuple[Any, Any, Any]:
        return self.ends, self.bytes, self.valid

    def array(self, rows: int, size: int, nulls: int, kind: pa.DataType) -> pa.Array:
        validity = pa.py_buffer(self.valid) if nulls else None
        buffers = [validity, pa.py_buffer(self.ends), pa.py_buffer(self.bytes[: int(size)])]
        return pa.Array.from_buffers(kind, rows, buffers, int(nulls))


def _empty(count: int, kind: Any) -> Any:
    """An uninitialised array in the memory of Arrow's pool.

    The pool keeps freed memory for the next batch, whereas numpy would get it from the operating system each time.
    """
    return np.frombuffer(pa.allocate_buffer(count * np.dtype(kind).itemsize), kind)


def _fixed(values: Any, rows: int, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(values)], 0)
