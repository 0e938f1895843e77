"""Values in pipelines: what decoding and casts refuse, what columns become in a record, and what tombstones become."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from ottla.protocol.batches import Record
from ottla.spark.pipelines import running
from ottla.spark.pipelines.decoding import decoded
from ottla.spark.pipelines.encoding import encoded
from ottla.spark.pipelines.flow import RECORD, RECORD_TYPE, Flow
from ottla.spark.pipelines.refusals import SpecError
from ottla.spark.pipelines.spec import CastStep, parse
from ottla.spark.pipelines.steps import stepped
from tests.spark.topics import Topics

ROUND_TRIP = (
    "i INT, d DOUBLE, b BOOLEAN, raw BINARY, s STRING, day DATE, at TIMESTAMP, days ARRAY<DATE>, "
    "times MAP<STRING, TIMESTAMP>, inner STRUCT<day: DATE, at: ARRAY<STRUCT<at: TIMESTAMP>>>"
)


def records(spark: SparkSession, values: Sequence[str | None]) -> Flow:
    """A flow of the records of a topic with the key `k`, before they are decoded."""
    coded = [None if value is None else bytearray(value.encode()) for value in values]
    rows = [Row(Row("t", 0, place, None, bytearray(b"k"), value, [])) for place, value in enumerate(coded)]
    return Flow(spark.createDataFrame(rows, f"{RECORD} {RECORD_TYPE}"))


def given(spark: SparkSession, value: str | None, format: Any, schema: str, steps: Sequence[Any] = ()) -> Flow:
    """The flow of one record, decoded and after the steps of a spec."""
    spec = {"name": "p", "source": {"topic": "t"}, "sinks": [{"topic": "t"}], "checkpoint": "c", "steps": steps}
    return stepped(decoded(records(spark, [value]), format, schema), parse(spec).steps)


def messages(flow: Flow) -> list[str]:
    assert flow.all_failed is not None
    return [row._failure.message for row in flow.all_failed.collect()]


def sent(flow: Flow, format: Any = "json", key: str = "") -> list[tuple[str | None, ...]]:
    """The records of a topic as sink: each as its key, if there is one, and its value."""
    rows = encoded(flow.rows, format, key, "sinks[0]").collect()
    return [tuple(each if each is None or isinstance(each, str) else each.decode() for each in row) for row in rows]


@pytest.mark.parametrize(
    "text",
    [
        '{"id":1}{"id":2}',
        '{"id":3} junk',
        '{"id":1},{"id":2}',
        '{"id":1}],[{"id":2}',
        '{"id":1}]',
        '{"id":1',
        "",
        " ",
    ],
)
def test_a_value_with_anything_behind_its_json_fails(spark: SparkSession, text: str) -> None:
    typed = given(spark, text, "json", "id INT")
    assert messages(typed) == [f"the value doesn't fit the schema 'id INT': {text}"]
    assert typed.rows.count() == 0
    variant = given(spark, text, "json", "")
    assert messages(variant) == [f"the value is no JSON: {text}"]
    assert variant.rows.count() == 0


@pytest.mark.parametrize("behind", ["{}", " junk", ',{"schema":1,"payload":2}', "]"])
def test_an_envelope_with_anything_behind_it_fails(spark: SparkSession, behind: str) -> None:
    text = '{"schema":{"type":"string","optional":false},"payload":"a"}'
    assert [row.value for row in given(spark, text, "connect-json", "").rows.collect()] == ["a"]
    flow = given(spark, text + behind, "connect-json", "")
    assert len(messages(flow)) == 1
    assert flow.rows.count() == 0


@pytest.mark.parametrize("text", [' {"id": 1}\n', '{"id": 1, "more": [{"a": "]"}, {}]}'])
def test_a_value_with_white_space_or_more_fields_passes(spark: SparkSession, text: str) -> None:
    assert [row.id for row in given(spark, text, "json", "id INT").rows.collect()] == [1]
    assert given(spark, text, "json", "").rows.count() == 1


def test_milliseconds_that_are_no_timestamp_fail_their_row_alone(spark: SparkSession) -> None:
    flow = decoded(
        records(spark, [f'{{"schema":null,"payload":{{"at":{at}}}}}' for at in (2**63 - 1, 1000)]),
        "connect-json",
        "at TIMESTAMP",
    )
    assert [row.at for row in flow.rows.collect()] == [datetime.fromtimestamp(1, UTC).replace(tzinfo=None)]
    assert messages(flow) == [
        f'the value doesn\'t fit the schema \'at TIMESTAMP\': {{"schema":null,"payload":{{"at":{2**63 - 1}}}}}'
    ]


def test_connect_json_is_read_with_the_schema_with_which_it_was_written(spark: SparkSession) -> None:
    day, at = date(2013, 1, 2), datetime(2013, 1, 2, 3, 4, 5, 678000)
    full = Row(
        1, 2.5, True, bytearray(b"\x00\xff"), "text", day, at, [day, None], {"a": at, "b": None}, Row(day, [Row(at)])
    )
    nulls = Row(*([None] * 10))
    rows = spark.createDataFrame([full, nulls, Row(*([None] * 9), Row(None, None))], ROUND_TRIP)
    told = [value for (value,) in sent(Flow(rows.where("i IS NOT NULL OR inner IS NOT NULL")), "connect-json")]
    payload = json.loads(told[0] or "")["payload"]
    assert (payload["day"], payload["at"]) == (15707, 1357095845678)
    assert payload["days"] == [15707, None]
    assert payload["times"] == {"a": 1357095845678, "b": None}
    assert payload["inner"] == {"day": 15707, "at": [{"at": 1357095845678}]}
    kinds = {
        field["field"]: (field["type"], field.get("name")) for field in json.loads(told[0] or "")["schema"]["fields"]
    }
    assert kinds == {
        "i": ("int32", None),
        "d": ("double", None),
        "b": ("boolean", None),
        "raw": ("bytes", None),
        "s": ("string", None),
        "day": ("int32", "org.apache.kafka.connect.data.Date"),
        "at": ("int64", "org.apache.kafka.connect.data.Timestamp"),
        "days": ("array", None),
        "times": ("map", None),
        "inner": ("struct", None),
    }
    flow = decoded(records(spark, [*told, None]), "connect-json", ROUND_TRIP)
    assert messages(flow) == []
    assert [tuple(row)[:-1] for row in flow.rows.collect()] == [
        tuple(full),
        (*([None] * 9), Row(None, None)),
        tuple(nulls),
    ]


def test_a_lone_value_of_connect_json_keeps_its_fields_that_are_null(spark: SparkSession) -> None:
    schema = "value STRUCT<a: INT, day: DATE>"
    text = '{"schema":null,"payload":{"a":null,"day":15707}}'
    flow = given(spark, text, "connect-json", schema)
    assert flow.rows.first().value.asDict() == {"a": None, "day": date(2013, 1, 2)}  # type: ignore[union-attr]
    ((value,),) = sent(flow, "connect-json")
    assert json.loads(value or "")["payload"] == {"a": None, "day": 15707}


def test_a_payload_that_is_null_stays_a_payload(spark: SparkSession) -> None:
    flow = given(spark, '{"schema":{"type":"string","optional":true},"payload":null}', "connect-json", "")
    assert sent(flow, "connect-json") == [('{"schema":{"type":"string","optional":true},"payload":null}',)]


def test_connect_json_refuses_maps_whose_keys_are_no_text(spark: SparkSession) -> None:
    rows = spark.sql("SELECT array(map(1, 'a')) AS m, 1 AS n")
    with pytest.raises(SpecError) as refused:
        encoded(rows, "connect-json", "", "sinks[0]")
    assert refused.value.lines == [
        "sinks[0].format: connect-json has no maps but those with keys of text, and a column has map<int,string>: "
        "transform_keys in a step 'sql' can change it"
    ]


def test_a_row_whose_columns_are_null_is_no_tombstone(spark: SparkSession) -> None:
    flow = given(spark, '{"id": 1}', "json", "id INT, a STRING, b STRING")
    assert sent(flow, "json", "id") == [("1", "{}")]
    ((key, value),) = sent(flow, "connect-json", "id")
    assert (key, json.loads(value or "")["payload"]) == ("1", {"a": None, "b": None})


@pytest.mark.parametrize("steps", [[], [{"select": ["id", "'eu' AS region", "a"]}]])
def test_a_tombstone_stays_one_and_keeps_its_key(spark: SparkSession, steps: list[Any]) -> None:
    flow = given(spark, None, "json", "id INT, a STRING", steps)
    for format in ("json", "connect-json"):
        assert sent(flow, format, "id") == [("k", None)]
        assert sent(flow, format) == [(None,)]


def test_a_tombstone_has_the_key_of_its_column_if_a_step_made_one(spark: SparkSession) -> None:
    flow = given(spark, None, "json", "id INT, a STRING", [{"select": ["'new' AS id", "a"]}])
    assert sent(flow, "json", "id") == [("new", None)]


def test_a_row_without_a_key_gets_none_from_its_record(spark: SparkSession) -> None:
    assert sent(given(spark, '{"a": "x"}', "json", "id INT, a STRING"), "json", "id") == [(None, '{"a":"x"}')]


def test_rows_without_a_record_are_tombstones_if_their_values_are_null(spark: SparkSession) -> None:
    rows = Flow(spark.sql("SELECT * FROM VALUES ('a', 1), ('b', NULL) AS counts(id, n)"))
    assert sorted(sent(rows, "json", "id")) == [("a", '{"n":1}'), ("b", None)]
    lost = Flow(spark.sql(f"SELECT 'b' AS id, CAST(NULL AS INT) AS n, CAST(NULL AS {RECORD_TYPE}) AS {RECORD}"))
    assert sent(lost, "json", "id") == [("b", None)]


def test_rows_of_parquet_are_no_tombstones(spark: SparkSession) -> None:
    """Their `_record` has the file's path alone."""
    record = f"CAST(('file:/a', NULL, NULL, NULL, NULL, NULL, NULL) AS {RECORD_TYPE}) AS {RECORD}"
    rows = Flow(spark.sql(f"SELECT *, {record} FROM VALUES ('a', 'x'), ('b', NULL) AS rows(id, n)"))
    assert sorted(sent(rows, "json", "id")) == [("a", '{"n":"x"}'), ("b", "{}")]
    failed = stepped(rows, [CastStep(cast={"n": "INT"})]).all_failed
    assert failed is not None
    (row,) = failed.collect()
    assert (row[RECORD].topic, bytes(row[RECORD].value)) == ("file:/a", b'{"id":"a","n":"x"}')


