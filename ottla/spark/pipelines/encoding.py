"""From columns to a record's value: text, bytes, JSON, and the envelope of Kafka Connect's JsonConverter.

The envelope has the columns' types in Connect's words. DATE and TIMESTAMP are Connect's logical types: the days
and the milliseconds since 1970. A row whose columns are all null becomes a null value,
a tombstone.

Source: Kafka's org.apache.kafka.connect.json.JsonConverter, org.apache.kafka.connect.data.{Date,Timestamp}.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
    VariantType,
)

from .refusals import SpecError
from .spec import Encoding

_PLAIN: dict[type[DataType], str] = {
    BooleanType: "boolean",
    ByteType: "int8",
    ShortType: "int16",
    IntegerType: "int32",
    LongType: "int64",
    FloatType: "float",
    DoubleType: "double",
    StringType: "string",
    BinaryType: "bytes",
}
_DATA = "org.apache.kafka.connect.data"
_KEEP_NULLS = {"ignoreNullFields": "false"}


def encoded(rows: DataFrame, format: Encoding, key: str, where: str) -> DataFrame:
    """The columns `key` and `value` of records. `key` names the column that becomes the key, and is empty if records
    have none. Raises SpecError, whose line begins with `where`, if the columns don't fit the format."""
    names = [name for name in rows.columns if name != key]
    if key and key not in rows.columns:
        raise SpecError([f"{where}.key: there is no column '{key}'; the columns are {', '.join(rows.columns)}"])
    if not names:
        raise SpecError([f"{where}.key: '{key}' is the only column, so nothing is left for the value"])
    value = _value(rows.select(*names).schema, format, where)
    if not key:
        return rows.select(value.alias("value"))
    return rows.select(_key(rows.schema[key].dataType, key, where).alias("key"), value.alias("value"))


def _key(kind: DataType, name: str, where: str) -> Column:
    if isinstance(kind, BinaryType | StringType):
        return f.col(f"`{name}`")
    if isinstance(kind, StructType | ArrayType | MapType | VariantType):
        raise SpecError(
            [f"{where}.key: the column '{name}' is {kind.simpleString()}; a key is text, bytes or a number"]
        )
    return f.col(f"`{name}`").cast("string")


def _value(columns: StructType, format: Encoding, where: str) -> Column:
    names = columns.fieldNames()
    if format in ("text", "bytes"):
        kind = columns[0].dataType
        fits = isinstance(kind, StringType) or (format == "bytes" and isinstance(kind, BinaryType))
        if len(names) != 1 or not fits:
            told = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in columns)
            wanted = "STRING" if format == "text" else "BINARY or STRING"
            raise SpecError([f"{where}.format: {format} needs one column, {wanted}; the columns are {told}"])
        return f.col(f"`{names[0]}`")
    absent = f.lit(True)
    for name in names:
        absent = absent & f.col(f"`{name}`").isNull()
    whole = f.struct(*(f.col(f"`{name}`") for name in names))
    if format == "json":
        return f.when(~absent, f.to_json(whole))
    plain = names == ["value"]
    schema = connect_schema(columns["value"].dataType if plain else columns, where)
    if plain:
        payload = _json_of(f.col("value"), columns["value"].dataType)
    else:
        fields = [_connect(f.col(f"`{field.name}`"), field.dataType).alias(field.name) for field in columns]
        payload = f.to_json(f.struct(*fields), _KEEP_NULLS)
    envelope = f.concat(f.lit('{"schema":' + _compact(schema) + ',"payload":'), payload, f.lit("}"))
    return f.when(~absent, envelope)


def _json_of(value: Column, kind: DataType) -> Column:
    """A single value as JSON. Spark writes objects and arrays only, so the value is taken out of an array."""
    text = f.to_json(f.array(_connect(value, kind)))
    return f.substr(text, f.lit(2), f.length(text) - 2)


def _compact(schema: dict[str, Any]) -> str:
    return json.dumps(schema, separators=(",", ":"), ensure_ascii=False)


def connect_schema(kind: DataType, where: str, field: str = "", optional: bool | None = None) -> dict[str, Any]:
    """The schema of a type, as JsonConverter writes it. Raises SpecError if Connect has no such type."""
    schema: dict[str, Any]
    if type(kind) in _PLAIN:
        schema = {"type": _PLAIN[type(kind)]}
    elif isinstance(kind, DateType):
        schema = {"type": "int32", "name": f"{_DATA}.Date", "version": 1}
    elif isinstance(kind, TimestampType):
        schema = {"type": "int64", "name": f"{_DATA}.Timestamp", "version": 1}
    elif isinstance(kind, ArrayType):
        schema = {"type": "array", "items": connect_schema(kind.elementType, where, optional=True)}
    elif isinstance(kind, MapType):
        keys, values = (connect_schema(each, where, optional=True) for each in (kind.keyType, kind.valueType))
        schema = {"type": "map", "keys": keys, "values": values}
    elif isinstance(kind, StructType):
        inside = [connect_schema(each.dataType, where, each.name, each.nullable) for each in kind]
        schema = {"type": "struct", "fields": inside}
    else:
        raise SpecError(
            [f"{where}.format: connect-json has no type for {kind.simpleString()}: a step 'cast' can change it"]
        )
    schema["optional"] = bool(optional)
    if field:
        schema["field"] = field
    return schema


def _connect(value: Column, kind: DataType) -> Column:
    """A column in the form in which JsonConverter writes it into the payload."""
    if isinstance(kind, DateType):
        return f.unix_date(value)
    if isinstance(kind, TimestampType):
        return f.unix_millis(value)
    if isinstance(kind, ArrayType):
        return f.transform(value, lambda each: _connect(each, kind.elementType))
    if isinstance(kind, MapType):
        return f.transform_values(value, lambda _, each: _connect(each, kind.valueType))
    if isinstance(kind, StructType):
        inside = f.struct(*(_connect(value[each.name], each.dataType).alias(each.name) for each in kind))
        return f.when(value.isNotNull(), inside)
    return value
