"""From columns to a record's value: text, bytes, JSON, and the envelope of Kafka Connect's JsonConverter.

A tombstone of the source stays a tombstone: a row whose record had a null value becomes a record with a null value,
whatever its columns are. A row that has lost its record, as an aggregate has, becomes a tombstone if the columns of its
value are all null. No other row does: a null value on a compacted topic deletes the key's last value.

Source: Kafka's org.apache.kafka.connect.json.JsonConverter.
"""

from __future__ import annotations

import json
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType, VariantType

from .connect_types import connect_schema, to_payload
from .flow import RECORD
from .refusals import SpecError
from .spec import Encoding

_KEEP_NULLS = {"ignoreNullFields": "false"}


def encoded(rows: DataFrame, format: Encoding, key: str, where: str) -> DataFrame:
    """The columns `key` and `value` of records, from rows that may have the column `_record`. `key` names the column
    that becomes the key, and is empty if records have none. A tombstone whose column `key` is null has the key of its
    record. Raises SpecError, whose line begins with `where`, if the columns don't fit the format."""
    recorded = RECORD in rows.columns
    columns = rows.drop(RECORD)
    names = [name for name in columns.columns if name != key]
    if key and key not in columns.columns:
        raise SpecError([f"{where}.key: there is no column '{key}'; the columns are {', '.join(columns.columns)}"])
    if not names:
        raise SpecError([f"{where}.key: '{key}' is the only column, so nothing is left for the value"])
    empty = reduce(Column.__and__, (f.col(f"`{name}`").isNull() for name in names))
    tombstone = f.when(f.col(RECORD).isNotNull(), _of_a_tombstone()).otherwise(empty) if recorded else empty
    value = f.when(~tombstone, _value(columns.select(*names).schema, format, where)).alias("value")
    if not key:
        return rows.select(value)
    made = _key(columns.schema[key].dataType, key, where)
    if recorded:
        made = f.coalesce(made.cast("binary"), f.when(_of_a_tombstone(), f.col(RECORD)["key"]))
    return rows.select(made.alias("key"), value)


def _of_a_tombstone() -> Column:
    """Whether the row came from a record whose value is null. A row of Parquet has no offset, and no value either."""
    return f.col(RECORD)["offset"].isNotNull() & f.col(RECORD)["value"].isNull()


def _key(kind: DataType, name: str, where: str) -> Column:
    if isinstance(kind, BinaryType | StringType):
        return f.col(f"`{name}`")
    if isinstance(kind, StructType | ArrayType | MapType | VariantType):
        raise SpecError(
            [f"{where}.key: the column '{name}' is {kind.simpleString()}; a key is text, bytes or a number"]
        )
    return f.col(f"`{name}`").cast("string")


def _value(columns: StructType, format: Encoding, where: str) -> Column:
    """The value of a row that is no tombstone. It is null only for NULL as text or bytes, which have no word for it."""
    names = columns.fieldNames()
    lone = columns[0].dataType if names == ["value"] else None
    if format in ("text", "bytes"):
        kind = columns[0].dataType
        fits = isinstance(kind, StringType) or (format == "bytes" and isinstance(kind, BinaryType))
        if len(names) != 1 or not fits:
            told = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in columns)
            wanted = "STRING" if format == "text" else "BINARY or STRING"
            raise SpecError([f"{where}.format: {format} needs one column, {wanted}; the columns are {told}"])
        return f.col(f"`{names[0]}`")
    if format == "json" and isinstance(lone, VariantType):
        return f.coalesce(f.to_json("value"), f.lit("null"))
    if format == "json":
        return f.to_json(f.struct(*(f.col(f"`{name}`") for name in names)))
    if lone is not None:
        value = f.col("value")
        text = f.to_json(f.array(to_payload(value, lone)), _KEEP_NULLS)  # Spark writes objects and arrays only
        payload = f.substr(text, f.lit(2), f.length(text) - 2)
        null = _envelope(connect_schema(lone, where, optional=True), f.lit("null"))
        return f.when(value.isNull(), null).otherwise(_envelope(connect_schema(lone, where), payload))
    fields = [to_payload(f.col(f"`{field.name}`"), field.dataType).alias(field.name) for field in columns]
    return _envelope(connect_schema(columns, where), f.to_json(f.struct(*fields), _KEEP_NULLS))


def _envelope(schema: dict[str, Any], payload: Column) -> Column:
    compact = json.dumps(schema, separators=(",", ":"), ensure_ascii=False)
    return f.concat(f.lit('{"schema":' + compact + ',"payload":'), payload, f.lit("}"))
