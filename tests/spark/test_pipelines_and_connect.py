"""Pipelines beside Kafka Connect's file connectors with JsonConverter: each reads what the other has written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ottla.spark.pipelines import running
from ottla.spark.pipelines.spec import parse
from tests.peers.connect_worker import connect_worker, wait_for
from tests.spark.topics import Topics

JSON = {"value.converter": "org.apache.kafka.connect.json.JsonConverter", "value.converter.schemas.enable": "true"}


def run(spark: SparkSession, bootstrap: str, state: Path, **spec: object) -> None:
    pipeline = parse(spec | {"checkpoint": str(state), "trigger": "once"})
    running.run(spark, {pipeline.name: pipeline}, {pipeline.name: {"bootstrap.servers": bootstrap}}, lambda _: None)


@pytest.mark.timeout(400)
def test_each_reads_what_the_other_has_written(
    spark: SparkSession, bootstrap: str, topics: Topics, tmp_path: Path
) -> None:
    ours, theirs = topics.create(1, name="ours"), topics.create(1, name="theirs")
    lines = [f"line {n}" for n in range(20)] + ["ä “quoted” \\ back", ""]
    (tmp_path / "in.txt").write_text("".join(line + "\n" for line in lines))
    run(
        spark,
        bootstrap,
        tmp_path / "state-1",
        name=f"source-{ours}",
        source={"files": str(tmp_path / "in.txt")},
        sinks=[{"topic": ours, "format": "connect-json"}],
    )
    connectors = {
        "source": {"connector.class": "FileStreamSource", "file": str(tmp_path / "in.txt"), "topic": theirs},
        "sink": {
            "connector.class": "FileStreamSink",
            "file": str(tmp_path / "connect.txt"),
            "topics": ours,
            "consumer.override.auto.offset.reset": "earliest",
        },
    }
    out = tmp_path / "connect.txt"
    with connect_worker(bootstrap, 1, f"connect-{ours}", tmp_path, session_timeout_ms="10000") as connect:
        for kind, config in connectors.items():
            body = {"name": f"{kind}-{ours}", "config": config | JSON | {"tasks.max": "1"}}
            wait_for(lambda body=body: connect.ask("POST", "/connectors", body), f"{kind} connector")
        wait_for(
            lambda: out.exists() and len(out.read_text().splitlines()) == len(lines), "the lines in Connect's file"
        )
        wait_for(lambda: topics.end(theirs) == len(lines), "the lines in Connect's topic")
    assert out.read_text().splitlines() == lines
    run(
        spark,
        bootstrap,
        tmp_path / "state-2",
        name=f"sink-{theirs}",
        source={"topic": theirs, "format": "connect-json"},
        sinks=[{"file": str(tmp_path / "ours.txt")}],
        errors={"table": str(tmp_path / "failed")},
    )
    assert (tmp_path / "ours.txt").read_text().splitlines() == lines


@pytest.mark.timeout(400)
def test_connect_reads_structs_that_a_pipeline_wrote(
    spark: SparkSession, bootstrap: str, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create(1)
    rows = [
        {"id": 1, "name": "a", "tags": ["x", "y"], "day": "2013-01-02", "counts": {"x": 1, "y": None}},
        {"id": 2, "name": None, "tags": [], "day": None, "counts": {}},
    ]
    (tmp_path / "in.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(
        spark,
        bootstrap,
        tmp_path / "state",
        name=f"source-{topic}",
        source={
            "files": str(tmp_path / "in.json"),
            "format": "json",
            "schema": "id BIGINT, name STRING, tags ARRAY<STRING>, day DATE, counts MAP<STRING, INT>",
        },
        sinks=[{"topic": topic, "format": "connect-json"}],
    )
    out = tmp_path / "connect.txt"
    config = {
        "connector.class": "FileStreamSink",
        "file": str(out),
        "topics": topic,
        "tasks.max": "1",
        "consumer.override.auto.offset.reset": "earliest",
    }
    with connect_worker(bootstrap, 1, f"connect-{topic}", tmp_path, session_timeout_ms="10000") as connect:
        body = {"name": f"sink-{topic}", "config": config | JSON}
        wait_for(lambda: connect.ask("POST", "/connectors", body), "sink connector")
        wait_for(lambda: out.exists() and len(out.read_text().splitlines()) == 2, "the structs in Connect's file")
    first, second = out.read_text().splitlines()
    assert first.startswith("Struct{id=1,name=a,tags=[x, y],day=Wed Jan 02 ")
    assert first.endswith(",counts={x=1, y=null}}")
    assert second == "Struct{id=2,tags=[],counts={}}"
