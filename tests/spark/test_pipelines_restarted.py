"""Pipelines that start again: from their checkpoint, from another one, with other sinks, and after a refusal."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from ottla.protocol.batches import Record
from ottla.spark.jobs.frames import batch
from ottla.spark.pipelines import running
from ottla.spark.pipelines.confirming import Unconfirmed
from ottla.spark.pipelines.refusals import SpecError
from ottla.spark.pipelines.sources import start_at
from ottla.spark.pipelines.spec import TopicSource, parse
from tests.spark.topics import Topics

Run = Callable[..., str]


@pytest.fixture
def run(spark: SparkSession, bootstrap: str, tmp_path: Path) -> Run:
    """Runs a pipeline over everything that its source has. Returns its name, which is new for each test."""
    unique = f"p-{uuid.uuid4().hex[:8]}"

    def runs(confirmed: Mapping[str, str] = running.NOTHING, **spec: Any) -> str:
        whole = {"name": unique, "checkpoint": str(tmp_path / "state"), "trigger": "once"} | spec
        kafka = {"p": {"bootstrap.servers": bootstrap}}
        running.run(spark, {"p": parse(whole)}, kafka, lambda progress: None, confirmed)
        return unique

    return runs


def texts(spark: SparkSession, bootstrap: str, topic: str) -> list[str]:
    rows = batch(spark, bootstrap, topic).orderBy("partition", "offset").collect()
    return [bytes(row.value).decode() for row in rows]


def test_directories_and_files_refuse_a_new_checkpoint(
    run: Run, spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    """The new checkpoint's batch 0 would pass for the old one's, and its rows would be dropped without a word."""
    source = topics.create(1)
    topics.write(source, 0, [Record(0, 0, None, b'{"id": 1}'), Record(1, 0, None, b"bad")])
    out, table, lines = tmp_path / "out", tmp_path / "table", tmp_path / "lines.txt"
    spec = {
        "source": {"topic": source, "format": "json", "schema": "id BIGINT"},
        "sinks": [{"files": str(out)}, {"file": str(lines), "format": "json"}],
        "errors": {"table": str(table)},
    }
    run(**spec)
    topics.write(source, 0, [Record(0, 0, None, b'{"id": 2}')])
    run(**spec)
    assert sorted(row.id for row in spark.read.parquet(str(out)).collect()) == [1, 2]
    assert spark.read.parquet(str(table)).count() == 1
    with pytest.raises(SpecError) as refused:
        run(**spec, checkpoint=str(tmp_path / "another"))
    assert [line.partition(" (id ")[0].partition(": ")[2] for line in refused.value.lines] == [
        f"files {out} belongs to another query",
        f"file {lines} belongs to another query",
        f"table {table} belongs to another query",
    ]
    assert lines.read_text() == '{"id":1}\n{"id":2}\n'


def test_all_queries_begin_at_one_latest(run: Run, spark: SparkSession, bootstrap: str, topics: Topics) -> None:
    """A record that comes before the start of the dead letters' query, and fails, isn't lost."""
    source, sink, dead = topics.create(1), topics.create(1), topics.create(1)
    topics.write(source, 0, [Record(0, 0, None, b'{"id": 0}'), Record(1, 0, None, b"bad before")])
    spec = {
        "source": {"topic": source, "format": "json", "schema": "id BIGINT", "start": "latest"},
        "sinks": [{"topic": sink}],
    }
    run(**spec)
    topics.write(source, 0, [Record(0, 0, None, b'{"id": 1}'), Record(1, 0, None, b"bad after")])
    run(**spec, errors={"topic": dead})
    assert texts(spark, bootstrap, sink) == ['{"id":1}']
    assert texts(spark, bootstrap, dead) == ["bad after"]


def test_partitions_that_came_after_the_first_start_are_read_from_their_beginning(
    bootstrap: str, topics: Topics
) -> None:
    topic = topics.create(2)
    topics.write(topic, 1, [Record(0, 0, None, b"a")])
    source, kafka = TopicSource(topic=topic, start="latest"), {"bootstrap.servers": bootstrap}
    assert json.loads(start_at(source, kafka, None)) == {topic: {"0": 0, "1": 1}}
    assert json.loads(start_at(source, kafka, {topic: {"0": 7}, "gone": {"0": 1}})) == {topic: {"0": 7, "1": -2}}
    assert start_at(TopicSource(topic=topic), kafka, None) == ""


def test_a_refusal_of_transactions_is_answered_by_a_confirmation(
    run: Run, spark: SparkSession, bootstrap: str, topics: Topics, tmp_path: Path
) -> None:
    source, sink = topics.create(1), topics.create(1)
    topics.write(source, 0, [Record(0, 0, None, b"a")])
    spec = {"source": {"topic": source}, "sinks": [{"topic": sink, "format": "text"}]}
    name = run(**spec)
    shutil.rmtree(tmp_path / "state")
    with pytest.raises(Unconfirmed, match=f"the option --confirm '{name}.topic-1=replace [-0-9a-f]+'$") as refused:
        run(**spec)
    text = str(refused.value).rpartition("=")[2].removesuffix("'")
    run({f"{name}.topic-1": text}, **spec)
    assert texts(spark, bootstrap, sink) == ["a", "a"]


def test_a_file_that_another_program_changed_fails_its_query(run: Run, topics: Topics, tmp_path: Path) -> None:
    source, lines = topics.create(1), tmp_path / "lines.txt"
    topics.write(source, 0, [Record(0, 0, None, b"a")])
    spec = {"source": {"topic": source}, "sinks": [{"file": str(lines)}]}
    run(**spec)
    with open(lines, "a") as file:
        file.write("foreign\n")
    topics.write(source, 0, [Record(0, 0, None, b"b")])
    with pytest.raises(StreamingQueryException, match="had 2 after its last batch: another program has changed it"):
        run(**spec)
    assert lines.read_text() == "a\nforeign\n"
