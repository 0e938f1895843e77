"""A spec is read, or refused with the path of each wrong value and the nearest right word."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ottla.cli.pipelines import EXAMPLE
from ottla.spark.pipelines.refusals import SpecError
from ottla.spark.pipelines.spec import Every, FileSource, Pipeline, SqlStep, TopicSink, TopicSource, json_schema, parse

PAGE = Path(__file__).resolve().parents[4] / "docs/pipelines.md"
LEAST = "name: p\nsource: {topic: a}\nsinks: [{topic: b}]\ncheckpoint: c\n"


def spec(text: str) -> Pipeline:
    return parse(yaml.safe_load(text))


def lines(text: str, file: str = "") -> list[str]:
    with pytest.raises(SpecError) as refused:
        parse(yaml.safe_load(text), file)
    return refused.value.lines


def test_the_least_spec_has_the_defaults() -> None:
    assert spec(LEAST) == Pipeline(
        name="p",
        source=TopicSource(topic="a", format="text", start="earliest"),
        sinks=(TopicSink(topic="b", format="json", guarantee="exactly-once"),),
        errors="fail",
        trigger=Every(every="1 second"),
        checkpoint="c",
    )


def test_kinds_are_told_by_their_keys() -> None:
    read = spec(
        "name: p\nsource: {files: /log/*.csv, format: csv, schema: a INT}\nsteps: [{sql: SELECT 1}]\n"
        "sinks: [{console: 3}, {file: x, name: out}, {files: y}]\nerrors: {table: z}\ntrigger: once\ncheckpoint: c\n"
    )
    assert isinstance(read.source, FileSource)
    assert read.source.schema_ == "a INT"
    assert read.steps == (SqlStep(sql="SELECT 1"),)
    assert [name for name, _ in read.named_sinks] == ["console-1", "out", "files-3"]
    assert read.trigger == "once"


def test_properties_are_texts_whatever_yaml_makes_of_them() -> None:
    assert spec(LEAST + "kafka: {a: true, b: 10, c: x}").kafka == {"a": "true", "b": "10", "c": "x"}


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ("stepps: []", "the file: unknown key 'stepps': did you mean 'steps'?"),
        (
            "steps: [{sqll: x}]",
            "steps[0]: its kind is told by one of the keys sql, filter, select, drop, rename, cast, mask, dedup, python"
            ": did you mean 'sql'?",
        ),
        ("steps: [{filter: ''}]", "steps[0].filter: it must not be empty"),
        ("steps: [{cast: 3}]", "steps[0].cast: should be a valid dictionary, and is 3"),
        (
            "steps: [{dedup: {keys: [a], by: t, bye: t, within: 1 hour}}]",
            "steps[0].dedup: unknown key 'bye': did you mean 'by'?",
        ),
        ("steps: [{python: no-colon}]", r"steps[0].python: 'no-colon' doesn't have the form ^[\w.]+:[\w.]+$"),
        ("sinks: []", "sinks: it must not be empty"),
        ("sinks: [{topic: t, formt: x}]", "sinks[0]: unknown key 'formt': did you mean 'format'?"),
        (
            "sinks: [{topic: t, format: jsn}]",
            "sinks[0].format: 'jsn' isn't one of text, bytes, json, connect-json: did you mean 'json'?",
        ),
        ("sinks: [{topic: t, name: a}, {file: t, name: a}]", "the file: two sinks have the name 'a'"),
        (
            "sinks: [{topic: t, name: dead-letters}]",
            "the file: 'dead-letters' is the name of the query that writes failed rows, not of a sink",
        ),
        ("source: {files: a, format: csv}", "source: files of the format csv need a 'schema'"),
        (
            "source: {files: a, format: parquet, schema: a INT, bytesPerBatch: 3}",
            "source: 'bytesPerBatch' is for lines: files of the format parquet are read whole",
        ),
        (
            "{steps: [{dedup: {keys: [a], by: t, within: 1 hour}}], sinks: [{topic: b}, {topic: c}]}",
            "the file: a pipeline with the step 'dedup' has one sink: each sink's query could keep other rows",
        ),
        ("source: {}", "source: its kind is told by one of the keys topic, files"),
        ("source: {topik: a}", "source: its kind is told by one of the keys topic, files: did you mean 'topic'?"),
        ("errors: stop", "errors: 'stop' isn't one of fail"),
        ("errors: [1]", "errors: its kind is told by one of the keys topic, table, or it is the word 'fail'"),
        (
            "trigger: {every: 10s}",
            r"trigger.every: '10s' doesn't have the form ^\d+ (millisecond|second|minute|hour)s?$",
        ),
        ("name: Big", "name: 'Big' doesn't have the form ^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"),
        ("kafka: {b: [1]}", "kafka.b: should be a valid string, and is [1]"),
    ],
)
def test_a_wrong_value_is_named_by_its_path(changed: str, line: str) -> None:
    whole: dict[str, Any] = yaml.safe_load(LEAST) | yaml.safe_load(changed)
    with pytest.raises(SpecError) as refused:
        parse(whole)
    assert refused.value.lines == [line]


def test_all_wrong_values_are_named_at_once_with_their_file() -> None:
    assert lines("source: {topic: a}\nsinks: [{topic: 3}]\ncheckpoint: c", "p.yaml") == [
        "p.yaml: the file: the key 'name' is missing",
        "p.yaml: sinks[0].topic: should be a valid string, and is 3",
    ]
    assert lines("[]") == ["the file: it must be a mapping of keys, and is []"]


def test_the_json_schema_knows_each_kind() -> None:
    schema = json_schema()
    assert {"TopicSource", "FileSource", "SqlStep", "DedupStep", "TopicSink", "FileSink"} <= schema["$defs"].keys()
    assert schema["required"] == ["name", "source", "sinks", "checkpoint"]
    assert schema["$defs"]["FilesSink"]["properties"]["partitionBy"]


def test_the_pipelines_of_the_documentation_are_pipelines() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.S)
    named = [parse(document).name for block in blocks for document in yaml.safe_load_all(block)]
    assert named == ["flights", "local-file-source", "local-file-sink"]
    assert parse(yaml.safe_load(EXAMPLE.format(name="flights"))).name == "flights"
