"""Streams: exact starting offsets, limits of micro-batches, new partitions, data loss, recovery, lag."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamReader, StreamingQuery

from ottla.net.names import TopicPartition
from ottla.spark.listener import LagListener
from ottla.spark.positions import from_json
from tests.spark.topics import BEGIN_MS, Topics


def stream(spark: SparkSession, bootstrap: str, topic: str, kind: str = "ottla", **options: Any) -> DataStreamReader:
    reader = spark.readStream.format(kind).option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    for name, value in options.items():
        reader = reader.option(name, value if isinstance(value, str) else json.dumps(value))
    return reader


def run(reader: DataStreamReader, folder: Path, *, name: str | None = None) -> StreamingQuery:
    """Runs a query that writes all records that its topics have now to Parquet files under `folder`."""
    writer = reader.load().select("partition", "offset", "value").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).option("path", str(folder / "rows"))
    query = (writer.queryName(name) if name else writer).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    return query


def values(spark: SparkSession, folder: Path) -> Counter[bytes]:
    return Counter(bytes(row.value) for row in spark.read.parquet(str(folder / "rows")).collect())


def expected(partition: int, count: int, first: int = 0) -> Counter[bytes]:
    return Counter(b"%d:%d" % (partition, index) for index in range(first, count))


def batch_sizes(query: StreamingQuery) -> list[int]:
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def test_from_a_checkpoint_on_and_new_partitions(
    spark: SparkSession, bootstrap: str, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create(1)
    topics.fill(topic, 0, 50)
    reader = stream(spark, bootstrap, topic, startingOffsets="earliest")
    run(reader, tmp_path)
    topics.fill(topic, 0, 20, first=50)
    topics.grow(topic, 2)
    topics.fill(topic, 1, 30)
    run(reader, tmp_path)
    assert values(spark, tmp_path) == expected(0, 70) + expected(1, 30)


def test_limits_split_the_backlog_as_sparks_source_does(
    spark: SparkSession, bootstrap: str, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create(3)
    for partition, count in enumerate((100, 40, 1)):
        topics.fill(topic, partition, count)
    ends = {}
    for kind in ("kafka", "ottla"):
        reader = stream(spark, bootstrap, topic, kind, startingOffsets="earliest", maxOffsetsPerTrigger=30)
        query = run(reader, tmp_path / kind)
        progress = [each for each in query.recentProgress if each.numInputRows]
        ends[kind] = [
            (each.numInputRows, from_json(json.loads(each.sources[0].endOffset)).offsets) for each in progress
        ]
        assert values(spark, tmp_path / kind) == expected(0, 100) + expected(1, 40) + expected(2, 1)
    assert ends["ottla"] == ends["kafka"]


def test_a_least_does_not_hold_up_what_is_there_now(
    spark: SparkSession, bootstrap: str, topics: Topics, tmp_path: Path
) -> None:
    topic = topics.create(2)
    topics.fill(topic, 0, 40)
    options = {"startingOffsets": "earliest", "minOffsetsPerTrigger": 100, "maxTriggerDelay": "1h"}
    for kind in ("kafka", "ottla"):
        query = run(stream(spark, bootstrap, topic, kind, **options), tmp_path / kind)
        assert batch_sizes(query) == [40]


def test_a_pattern_that_matches_a_topic_later(
    spark: SparkSession, bootstrap: str, topics: Topics, tmp_path: Path
) -> None:
    """While the pattern matches no topic, there is no micro-batch. A later topic is read from its beginning."""
    reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", bootstrap)
    reader = reader.option("subscribePattern", "comes-later-.*").option("startingOffsets", "earliest")
    query = run(reader, tmp_path)
    assert batch_sizes(query) == []
    topics.fill(topics.create(1, name="comes-later"), 0, 30)
    run(reader, tmp_path)
    assert values(spark, tmp_path) == expected(0, 30)


def test_where_a_stream_starts(spark: SparkSession, bootstrap: str, topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(1)
    topics.fill(topic, 0, 20)
    for index, (options, count) in enumerate(
        [
            ({}, 0),
            ({"startingOffsets": {topic: {"0": 15}}}, 5),
            ({"startingTimestamp": BEGIN_MS + 12_000}, 8),
            ({"startingTimestamp": BEGIN_MS + 10**9, "startingOffsetsByTimestampStrategy": "latest"}, 0),
        ]
    ):
        query = run(stream(spark, bootstrap, topic, **options), tmp_path / str(index))
        assert sum(batch_sizes(query)) == count


def test_waiting_for_enough(spark: SparkSession, bootstrap: str, topics: Topics) -> None:
    topic = topics.create(1)
    topics.fill(topic, 0, 10)
    options = {
        "startingOffsets": "earliest",
        "minOffsetsPerTrigger": 30,
        "maxTriggerDelay": "1h",
        "maxOffsetsPerTrigger": 40,
    }
    writer = stream(spark, bootstrap, topic, **options).load().writeStream.format("memory").queryName("enough")
    query = writer.trigger(processingTime="100 milliseconds").start()
    try:
        until(lambda: spark.table("enough").count() == 10)  # minOffsetsPerTrigger doesn't delay the first batch
        topics.fill(topic, 0, 20, first=10)
        time.sleep(2)
        assert spark.table("enough").count() == 10
        topics.fill(topic, 0, 40, first=30)
        until(lambda: spark.table("enough").count() >= 50)
    finally:
        query.stop()
    assert max(batch_sizes(query)) <= 40


def test_lag(spark: SparkSession, bootstrap: str, topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(2)
    topics.fill(topic, 0, 60)
    topics.fill(topic, 1, 20)
    seen: list[dict[TopicPartition, int]] = []
    listener = LagListener(lambda query, lag: seen.append(lag))
    spark.streams.addListener(listener)
    try:
        run(
            stream(spark, bootstrap, topic, startingOffsets="earliest", maxOffsetsPerTrigger=40),
            tmp_path,
            name="lagging",
        )
        until(lambda: len(seen) >= 2)
    finally:
        spark.streams.removeListener(listener)
    assert seen[0] == {TopicPartition(topic, 0): 30, TopicPartition(topic, 1): 10}
    assert listener.latest["lagging"] == {TopicPartition(topic, 0): 0, TopicPartition(topic, 1): 0}


def test_data_loss(spark: SparkSession, bootstrap: str, topics: Topics, tmp_path: Path) -> None:
    topic = topics.create(1)
    topics.fill(topic, 0, 10)
    run(stream(spark, bootstrap, topic, startingOffsets="earliest"), tmp_path)
    topics.fill(topic, 0, 30, first=10)
    topics.delete_before(topic, 0, 25)
    with pytest.raises(StreamingQueryException, match=r"has offsets 25 to 40, but 10 was to be read"):
        run(stream(spark, bootstrap, topic, startingOffsets="earliest"), tmp_path)
    run(stream(spark, bootstrap, topic, startingOffsets="earliest", failOnDataLoss=False), tmp_path)
    assert values(spark, tmp_path) == expected(0, 10) + expected(0, 40, first=25)


def test_no_end_can_be_given(spark: SparkSession, bootstrap: str, topics: Topics, tmp_path: Path) -> None:
    reader = stream(spark, bootstrap, topics.create(1), endingOffsets="latest")
    with pytest.raises(StreamingQueryException, match="endingOffsets makes no sense for a stream"):
        run(reader, tmp_path)


def until(condition: Any, timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "the condition wasn't fulfilled in time"
        time.sleep(0.1)
