"""Batch reads: the same options give the same rows as with Spark's own connector.

Tests of this file also cover the filters and error messages that only Ottla's source has.
"""

from __future__ import annotations

import json
import re
import socket
import time
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from ottla.protocol.batches import Record
from ottla.spark.options import KNOWN
from tests.spark.topics import BEGIN_MS, Topics

HEADERS = (("trace", b"1"), ("empty", b""), ("null", None), ("größe", b"x"))


@pytest.fixture(scope="module")
def varied(topics: Topics) -> str:
    """A topic of three partitions: one with all codecs, nulls and headers, one with seven records, and an empty one."""
    topic = topics.create(3, name="varied")
    kinds = [(None, b"a"), (b"k", None), (None, None), (b"", b""), (b"key", b"v" * 1000)]
    for codec in range(5):
        rows = [
            Record(0, BEGIN_MS + 1000 * (5 * codec + index), key, value, HEADERS if index == 1 else ())
            for index, (key, value) in enumerate(kinds)
        ]
        topics.write(topic, 0, rows, codec)
    topics.fill(topic, 1, 7)
    return topic


@pytest.fixture(scope="module")
def other(topics: Topics) -> str:
    """A topic with LogAppendTime, whose timestamps the broker sets."""
    topic = topics.create(1, name="varied-too", message_timestamp_type="LogAppendTime")
    topics.fill(topic, 0, 10)
    return topic


def read(spark: SparkSession, bootstrap: str, kind: str, options: dict[str, Any]) -> DataFrame:
    reader = spark.read.format(kind).option("kafka.bootstrap.servers", bootstrap)
    for name, value in options.items():
        reader = reader.option(name, value if isinstance(value, str) else json.dumps(value))
    return reader.load()


def rows(frame: DataFrame) -> list[Row]:
    return frame.orderBy("topic", "partition", "offset").collect()


MATRIX: dict[str, dict[str, Any]] = {
    "subscribe": {"subscribe": "{varied}"},
    "two topics": {"subscribe": "{varied}, {other}", "includeHeaders": True},
    "pattern": {"subscribePattern": "{varied}.*"},
    "assign": {"assign": {"{varied}": [1, 0]}},
    "offsets": {
        "subscribe": "{varied}",
        "startingOffsets": {"{varied}": {"0": 3, "1": -2, "2": 0}},
        "endingOffsets": {"{varied}": {"0": 17, "1": 5, "2": -1}},
    },
    "timestamps": {"subscribe": "{varied}", "startingTimestamp": BEGIN_MS + 2000, "endingTimestamp": BEGIN_MS + 4000}
    | {"startingOffsetsByTimestampStrategy": "latest"},
    "timestamps by partition": {
        "assign": {"{varied}": [0, 1]},
        "startingOffsetsByTimestamp": {"{varied}": {"0": BEGIN_MS + 1, "1": BEGIN_MS}},
        "endingOffsetsByTimestamp": {"{varied}": {"0": BEGIN_MS + 7000, "1": BEGIN_MS + 10**9}},
    },
    "many tasks": {"subscribe": "{varied}", "minPartitions": 9},
    "small tasks": {"subscribe": "{varied}", "maxRecordsPerPartition": 4},
    "whole log, said": {"subscribe": "{varied}", "startingOffsets": "earliest", "endingOffsets": "latest"},
    "everything at once": {
        "subscribePattern": "{varied}",
        "startingTimestamp": BEGIN_MS + 1000,
        "startingOffsets": "earliest",  # startingTimestamp takes precedence over it
        "startingOffsetsByTimestampStrategy": "LATEST",
        "endingOffsets": {"{varied}": {"0": -1, "1": 6, "2": -1}},
        "failOnDataLoss": False,
        "minPartitions": 5,
        "maxRecordsPerPartition": 10,
        "includeHeaders": "true",
        "groupIdPrefix": "prefix",
        "kafkaConsumer.pollTimeoutMs": 30_000,
        "fetchOffset.numRetries": 5,
        "fetchOffset.retryIntervalMs": 20,
        "kafka.client.id": "somebody",
        "kafka.max.partition.fetch.bytes": 1000,
    },
    "a group's name": {"subscribe": "{varied}", "kafka.group.id": "a-group", "kafka.check.crcs": False},
    "names and values in any case": {"SUBSCRIBE": "{varied}", "StartingOffsets": "EARLIEST", "INCLUDEHEADERS": "TRUE"},
    "committed": {"subscribe": "{varied}", "kafka.isolation.level": "read_committed", "kafka.fetch.max.wait.ms": 10},
}


def named(value: Any, names: dict[str, str]) -> Any:
    text = json.dumps(value)
    for name, topic in names.items():
        text = text.replace("{" + name + "}", topic)
    return json.loads(text)


@pytest.mark.parametrize("case", MATRIX)
def test_equals_sparks_connector(spark: SparkSession, bootstrap: str, varied: str, other: str, case: str) -> None:
    options = named(MATRIX[case], {"varied": varied, "other": other})
    theirs, ours = (read(spark, bootstrap, kind, options) for kind in ("kafka", "ottla"))
    assert ours.schema == theirs.schema
    expected = rows(theirs)
    assert expected
    assert rows(ours) == expected