def test_a_row_of_parquet_that_ends_the_pipeline_is_told_by_its_file(spark: SparkSession) -> None:
    record = f"CAST(('file:/a', NULL, NULL, NULL, NULL, NULL, NULL) AS {RECORD_TYPE}) AS {RECORD}"
    rows = Flow(spark.sql(f"SELECT 'x' AS n, {record}"), fatal=True)
    with pytest.raises(Exception, match=r"n: 'x' is no INT \(file:/a\)"):
        stepped(rows, [CastStep(cast={"n": "INT"})]).rows.collect()


@pytest.mark.parametrize("text", ['{"id":1,"name":null}', "[1,2]", '"a"', "7", "null"])
def test_a_variant_is_written_as_it_came(spark: SparkSession, text: str) -> None:
    assert sent(given(spark, text, "json", "")) == [(text,)]


def test_a_variant_beside_other_columns_is_a_field(spark: SparkSession) -> None:
    flow = given(spark, '{"id":1}', "json", "", [{"select": ["value", "2 AS n"]}])
    assert sent(flow) == [('{"value":{"id":1},"n":2}',)]


@pytest.mark.parametrize(
    ("step", "line"),
    [
        ({"drop": ["inner.a"]}, "steps[0].drop: there is no column 'inner.a'"),
        ({"rename": {"inner.a": "b"}}, "steps[0].rename: there is no column 'inner.a'"),
        ({"mask": ["inner.a"]}, "steps[0].mask: there is no column 'inner.a'"),
        ({"cast": {"inner.a": "INT"}}, "steps[0].cast: there is no column 'inner.a'"),
    ],
)
def test_steps_refuse_nested_fields(spark: SparkSession, step: dict[str, Any], line: str) -> None:
    with pytest.raises(SpecError) as refused:
        given(spark, "{}", "json", "inner STRUCT<a: STRING>", [step])
    assert refused.value.lines == [f"{line}; the columns are inner: a step 'sql' can change nested fields"]


