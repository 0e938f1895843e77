"""The columns of Spark's Kafka source, with their types in Spark and in Arrow, and arrays of one repeated value. Pure.

Source: Spark's KafkaRecordToRowConverter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

COLUMNS = (
    ("key", "binary"),
    ("value", "binary"),
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("timestamp", "timestamp"),
    ("timestampType", "int"),
)
HEADERS = ("headers", "array<struct<key: string, value: binary>>")
CREATE_TIME, LOG_APPEND_TIME = 0, 1

HEADER_ARROW = pa.struct([("key", pa.string()), ("value", pa.binary())])
# The largest size of one Kafka batch, uncompressed: Arrow counts the bytes of a column with 32-bit integers. A Java
# client can't read a larger batch either.
BATCH_BYTES_MAX = (1 << 31) - 1
ARROW_TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(HEADER_ARROW),
}


def ddl(include_headers: bool) -> str:
    """The schema of a read as a DDL string, with the column `headers` if `include_headers`."""
    columns = [*COLUMNS, HEADERS] if include_headers else COLUMNS
    return ", ".join(f"{name} {kind}" for name, kind in columns)


def repeated_string(text: str, count: int) -> pa.Array:
    """A string array of `count` values, each of them `text`."""
    return pa.repeat(pa.scalar(text, pa.string()), count)


def repeated_int(value: int, count: int) -> pa.Array:
    """An int32 array of `count` values, each of them `value`."""
    return pa.repeat(pa.scalar(value, pa.int32()), count)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects record batches of `schema` to have."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")
