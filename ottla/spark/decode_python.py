"""Decodes record sets into Arrow record batches, one record after the other, in Python. Pure.

`decode` calls it where numba is missing or a header's name isn't ASCII. Tests compare the compiled kernel with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from ottla.protocol.batches import LOG_APPEND_TIME as APPENDED
from ottla.protocol.batches import Record, records

from .headers import H_ATTRIBUTES, H_POSITION, H_SIZE
from .schema import ARROW_TYPES, BATCH_BYTES_MAX, CREATE_TIME, LOG_APPEND_TIME, repeated_int, repeated_string

ROWS_MAX = 10_000


def decode(
    record_set: bytes | memoryview,
    batches: Any,
    start: int,
    end: int,
    topic: str,
    partition: int,
    schema: pa.Schema,
) -> Iterator[pa.RecordBatch]:
    """Arrow record batches of `schema` with the records whose offsets are in [start, end), as `decode.decode` does."""
    rows: list[tuple[Record, int]] = []
    view = memoryview(record_set)
    for position, size, attributes in batches[:, (H_POSITION, H_SIZE, H_ATTRIBUTES)].tolist():
        kind = LOG_APPEND_TIME if attributes & APPENDED else CREATE_TIME
        for record in records(view[position : position + size], BATCH_BYTES_MAX):
            if start <= record.offset < end:
                rows.append((record, kind))
        if len(rows) >= ROWS_MAX:
            yield _arrow(rows, topic, partition, schema)
            rows = []
    if rows:
        yield _arrow(rows, topic, partition, schema)


def _arrow(rows: list[tuple[Record, int]], topic: str, partition: int, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([_column(field.name, rows, topic, partition) for field in schema], schema=schema)


def _column(name: str, rows: list[tuple[Record, int]], topic: str, partition: int) -> pa.Array:
    kind = ARROW_TYPES[name]
    if name == "topic":
        return repeated_string(topic, len(rows))
    if name == "partition":
        return repeated_int(partition, len(rows))
    if name == "key":
        return pa.array([record.key for record, _ in rows], kind)
    if name == "value":
        return pa.array([record.value for record, _ in rows], kind)
    if name == "offset":
        return pa.array([record.offset for record, _ in rows], kind)
    if name == "timestamp":
        return pa.array([record.timestamp * 1000 for record, _ in rows], pa.int64()).cast(kind)
    if name == "timestampType":
        return pa.array([kind_of_time for _, kind_of_time in rows], kind)
    return pa.array([_headers(record) for record, _ in rows], kind)


def _headers(record: Record) -> list[dict[str, object]] | None:
    """The value of the column `headers`. A record without headers has null, as in Spark's Kafka source."""
    return [{"key": name, "value": value} for name, value in record.headers] or None