def test_steps_find_a_column_whose_name_has_a_dot(spark: SparkSession) -> None:
    flow = given(spark, '{"a.b": "12", "c": 1}', "json", "`a.b` STRING, c INT", [{"mask": ["a.b"]}, {"drop": ["c"]}])
    assert [row["a.b"] for row in flow.rows.collect()] == ["00"]


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Ab-12", "xx-00"),
        ("Łódź Иван 李小龙", "xxxx xxxx xxx"),
        ("नमस्ते", "xxxxxx"),
        ("٣٤ ५ ② Ⅷ", "00 0 0 0"),
        ("a\u0301 😀!", "xx 😀!"),
    ],
)
def test_mask_covers_letters_and_digits_of_every_script(spark: SparkSession, text: str, masked: str) -> None:
    flow = given(spark, json.dumps({"card": text}), "json", "card STRING", [{"mask": ["card"]}])
    assert [row.card for row in flow.rows.collect()] == [masked]


@pytest.mark.parametrize(
    ("kind", "wanted", "told"),
    [
        ("ARRAY<STRING>", "ARRAY<INT>", "array<int>"),
        ("ARRAY<STRING>", "STRING", "array<string>"),
        ("STRUCT<a: STRING>", "STRUCT<a: INT>", "struct<a:int>"),
        ("MAP<STRING, STRING>", "MAP<STRING, INT>", "map<string,int>"),
    ],
)
def test_cast_refuses_types_with_values_inside(spark: SparkSession, kind: str, wanted: str, told: str) -> None:
    with pytest.raises(SpecError) as refused:
        given(spark, "{}", "json", f"b {kind}", [{"cast": {"b": wanted}}])
    assert refused.value.lines == [
        f"steps[0].cast: 'b': values inside of {told} can't be checked one by one: a step 'sql' can cast them"
    ]


