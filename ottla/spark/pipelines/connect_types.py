"""Spark's types as types of Kafka Connect, and columns as the payload of Connect's JsonConverter.

Connect's logical types Date and Timestamp are numbers in a payload: the days and the milliseconds since 1970. All other
types have in a payload the form that Spark's own JSON has. JsonConverter writes a map whose keys aren't text as an
array of pairs. Spark can neither write nor read this form, so such a map is refused.

Source: Kafka's org.apache.kafka.connect.json.JsonConverter, org.apache.kafka.connect.data.{Date,Timestamp}.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from pyspark.sql import Column
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
    StructField,
    StructType,
    TimestampType,
)

from .refusals import SpecError

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
_MILLISECONDS_MAX = (2**63 - 1) // 1000  # a TIMESTAMP of Spark is a number of microseconds in 64 bits


def connect_schema(kind: DataType, where: str, field: str = "", optional: bool | None = None) -> dict[str, Any]:
    """The schema of a type, as JsonConverter writes it. Raises SpecError if Connect has no such type, or if the type
    has a map whose keys aren't text."""
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
        if not isinstance(kind.keyType, StringType):
            told = f"connect-json has no maps but those with keys of text, and a column has {kind.simpleString()}"
            raise SpecError([f"{where}.format: {told}: transform_keys in a step 'sql' can change it"])
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


def payload_type(kind: DataType) -> DataType:
    """The type that a column of `kind` has in a payload."""
    if isinstance(kind, DateType):
        return IntegerType()
    if isinstance(kind, TimestampType):
        return LongType()
    if isinstance(kind, ArrayType):
        return ArrayType(payload_type(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(kind.keyType, payload_type(kind.valueType))
    if isinstance(kind, StructType):
        return StructType([StructField(each.name, payload_type(each.dataType)) for each in kind])
    return kind


def to_payload(value: Column, kind: DataType) -> Column:
    """A column of `kind` as a column of `payload_type(kind)`. Microseconds are left out."""
    return _converted(value, kind, f.unix_date, f.unix_millis)


def from_payload(value: Column, kind: DataType) -> Column:
    """A column of `payload_type(kind)` as a column of `kind`. An error of Spark's ends the query for a value that isn't
    `in_range`."""
    return _converted(value, kind, f.date_from_unix_date, f.timestamp_millis)


def _converted(
    value: Column, kind: DataType, date: Callable[[Column], Column], timestamp: Callable[[Column], Column]
) -> Column:
    """A column whose dates and timestamps, also those inside of other values, are converted. `kind` is the type of the
    column that isn't in a payload."""

    def inside(part: Column, its_kind: DataType) -> Column:
        return _converted(part, its_kind, date, timestamp)

    if isinstance(kind, DateType):
        return date(value)
    if isinstance(kind, TimestampType):
        return timestamp(value)
    if isinstance(kind, ArrayType):
        return f.transform(value, lambda each: inside(each, kind.elementType))
    if isinstance(kind, MapType):
        return f.transform_values(value, lambda _, each: inside(each, kind.valueType))
    if isinstance(kind, StructType):
        fields = f.struct(*(inside(value[each.name], each.dataType).alias(each.name) for each in kind))
        return f.when(value.isNotNull(), fields)
    return value


def in_range(value: Column, kind: DataType) -> Column:
    """Whether Spark has a value of `kind` for a column of `payload_type(kind)`: milliseconds may be too many. It is
    never null."""
    if isinstance(kind, TimestampType):
        fits = value.between(-_MILLISECONDS_MAX, _MILLISECONDS_MAX)
    elif isinstance(kind, ArrayType):
        fits = f.forall(value, lambda each: in_range(each, kind.elementType))
    elif isinstance(kind, MapType):
        fits = f.forall(f.map_values(value), lambda each: in_range(each, kind.valueType))
    elif isinstance(kind, StructType):
        fits = reduce(Column.__and__, (in_range(value[each.name], each.dataType) for each in kind), f.lit(True))
    else:
        return f.lit(True)
    return f.coalesce(fits, f.lit(True))
