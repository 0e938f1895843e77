"""From a record's value to columns: text, bytes, JSON, and the envelope of Kafka Connect's JsonConverter.

A value that can't be decoded fails its row, and so does a value with anything behind its JSON. A value that is null (a
tombstone) gives a row whose columns are null: a step may filter it out, and a topic as sink gets a null value again.

Source: Kafka's org.apache.kafka.connect.json.JsonConverter (`schemas.enable=true`).
"""

from __future__ import annotations

from typing import Literal

from pyspark.sql import Column
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType, VariantType

from .connect_types import from_payload, in_range, payload_type
from .flow import RECORD, Flow, failure, no_failure, shown
from .spec import DDL_OF_TEXT, Decoding

_STAGE = "VALUE_CONVERTER"
_JSON_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"
_STRING_CONVERTER = "org.apache.kafka.connect.storage.StringConverter"
_CORRUPT = "_corrupt"
_PERMISSIVE = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}


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
        wrong = value.isNotNull() & (f.col("value").isNull() | ~_is_one_json(text))
        message = f.concat(f.lit("the value is no JSON: "), shown(text))
        return flow.checked(
            parsed, refusal.when(wrong, failure(_STAGE, _JSON_CONVERTER, message)).otherwise(no_failure())
        )
    return _typed(flow, format, schema, text, refusal)


def _typed(flow: Flow, format: str, schema: str, text: Column, refusal: Column) -> Flow:
    """JSON, CSV, or the payload of an envelope, whose fields are the columns of `schema`."""
    fields = StructType.fromDDL(schema or DDL_OF_TEXT)
    assert isinstance(fields, StructType)
    known = f.col("_parsed")
    there = f.col(f"{RECORD}.value").isNotNull()
    columns = [known[name].alias(name) for name in fields.fieldNames()]
    wrong = known.isNull() | known[_CORRUPT].isNotNull()
    if format == "csv":
        parsed = f.from_csv(text, ", ".join(_columns(fields)) + f", {_CORRUPT} string", _PERMISSIVE)
    elif format == "json":
        parsed = f.from_json(text, _with_corrupt(*fields), _PERMISSIVE)
        wrong = wrong | ~_is_one_json(text)
    else:
        kind = fields["value"].dataType if fields.fieldNames() == ["value"] else fields  # a lone value is the payload
        payload = known["payload"]
        envelope = _with_corrupt(StructField("schema", VariantType()), StructField("payload", payload_type(kind)))
        parsed = f.from_json(text, envelope, _PERMISSIVE)
        wrong = wrong | ~_is_one_json(text) | ~in_range(payload, kind)
        if kind is fields:
            columns = [from_payload(payload[field.name], field.dataType).alias(field.name) for field in fields]
        else:
            columns = [from_payload(payload, kind).alias("value")]
    message = f.concat(f.lit(f"the value doesn't fit the schema '{schema or DDL_OF_TEXT}': "), shown(text))
    refusal = refusal.when(there & wrong, failure(_STAGE, _JSON_CONVERTER, message))
    if format == "connect-json":
        keys = f.json_object_keys(text)
        exact = (f.size(keys) == 2) & f.array_contains(keys, "schema") & f.array_contains(keys, "payload")
        sentence = 'JsonConverter with schemas.enable requires "schema" and "payload" fields, and no other fields'
        refusal = refusal.when(
            there & ~f.coalesce(exact, f.lit(False)), failure(_STAGE, _JSON_CONVERTER, f.lit(sentence))
        )
    checked = flow.checked(flow.rows.withColumn("_parsed", parsed), refusal.otherwise(no_failure()))
    return checked.through(checked.rows.select(*columns, RECORD))


def _is_one_json(text: Column) -> Column:
    """Whether a text is one JSON value, and nothing behind it; it is never null.

    Spark reads the first value of a text and ignores the rest. So the text becomes the first item of an array, whose
    second and last item is the text's hash. A text such as `1],[2` can't end the array early and pass, because it
    would have to contain its own hash.
    """
    end = f.sha2(text, 256)
    items = f.from_json(f.concat(f.lit("["), text, f.lit(',"'), end, f.lit('"]')), "array<string>")
    return f.coalesce((f.size(items) == 2) & (items[1] == end), f.lit(False))


def _with_corrupt(*fields: StructField) -> StructType:
    return StructType([*fields, StructField(_CORRUPT, StringType())])


def _columns(fields: StructType) -> list[str]:
    return [f"`{field.name}` {field.dataType.simpleString()}" for field in fields]