def test_cast_shows_the_beginning_of_a_long_value(spark: SparkSession) -> None:
    flow = given(spark, json.dumps({"n": "x" * 1000}), "json", "n STRING", [{"cast": {"n": "INT"}}])
    assert messages(flow) == [f"n: '{'x' * 100}' is no INT"]


def test_a_pipeline_passes_tombstones_on_and_makes_none(
    spark: SparkSession, bootstrap: str, topics: Topics, tmp_path: Path
) -> None:
    source, sink = topics.create(1), topics.create(1)
    topics.write(source, 0, [Record(0, 0, b"1", b'{"id": 1}'), Record(1, 0, b"2", None), Record(2, 0, b"3", b"no")])
    pipeline = parse(
        {
            "name": f"values-{sink}",
            "source": {"topic": source, "format": "json", "schema": "id INT, a STRING"},
            "sinks": [
                {"topic": sink, "key": "id"},
                {"file": str(tmp_path / "out"), "format": "json"},
                {"files": str(tmp_path / "table")},
            ],
            "errors": {"table": str(tmp_path / "failed")},
            "trigger": "once",
            "checkpoint": str(tmp_path / "state"),
        }
    )
    running.run(spark, {"p": pipeline}, {"p": {"bootstrap.servers": bootstrap}}, lambda _: None)
    assert [(record.key, record.value) for record in topics.records(sink)] == [(b"1", b"{}"), (b"2", None)]
    assert (tmp_path / "out").read_text() == '{"id":1}\nnull\n'
    assert spark.read.parquet(str(tmp_path / "table")).columns == ["id", "a"]
