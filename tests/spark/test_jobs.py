"""The pipelines of `ottla.spark.jobs`, all over the same small topic, and their error messages."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ottla.protocol.batches import Record
from ottla.spark.jobs import frames, window_counts
from ottla.spark.jobs import join as join_job
from ottla.spark.jobs import sink as sink_job
from ottla.spark.jobs.join import join
from ottla.spark.jobs.lines import one_line_errors
from ottla.spark.jobs.load import load
from ottla.spark.jobs.sink import sink
from tests.spark.topics import BEGIN_MS, Topics

NOBODY = "127.0.0.1:1"  # no process listens on this port


@pytest.fixture(scope="module")
def events(topics: Topics, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A topic that is loaded from a CSV file, with two airlines, two hours and one missing delay."""
    path = tmp_path_factory.mktemp("files") / "flights.csv"
    path.write_text(
        "carrier,time,delay\n"
        "UA,2013-01-01T05:10:00Z,10\nUA,2013-01-01T05:20:00Z,20\nUA,2013-01-01T06:00:00Z,\nB6,2013-01-01T05:59:59Z,-5\n"
    )
    topic = topics.create(2, name="events")
    assert load([path], topics.bootstrap, topic, key="carrier") == 4
    return topic


def test_windows_into_a_topic_and_the_table_of_it(
    spark: SparkSession, bootstrap: str, topics: Topics, events: str, tmp_path: Path
) -> None:
    into = topics.create(1, cleanup_policy="compact")
    counted = window_counts.counts(
        frames.stream(spark, bootstrap, events, 1), time="time", key="carrier", average="delay", watermark="1 day"
    )
    window_counts.write(counted, bootstrap, into, str(tmp_path))
    table = frames.latest_by_key(frames.batch(spark, bootstrap, into)).orderBy("key").collect()
    found = {bytes(row.key).decode(): json.loads(row.value) for row in table}
    assert list(found) == ["B6|2013-01-01T05:00:00Z", "UA|2013-01-01T05:00:00Z", "UA|2013-01-01T06:00:00Z"]
    assert found["UA|2013-01-01T05:00:00Z"] == {
        "start": "2013-01-01T05:00:00Z",
        "key": "UA",
        "count": 2,
        "present": 2,
        "mean": 15.0,
    }
    assert found["UA|2013-01-01T06:00:00Z"]["present"] == 0


def test_a_stream_joined_with_a_table(
    spark: SparkSession, bootstrap: str, topics: Topics, events: str, tmp_path: Path
) -> None:
    airlines, into = topics.create(1), topics.create(1)
    names = [(b"UA", b"Old"), (b"B6", b"JetBlue"), (b"UA", b"United"), (b"B6", None)]
    topics.write(airlines, 0, [Record(0, BEGIN_MS, key, value) for key, value in names])
    join(spark, bootstrap, events, airlines, into, str(tmp_path))
    found = {(record.key, json.loads(record.value or b"")["table"]) for record in topics.records(into)}
    assert found == {(b"UA", "United"), (b"B6", None)}


def test_files_of_json_lines(spark: SparkSession, bootstrap: str, events: str, tmp_path: Path) -> None:
    sink(spark, bootstrap, events, str(tmp_path / "rows"), str(tmp_path / "state"), format="json")
    rows = spark.read.json(str(tmp_path / "rows"))
    assert rows.count() == 4
    assert {row.key for row in rows.collect()} == {"UA", "B6"}


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_files_keep_headers_and_bytes(
    spark: SparkSession, bootstrap: str, topics: Topics, tmp_path: Path, format: str
) -> None:
    """Before the fix, every value was cast to a string, and headers were dropped."""
    topic = topics.create(1)
    records = [
        Record(0, BEGIN_MS, b"\xff\x00", b"\xc3\x28", (("h", b"\xfe"), ("n", None))),
        Record(0, BEGIN_MS, None, "ü".encode(), ()),
    ]
    topics.write(topic, 0, records)
    sink(spark, bootstrap, topic, str(tmp_path / "rows"), str(tmp_path / "state"), format=format, values="bytes")
    found = spark.read.format(format).load(str(tmp_path / "rows")).orderBy("offset").collect()

    def written(value: bytes | None) -> bytes | str | None:
        return value if format == "parquet" or value is None else b64encode(value).decode()

    rows = [(row.key, row.value, [(each.key, each.value) for each in row.headers or ()]) for row in found]
    assert rows == [
        (written(each.key), written(each.value), [(name, written(value)) for name, value in each.headers])
        for each in records
    ]


