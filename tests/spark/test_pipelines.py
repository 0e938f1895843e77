"""Pipelines on a real session: Connect's quickstart, rows that fail, restarts, and each step."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ottla.protocol.batches import Record
from ottla.spark.jobs.frames import batch
from ottla.spark.pipelines import running
from ottla.spark.pipelines.progress import Progress
from ottla.spark.pipelines.refusals import SpecError
from ottla.spark.pipelines.spec import parse
from tests.spark.topics import BEGIN_MS, Topics

Run = Callable[..., list[Progress]]


@pytest.fixture
def run(spark: SparkSession, bootstrap: str, tmp_path: Path) -> Run:
    """Runs a pipeline over everything that its source has, and returns its batches. Its name is new, because a topic
    refuses a second checkpoint under one name."""
    unique = f"p-{uuid.uuid4().hex[:8]}"

    def runs(**spec: Any) -> list[Progress]:
        told: list[Progress] = []
        whole = {"name": unique, "checkpoint": str(tmp_path / "state"), "trigger": "once"} | spec
        pipeline = parse(whole)
        running.run(spark, {"p": pipeline}, {"p": {"bootstrap.servers": bootstrap}}, told.append)
        return told

    return runs


def values(spark: SparkSession, bootstrap: str, topic: str) -> list[str | None]:
    rows = batch(spark, bootstrap, topic).orderBy("partition", "offset").collect()
    return [None if row.value is None else bytes(row.value).decode() for row in rows]


def double(rows: DataFrame) -> DataFrame:
    """The function of a step: each number twice."""
    return rows.withColumn("twice", f.col("n") * 2)


def no_frame(rows: DataFrame) -> int:
    """The function of a step that returns no DataFrame."""
    return 3


def test_the_quickstart_of_connect(
    run: Run, spark: SparkSession, bootstrap: str, topics: Topics, tmp_path: Path
) -> None:
    """test.txt → connect-test → test.sink.txt, and each line once when both pipelines run again."""
    topic = topics.create(1, name="connect-test")
    test, sink = tmp_path / "test.txt", tmp_path / "test.sink.txt"
    test.write_text("foo\nbar\nunfinished")

    def both() -> str:
        run(
            name=f"source-{topic}",
            source={"files": str(test)},
            sinks=[{"topic": topic, "format": "connect-json"}],
            checkpoint=str(tmp_path / "source"),
        )
        run(
            name=f"sink-{topic}",
            source={"topic": topic, "format": "connect-json"},
            sinks=[{"file": str(sink)}],
            checkpoint=str(tmp_path / "sink"),
        )
        return sink.read_text()

    assert both() == "foo\nbar\n"
    envelope = '{"schema":{"type":"string","optional":false},"payload":"foo"}'
    assert values(spark, bootstrap, topic)[0] == envelope
    with open(test, "a") as file:
        file.write(" no more\n")
    assert both() == "foo\nbar\nunfinished no more\n"


def test_rows_that_fail_go_to_a_topic_and_the_others_go_on(
    run: Run, spark: SparkSession, bootstrap: str, topics: Topics
) -> None:
    source, sink, dead = topics.create(1), topics.create(1), topics.create(1)
    records = [
        Record(0, 0, b"k", b'{"id": 1, "n": "7"}', [("h", b"v")]),
        Record(1, 0, b"k", b"no json", [("h", b"v")]),
        Record(2, 0, None, b'{"id": 2, "n": "seven"}'),
        Record(3, 0, b"k", b'{"id": "x", "n": "1"}'),
        Record(4, 0, b"k", b"\xff"),
    ]
    topics.write(source, 0, records)
    told = run(
        source={"topic": source, "format": "json", "schema": "id BIGINT, n STRING"},
        steps=[{"cast": {"n": "INT"}}],
        sinks=[{"topic": sink}],
        errors={"topic": dead},
    )
    assert [json.loads(value or "") for value in values(spark, bootstrap, sink)] == [{"id": 1, "n": 7}]
    frame = spark.read.format("ottla").option("kafka.bootstrap.servers", bootstrap).option("subscribe", dead)
    letters = frame.option("includeHeaders", True).load().orderBy("offset").collect()
    found = [
        (
            bytes(row.value),
            {header.key.rpartition(".errors.")[2]: bytes(header.value).decode() for header in row.headers},
        )
        for row in letters
    ]
    assert {value: (headers["stage"], headers["offset"], headers["topic"]) for value, headers in found} == {
        b"no json": ("VALUE_CONVERTER", "1", source),
        b'{"id": 2, "n": "seven"}': ("TRANSFORMATION", "2", source),
        b'{"id": "x", "n": "1"}': ("VALUE_CONVERTER", "3", source),
        b"\xff": ("VALUE_CONVERTER", "4", source),
    }
    by_value = dict(found)
    assert by_value[b"no json"]["h"] == "v", "the record's own headers stay"
    assert by_value[b'{"id": 2, "n": "seven"}']["exception.message"] == "n: 'seven' is no INT"
    assert {progress.query.partition(".")[2] for progress in told} == {"topic-1", "dead-letters"}


def test_without_dead_letters_the_first_row_that_fails_ends_the_pipeline(run: Run, topics: Topics) -> None:
    source, sink = topics.create(1), topics.create(1)
    topics.write(source, 0, [Record(0, 0, None, b"no json")])
    with pytest.raises(Exception, match=rf"the value is no JSON: no json \({source}-0, offset 0\)"):
        run(source={"topic": source, "format": "json"}, sinks=[{"topic": sink}])


def test_steps(run: Run, topics: Topics, tmp_path: Path) -> None:
    source = topics.create(1)
    topics.write(source, 0, [Record(n, 0, None, b'{"n": %d, "card": "Ab-12"}' % n) for n in range(4)])
    run(
        source={"topic": source, "format": "json", "schema": "n INT, card STRING"},
        steps=[
            {"filter": "n > 0"},
            {"python": "tests.spark.test_pipelines:double"},
            {"mask": ["card"]},
            {"sql": "SELECT *, _record.offset AS at, '{x}' AS braces FROM input"},
            {"rename": {"card": "masked"}},
            {"drop": ["n"]},
            {"select": ["twice", "masked", "at + 1 AS next", "braces"]},
        ],
        sinks=[{"file": str(tmp_path / "out"), "format": "json"}],
    )
    rows = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    assert rows == [{"twice": 2 * n, "masked": "xx-00", "next": n + 1, "braces": "{x}"} for n in (1, 2, 3)]


def test_rows_of_one_key_come_once(run: Run, topics: Topics, tmp_path: Path) -> None:
    source = topics.create(1)
    topics.write(source, 0, [Record(n, 1000 * n, None, b'{"id": %d}' % (n % 2)) for n in range(6)])
    run(
        source={"topic": source, "format": "json", "schema": "id INT"},
        steps=[
            {"select": ["id", "_record.timestamp AS at"]},
            {"dedup": {"keys": ["id"], "by": "at", "within": "1 hour"}},
            {"select": ["id"]},
        ],
        sinks=[{"file": str(tmp_path / "out"), "format": "json"}],
    )
    assert sorted((tmp_path / "out").read_text().splitlines()) == ['{"id":0}', '{"id":1}']


def test_the_console_shows_some_rows_and_takes_all(
    run: Run, topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys are remembered from one batch to the next: all tasks of a batch are carried out, whatever is shown."""
    source = topics.create(1)
    steps = [
        {"select": ["CAST(value AS INT) AS id", "_record.timestamp AS at"]},
        {"dedup": {"keys": ["id"], "by": "at", "within": "1 hour"}},
        {"select": ["id"]},
    ]
    topics.write(source, 0, [Record(n, BEGIN_MS + n, None, b"%d" % n) for n in range(8)])
    run(source={"topic": source}, steps=steps, sinks=[{"console": 3}])
    first = capsys.readouterr().out
    assert first.count("id=") == 3
    assert "… and 5 more rows" in first
    topics.write(source, 0, [Record(n, BEGIN_MS + n, None, b"%d" % n) for n in range(10)])
    run(source={"topic": source}, steps=steps, sinks=[{"console": 3}])
    assert sorted(line.strip() for line in capsys.readouterr().out.splitlines() if "id=" in line) == ["id=8", "id=9"]


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ({"steps": [{"drop": ["nope"]}]}, "steps[0].drop: there is no column 'nope'; the columns are value"),
        ({"sinks": [{"topic": "t", "key": "id"}]}, "sinks[0].key: there is no column 'id'; the columns are value"),
        (
            {"sinks": [{"topic": "t", "key": "value"}]},
            "sinks[0].key: 'value' is the only column, so nothing is left for the value",
        ),
        (
            {"steps": [{"sql": "SELECT 1 AS n FROM input"}], "sinks": [{"file": "f"}]},
            "sinks[0].format: text needs one column, STRING; the columns are n int",
        ),
        ({"steps": [{"python": "nowhere:f"}]}, "steps[0].python: nowhere can't be imported: No module named 'nowhere'"),
        (
            {"steps": [{"python": "tests.spark.test_pipelines:nope"}]},
            "steps[0].python: there is no nope in tests.spark.test_pipelines",
        ),
        (
            {"steps": [{"python": "tests.spark.test_pipelines:no_frame"}]},
            "steps[0].python: tests.spark.test_pipelines:no_frame returned int, not a DataFrame",
        ),
        (
            {
                "steps": [{"sql": "SELECT CAST(1 AS DECIMAL(9,2)) AS n FROM input"}],
                "sinks": [{"topic": "t", "format": "connect-json"}],
            },
            "sinks[0].format: connect-json has no type for decimal(9,2): a step 'cast' can change it",
        ),
    ],
)
def test_what_columns_dont_allow_is_refused_before_a_query_starts(
    spark: SparkSession, bootstrap: str, topics: Topics, spec: dict[str, Any], line: str
) -> None:
    whole = {"name": "p", "source": {"topic": topics.create(1)}, "sinks": [{"console": 1}], "checkpoint": "c"} | spec
    with pytest.raises(SpecError) as refused:
        running.queries(spark, parse(whole), {"bootstrap.servers": bootstrap})
    assert refused.value.lines == [line]


@pytest.mark.parametrize("statement", ["DROP VIEW input", "CREATE TABLE made USING parquet AS SELECT 1 AS n"])
def test_a_statement_that_is_no_query_is_not_carried_out(
    spark: SparkSession, bootstrap: str, topics: Topics, statement: str
) -> None:
    whole = {"name": "p", "source": {"topic": topics.create(1)}, "sinks": [{"console": 1}], "checkpoint": "c"}
    with pytest.raises(ParseException):
        running.queries(spark, parse(whole | {"steps": [{"sql": statement}]}), {"bootstrap.servers": bootstrap})
    assert not spark.catalog.tableExists("made")


def test_spark_refuses_sql_that_it_cant_plan(spark: SparkSession, bootstrap: str, topics: Topics) -> None:
    whole = {"name": "p", "source": {"topic": topics.create(1)}, "sinks": [{"console": 1}], "checkpoint": "c"}
    with pytest.raises(AnalysisException, match="nope"):
        running.queries(
            spark, parse(whole | {"steps": [{"sql": "SELECT nope FROM input"}]}), {"bootstrap.servers": bootstrap}
        )
