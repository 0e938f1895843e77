"""From a record's value to columns: text, bytes, JSON, and the envelope of Kafka Connect's JsonConverter.

A value that can't be decoded fails its row. A value that is null (a tombstone) gives a row whose columns are null: a
step may filter it out, and a topic as sink gets a null value again.

Source: Kafka's org.apache.kafka.connect.json.JsonConverter (`schemas.enable=true`).
"""

from __future__ import annotations

from typing import Literal

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from .flow import RECORD, Flow, failure, no_failure
from .spec import DDL_OF_TEXT, Decoding

_STAGE = "VALUE_CONVERTER"
_JSON_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"
_STRING_CONVERTER = "org.apache.kafka.connect.storage.StringConverter"
_CORRUPT = "_corrupt"
_MESSAGE_BYTES = 100  # of a value that is quoted in a message


def decoded(flow: Flow, format: Decoding | Literal["csv"], schema: str) -> Flow:
    """The flow of records with their values decoded. Before, it has the column `_record` alone. `schema` is a DDL text,
    empty for the format's own columns. Raises ParseException if Spark can't parse the schema."""
    records, value = flow.rows, f.col(f"{RECORD}.value")
    if format == "bytes":
        return flow.through(records.select(value.alias("value"), RECORD))
    text = value.cast("string")
    not_text = value.isNotNull() & ~f.is_valid_utf8(text)
    refusal = f.when(not_text, failure(_STAGE, _STRING_CONVERTER, f.lit("the value is no text (UTF-8)")))
    if format == "text":
        return flow.checked(records.select(text.alias("value"), RECORD), refusal.otherwise(no_failure()))
    if format == "json" and not schema:
        parsed = records.select(f.try_parse_json(text).alias("value"), RECORD)
        wrong = value.isNotNull() & f.col("value").isNull()
        message = f.concat(f.lit("the value is no JSON: "), _shown(text))
        return flow.checked(
            parsed, refusal.when(wrong, failure(_STAGE, _JSON_CONVERTER, message)).otherwise(no_failure())
        )
    return _typed(flow, format, schema, text, refusal)


def _typed(flow: Flow, format: str, schema: str, text: Column, refusal: Column) -> Flow:
    """JSON, CSV, or the payload of an envelope, whose fields are the columns of `schema`."""
    enveloped = format == "connect-json"
    fields = StructType.fromDDL(schema or DDL_OF_TEXT)
    assert isinstance(fields, StructType)
    plain = enveloped and fields.fieldNames() == ["value"]  # the payload itself is the value
    payload = fields["value"].dataType.simpleString() if plain else fields.simpleString()
    whole = f"schema variant, payload {payload}" if enveloped else ", ".join(_columns(fields))
    parse = f.from_csv if format == "csv" else f.from_json
    permissive = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    parsed = parse(text, f"{whole}, {_CORRUPT} string", permissive)
    known = f.col("_parsed")
    there = f.col(f"{RECORD}.value").isNotNull()
    wrong = there & (known.isNull() | known[_CORRUPT].isNotNull())
    message = f.concat(f.lit(f"the value doesn't fit the schema '{schema or DDL_OF_TEXT}': "), _shown(text))
    refusal = refusal.when(wrong, failure(_STAGE, _JSON_CONVERTER, message))
    if enveloped:
        keys = f.json_object_keys(text)
        exact = (f.size(keys) == 2) & f.array_contains(keys, "schema") & f.array_contains(keys, "payload")
        sentence = 'JsonConverter with schemas.enable requires "schema" and "payload" fields, and no other fields'
        refusal = refusal.when(
            there & ~f.coalesce(exact, f.lit(False)), failure(_STAGE, _JSON_CONVERTER, f.lit(sentence))
        )
    rows = flow.rows.withColumn("_parsed", parsed)
    source = known["payload"] if enveloped else known
    columns = [source.alias("value")] if plain else [source[name].alias(name) for name in fields.fieldNames()]
    checked = flow.checked(rows, refusal.otherwise(no_failure()))
    return checked.through(checked.rows.select(*columns, RECORD))


def _columns(fields: StructType) -> list[str]:
    return [f"`{field.name}` {field.dataType.simpleString()}" for field in fields]


def _shown(text: Column) -> Column:
    return f.substring(text, 1, _MESSAGE_BYTES)
