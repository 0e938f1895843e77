"""Record sets to Arrow without a Python loop over records: sizes buffers, the kernel fills them, wraps them. No I/O.

Batches are taken together until their records fill BYTES_MAX, so that Spark gets Arrow batches of a useful size
whatever the producer's batch size was. Where numba is missing, or a header's name isn't plain ASCII (Arrow wants valid
UTF-8), the twin in `decode_python` takes over.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa

from ottla.protocol.batches import HEADER_SIZE
from ottla.protocol.codecs import decompress
from ottla.protocol.errors import ErrorCode, KafkaError

from . import decode_python
from .schema import ARROW_TYPES, HEADER_ARROW, repeated_int, repeated_string
from .selection import SelectedBatch

kernel: ModuleType | None
try:
    from . import kernel
except ImportError:  # numba is missing, or doesn't support this Python yet
    kernel = None

BYTES_MAX = 16 << 20


def decode(
    record_set: bytes,
    batches: Iterator[SelectedBatch],
    start: int,
    end: int,
    topic: str,
    partition: int,
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    """Arrow record batches of `schema` with the records whose offsets are in [start, end).

    `schema` names any of Kafka's columns, in any order. Raises KafkaError invalid_record for a malformed record.
    """
    if kernel is None:
        yield from decode_python.decode(record_set, batches, start, end, topic, partition, schema)
        return
    for group in _groups(record_set, batches):
        made = _arrow(record_set, group, start, end, topic, partition, schema)
        if made is None:
            chosen = iter([batch for batch, _ in group])
            yield from decode_python.decode(record_set, chosen, start, end, topic, partition, schema)
        elif made.num_rows:
            yield made


def _groups(
    record_set: bytes, batches: Iterator[SelectedBatch]
) -> Iterator[list[tuple[SelectedBatch, bytes | bytearray | memoryview]]]:
    """Batches with their uncompressed records, in groups of at most BYTES_MAX and at least one batch."""
    group: list[tuple[SelectedBatch, bytes | bytearray | memoryview]] = []
    view = memoryview(record_set)
    size = 0
    for batch in batches:
        start, header = batch
        payload = decompress(header.codec, view[start + HEADER_SIZE : start + header.size])
        if group and size + len(payload) > BYTES_MAX:
            yield group
            group, size = [], 0
        group.append((batch, payload))
        size += len(payload)
    if group:
        yield group


def _arrow(
    record_set: bytes,
    group: list[tuple[SelectedBatch, bytes | bytearray | memoryview]],
    start: int,
    end: int,
    topic: str,
    partition: int,
    schema: pa.Schema,
) -> pa.RecordBatch | None:
    """None where a header's name needs the twin's care."""
    assert kernel is not None
    source, plan = _source(record_set, group)
    rows_max = sum(batch.header.count for batch, _ in group)
    bytes_max = sum(len(payload) for _, payload in group)
    names = set(schema.names)
    key = _Binary("key" in names, rows_max, bytes_max)
    value = _Binary("value" in names, rows_max, bytes_max)
    with_headers = "headers" in names
    headers_max = bytes_max // 2 if with_headers else 0  # a header takes two bytes at least
    name = _Binary(with_headers, headers_max, bytes_max)
    content = _Binary(with_headers, headers_max, bytes_max)
    header_ends = np.zeros(rows_max + 1 if with_headers else 1, np.int32)
    header_valid = np.zeros((rows_max >> 3) + 1, np.uint8)
    offsets, timestamps = np.empty(rows_max, np.int64), np.empty(rows_max, np.int64)
    timestamp_types = np.empty(rows_max, np.int32)
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
        batch = group[totals[kernel.T_ERROR] - 1][0]
        raise KafkaError(
            ErrorCode.invalid_record,
            f"{topic}-{partition}: the batch at offset {batch.header.base_offset} is malformed",
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


def _source(record_set: bytes, group: list[tuple[SelectedBatch, bytes | bytearray | memoryview]]) -> tuple[Any, Any]:
    """The bytes that hold all records, and the kernel's plan. Copies only where a batch was compressed."""
    assert kernel is not None
    in_place = all(batch.header.codec == 0 for batch, _ in group)
    rows = []
    position = 0
    for (start, header), payload in group:
        first = start + HEADER_SIZE if in_place else position
        position += len(payload)
        append_time = header.max_timestamp if header.log_append_time else kernel.NOT_APPENDED
        rows.append((first, first + len(payload), header.base_offset, header.base_timestamp, append_time, header.count))
    joined = record_set if in_place else b"".join(payload for _, payload in group)
    return np.frombuffer(joined, np.uint8), kernel.plan_array(rows)


class _Binary:
    """Buffers of one variable-length column; nearly empty ones where it isn't wanted."""

    def __init__(self, wanted: bool, rows_max: int, bytes_max: int) -> None:
        self.wanted = wanted
        self.ends = np.empty(rows_max + 1 if wanted else 1, np.int32)
        self.ends[0] = 0
        self.bytes = np.empty(bytes_max if wanted else 0, np.uint8)
        self.valid = np.zeros((rows_max >> 3) + 1 if wanted else 1, np.uint8)

    @property
    def buffers(self) -> tuple[Any, Any, Any]:
        return self.ends, self.bytes, self.valid

    def array(self, rows: int, size: int, nulls: int, kind: pa.DataType) -> pa.Array:
        validity = pa.py_buffer(self.valid) if nulls else None
        buffers = [validity, pa.py_buffer(self.ends), pa.py_buffer(self.bytes[: int(size)])]
        return pa.Array.from_buffers(kind, rows, buffers, int(nulls))


def _fixed(values: Any, rows: int, kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(values)], 0)