def test_every_option_is_compared() -> None:
    """Every option of a read is in the matrix above, except the options of streams, which `test_stream` covers."""
    elsewhere = {"maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"}  # in test_stream
    writing = {"topic", "ottla.exactlyOnce", "ottla.exactlyOnce.topic", "ottla.exactlyOnce.confirm"}
    reading = {name.lower() for name in set(KNOWN) - writing}
    compared = {name.lower() for options in MATRIX.values() for name in options}
    assert reading - compared == {name.lower() for name in elsewhere}


def test_spark_finds_the_source_by_itself(spark: SparkSession, bootstrap: str, varied: str) -> None:
    """Spark finds the source without `register`, in a new session."""
    other = spark.newSession()
    assert read(other, bootstrap, "ottla", {"subscribe": varied}).count() == 32


def test_fewer_columns(spark: SparkSession, bootstrap: str, varied: str) -> None:
    schema = "offset bigint, value binary"
    reader = spark.read.format("ottla").schema(schema).option("kafka.bootstrap.servers", bootstrap)
    found = reader.option("assign", json.dumps({varied: [1]})).load().orderBy("offset").collect()
    assert [tuple(row) for row in found] == [(index, b"1:%d" % index) for index in range(7)]


def test_filters_reach_the_offsets(spark: SparkSession, bootstrap: str, varied: str) -> None:
    frame = read(spark, bootstrap, "ottla", {"subscribe": varied})
    since = f.timestamp_millis(f.lit(BEGIN_MS + 4000))
    narrow = frame.where((f.col("partition") == 1) & (f.col("offset") >= 2) & (f.col("timestamp") >= since))
    assert [row.offset for row in rows(narrow)] == [4, 5, 6]
    assert frame.where("partition = 2").rdd.getNumPartitions() == 1
    assert frame.where("offset > 1000").count() == 0
    assert frame.where(f.col("timestamp") < since).count() == 8


@pytest.mark.parametrize("kind", ["ottla", "kafka"])
def test_an_empty_topic(spark: SparkSession, bootstrap: str, topics: Topics, kind: str) -> None:
    assert read(spark, bootstrap, kind, {"subscribe": topics.create(2)}).count() == 0


@pytest.mark.parametrize("kind", ["ottla", "kafka"])
def test_zero_partitions(spark: SparkSession, bootstrap: str, kind: str) -> None:
    assert read(spark, bootstrap, kind, {"subscribePattern": "no-topic-is-called-this"}).count() == 0


def test_values_of_a_megabyte(spark: SparkSession, bootstrap: str, topics: Topics) -> None:
    topic = topics.create(1, max_message_bytes="3000000")
    for index in range(12):
        topics.write(topic, 0, [Record(0, BEGIN_MS, None, bytes([65 + index]) * (1 << 20))])
    frame = read(spark, bootstrap, "ottla", {"subscribe": topic})
    found = frame.select(f.length("value").alias("size"), f.substring("value", 1, 1).alias("first")).collect()
    assert [(row.size, row.first) for row in found] == [(1 << 20, bytes([65 + index])) for index in range(12)]


def test_data_that_was_deleted(spark: SparkSession, bootstrap: str, topics: Topics) -> None:
    topic = topics.create(1)
    topics.fill(topic, 0, 20)
    topics.delete_before(topic, 0, 5)
    asked = {"subscribe": topic, "startingOffsets": {topic: {"0": 2}}}
    with pytest.raises(PySparkException, match=r"has offsets 5 to 20, but offsets 2 to 20 were asked for"):
        read(spark, bootstrap, "ottla", asked).count()
    lenient = {**asked, "failOnDataLoss": False}
    expected = rows(read(spark, bootstrap, "kafka", lenient))
    assert rows(read(spark, bootstrap, "ottla", lenient)) == expected
    assert len(expected) == 15


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscribe": "no-such-topic"}, "topic 'no-such-topic' does not exist at"),
        ({"subscribe": "{varied}", "assign": {"{varied}": [0]}}, "subscribe and assign exclude each other"),
        ({"assign": {"{varied}": [9]}}, "has partitions 0 to 2, but no partition 9"),
        ({"subscribe": "{varied}", "startingOffsets": {"{varied}": {"0": 1}}}, "must be given for every partition"),
        (
            {"subscribe": "{varied}", "startingTimestamp": BEGIN_MS + 10**9},
            "set startingOffsetsByTimestampStrategy to latest",
        ),
        ({"subscribe": "{varied}", "startingOfsets": "latest"}, "did you mean startingOffsets"),
    ],
)
def test_errors_at_plan_time(
    spark: SparkSession, bootstrap: str, varied: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(PySparkException) as caught:
        read(spark, bootstrap, "ottla", named(options, {"varied": varied})).count()
    assert says in str(caught.value)


@pytest.mark.parametrize("listening", [False, True], ids=["refused", "silent"])
def test_an_unreachable_broker_is_named_in_time(spark: SparkSession, listening: bool) -> None:
    options = {"subscribe": "t", "kafka.default.api.timeout.ms": 1000}
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if not listening:
            server.close()
        began = time.monotonic()
        with pytest.raises(PySparkException, match=rf"failed for 1000 ms .*{re.escape(address)}\b"):
            read(spark, address, "ottla", options).count()
        # The start of the Python process that plans a read is included. request.timeout.ms is 30 s.
        assert time.monotonic() - began < 20


def test_the_schema_is_checked(spark: SparkSession, bootstrap: str, varied: str) -> None:
    reader = spark.read.format("ottla").schema("value string").option("kafka.bootstrap.servers", bootstrap)
    with pytest.raises(PySparkException, match="column value string isn't a column of this source"):
        reader.option("subscribe", varied).load().count()
