"""Batch and streaming writes, read back by another client."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from kafka.partitioner.default import murmur2
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tests.spark.topics import Topics

ROWS = 5000


def test_keys_choose_kafkas_partitions(spark: SparkSession, bootstrap: str, topics: Topics) -> None:
    topic = topics.create(4)
    frame = spark.range(ROWS).select(
        f.format_string("k%d", f.col("id") % 100).alias("key"), f.col("id").cast("string").alias("value")
    )
    frame.write.format("ottla").mode("append").option("kafka.bootstrap.servers", bootstrap).option(
        "topic", topic
    ).save()
    found = topics.records(topic)
    assert sorted(int(record.value or b"") for record in found) == list(range(ROWS))
    read = spark.read.format("ottla").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic).load()
    placed = read.select("partition", "key").distinct().collect()
    assert len(placed) == 100
    assert all(row.partition == (murmur2(bytes(row.key)) & 0x7FFFFFFF) % 4 for row in placed)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_columns_and_codecs(spark: SparkSession, bootstrap: str, topics: Topics, codec: str) -> None:
    topic = topics.create(2)
    headers = "array<struct<key string, value binary>>"
    rows = [
        ("a", "1", 1, [("h", b"x"), ("n", None)]),
        (None, None, 0, None),
        ("", "", 1, []),
    ]
    frame = spark.createDataFrame(rows, f"key string, value string, partition int, headers {headers}")
    writer = frame.withColumn("topic", f.lit(topic)).coalesce(1).write.format("ottla").mode("append")
    writer.option("kafka.bootstrap.servers", bootstrap).option("kafka.compression.type", codec).save()
    found = [(record.key, record.value, list(record.headers)) for record in topics.records(topic)]
    assert found == [(None, None, []), (b"a", b"1", [("h", b"x"), ("n", None)]), (b"", b"", [])]


def test_both_sinks_write_the_same(spark: SparkSession, bootstrap: str, topics: Topics) -> None:
    frame = spark.range(200).select(
        f.when(f.col("id") % 3 > 0, f.col("id").cast("string")).alias("key"),
        f.repeat(f.lit("v"), f.col("id").cast("int")).alias("value"),
    )
    written = []
    for kind in ("kafka", "ottla"):
        topic = topics.create(1)
        frame.coalesce(1).write.format(kind).mode("append").option("kafka.bootstrap.servers", bootstrap).option(
            "topic", topic
        ).save()
        written.append([(record.offset, record.key, record.value) for record in topics.records(topic)])
    assert written[0] == written[1]
    assert len(written[0]) == 200


def test_a_stream_into_a_topic(spark: SparkSession, bootstrap: str, topics: Topics, tmp_path: Path) -> None:
    source, target = topics.create(2), topics.create(3)
    for partition in range(2):
        topics.fill(source, partition, 300)
    stream = spark.readStream.format("ottla").option("kafka.bootstrap.servers", bootstrap).option("subscribe", source)
    frame = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 200).load()
    writer = frame.select("key", "value").writeStream.format("ottla").option("kafka.bootstrap.servers", bootstrap)
    query = (
        writer.option("topic", target).option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    )
    assert query.awaitTermination(120)
    assert len([progress for progress in query.recentProgress if progress.numInputRows]) == 3
    expected = Counter(b"%d:%d" % (partition, index) for partition in range(2) for index in range(300))
    assert Counter(record.value for record in topics.records(target)) == expected


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ("'a' AS key", {"topic": "{topic}"}, "a column 'value' is needed"),
        ("'a' AS value", {}, "no topic to write to"),
        ("1 AS value", {"topic": "{topic}"}, "column 'value' is int: it must be string or binary; cast it"),
        ("'a' AS value", {"topic": "no-such-topic"}, "topic 'no-such-topic' does not exist"),
        ("'a' AS value, 9 AS partition", {"topic": "{topic}"}, "has partitions 0 to 0, and a row asks for another"),
        ("'a' AS value, CAST(NULL AS STRING) AS topic", {}, "a row has no topic"),
        ("'a' AS value", {"topic": "{topic}", "kafka.acks": "some"}, "kafka.acks is 'some'"),
    ],
)
def test_refusals(
    spark: SparkSession, bootstrap: str, topics: Topics, columns: str, options: dict[str, str], says: str
) -> None:
    topic = topics.create(1)
    writer = (
        spark.sql(f"SELECT {columns}").write.format("ottla").mode("append").option("kafka.bootstrap.servers", bootstrap)
    )
    with pytest.raises(PySparkException) as caught:
        writer.options(**{name: value.replace("{topic}", topic) for name, value in options.items()}).save()
    assert says in str(caught.value)


def test_other_modes_say_what_to_do(spark: SparkSession, bootstrap: str, topics: Topics) -> None:
    topic = topics.create(1)
    writer = (
        spark.sql("SELECT 'a' AS value")
        .write.format("ottla")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", topic)
    )
    with pytest.raises(PySparkException, match=r"(?i)append"):
        writer.save()
    with pytest.raises(PySparkException, match="write with mode append"):
        writer.mode("overwrite").save()