def test_bytes_that_are_no_text_are_named_and_not_written(
    spark: SparkSession, bootstrap: str, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create(1)
    topics.write(topic, 0, [Record(0, BEGIN_MS, b"k", "ü".encode(), (("h", b"v"),))])
    folders = str(tmp_path / "rows"), str(tmp_path / "state")
    sink(spark, bootstrap, topic, *folders)
    topics.write(topic, 0, [Record(0, BEGIN_MS, b"k", b"\xc3\x28", ())])
    with pytest.raises(PySparkException, match=rf"the value at offset 1 of {topic}-0 is no text .*--values bytes"):
        sink(spark, bootstrap, topic, *folders)
    (row,) = spark.read.parquet(folders[0]).collect()
    assert (row.key, row.value, row.headers[0].value) == ("k", "ü", "v")


@pytest.mark.parametrize(
    ("job", "arguments", "says"),
    [
        ("load", ["--topic", "no-such-topic", "{file}"], "topic 'no-such-topic' does not exist"),
        ("load", ["--topic", "{events}", "--key", "nobody", "{file}"], "has no column 'nobody'; its columns are a, b"),
        ("load", ["--topic", "{events}", "/no/such/file.csv"], "there is no file"),
        ("compact_table", ["--topic", "no-such-topic"], "topic 'no-such-topic' does not exist"),
    ],
)
def test_failures_are_one_line(
    bootstrap: str, events: str, tmp_path: Path, job: str, arguments: list[str], says: str
) -> None:
    file = tmp_path / "some.csv"
    file.write_text("a,b\n1,2\n")
    given = [each.replace("{file}", str(file)).replace("{events}", events) for each in arguments]
    command = [sys.executable, "-m", f"ottla.spark.jobs.{job}", "--bootstrap", bootstrap, *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("error: ")
    assert says in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_stream_that_finds_nobody_ends_in_one_line(
    spark: SparkSession, bootstrap: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    @one_line_errors
    def job() -> None:
        options = {"kafka.bootstrap.servers": NOBODY, "subscribe": "t", "kafka.default.api.timeout.ms": "1000"}
        records = spark.readStream.format("ottla").options(**options).load()
        frames.run(records.writeStream.format("noop").option("checkpointLocation", str(tmp_path)), "")

    with pytest.raises(SystemExit):
        job()
    # Producers of other tests may still print messages about their stopped brokers. These messages are librdkafka's,
    # and begin with "%".
    errors = [line for line in capfd.readouterr().err.strip().splitlines() if not line.startswith("%")]
    assert errors == [
        f"error: Metadata failed for 1000 ms (bootstrap {NOBODY}): cannot connect to {NOBODY}: Connection refused"
    ]


@pytest.mark.parametrize(
    ("job", "options", "says"),
    [
        (sink_job.main, {"topic": "no-such-topic", "path": "{folder}/rows"}, "topic 'no-such-topic' does not exist"),
        (sink_job.main, {"bootstrap": "nohost", "path": "{folder}/rows"}, "'nohost' is no broker address"),
        (sink_job.main, {"path": "{folder}/rows", "values": "base64"}, "it must be text or bytes"),
        (sink_job.main, {"path": "{folder}/rows", "format": "avro"}, "it must be parquet or json"),
        (sink_job.main, {"bootstrap": NOBODY, "path": "{folder}/rows"}, f"cannot connect to {NOBODY}"),
        (window_counts.main, {"bootstrap": NOBODY, "into": "{events}"}, f"cannot connect to {NOBODY}"),
        (window_counts.main, {"topic": "no-such-topic", "into": "{events}"}, "topic 'no-such-topic' does not exist"),
        (window_counts.main, {"into": "no-such-topic"}, "topic 'no-such-topic' does not exist"),
        (window_counts.main, {"into": "{events}", "time": "tiem"}, "no field 'tiem' in the first 4 records of topic"),
        (window_counts.main, {"into": "{events}", "key": "a b"}, "their fields are carrier, delay, time"),
        (window_counts.main, {"into": "{events}", "window": "a while"}, "a while"),
        (join_job.main, {"table": "no-such-topic", "into": "{events}"}, "topic 'no-such-topic' does not exist"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    spark: SparkSession,
    bootstrap: str,
    events: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    job: Callable[..., None],
    options: dict[str, str],
    says: str,
) -> None:
    monkeypatch.setattr(frames, "FIRST_ANSWER_MS", 1000)
    given = {"bootstrap": bootstrap, "topic": events, "checkpoint": str(tmp_path / "state")} | options
    with pytest.raises(SystemExit) as ended:
        job(
            **{
                name: text.replace("{events}", events).replace("{folder}", str(tmp_path))
                for name, text in given.items()
            }
        )
    assert ended.value.code == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert says in lines[0]
