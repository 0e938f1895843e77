"""Reads of a thousand topics, of a topic with a thousand partitions, and of a topic with gaps that compaction left."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as f

from ottla.protocol.batches import Record
from ottla.spark.jobs.frames import batch, latest_by_key
from tests.spark.topics import BEGIN_MS, Topics

MANY = 1000
KEYS, ROUNDS = 10, 12


@pytest.fixture
def many(topics: Topics) -> Iterator[list[str]]:
    """The names of topics with one record each. They are deleted at the end: metadata stays small for later tests."""
    names = topics.create_many(MANY, name="many")
    for index, name in enumerate(names):
        topics.write(name, 0, [Record(0, BEGIN_MS, None, b"%d" % index)])
    yield names
    topics.delete(names)


def test_a_thousand_topics_by_pattern(spark: SparkSession, bootstrap: str, many: list[str]) -> None:
    reader = spark.read.format("ottla").option("kafka.bootstrap.servers", bootstrap)
    found = reader.option("subscribePattern", "many-.*").load().select("topic", "value").collect()
    assert Counter((row.topic, bytes(row.value)) for row in found) == Counter(
        (name, b"%d" % index) for index, name in enumerate(many)
    )


@pytest.fixture(scope="module")
def wide(spark: SparkSession, bootstrap: str, topics: Topics) -> Iterator[str]:
    """A topic of MANY partitions with zero to four records each, which four tasks write. It is deleted at the end."""
    topic = topics.create(MANY, name="wide")
    rows = [(partition, f"{partition}:{index}") for partition in range(MANY) for index in range(partition % 5)]
    frame = spark.createDataFrame(rows, "partition int, value string").repartition(4, "partition")
    writer = frame.sortWithinPartitions("partition", "value").write.format("ottla").mode("append")
    writer.option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()
    yield topic
    topics.delete([topic])


def rows_of_wide(found: Iterable[Row]) -> bool:
    """Whether these are the rows of `wide`: each once, in its own partition."""
    return Counter((row.partition, row.offset, bytes(row.value)) for row in found) == Counter(
        (partition, index, b"%d:%d" % (partition, index)) for partition in range(MANY) for index in range(partition % 5)
    )


def test_a_thousand_partitions(spark: SparkSession, bootstrap: str, wide: str) -> None:
    rows = read(spark, "ottla", bootstrap, wide).withColumn("task", f.spark_partition_id()).collect()
    assert rows_of_wide(rows)
    assert len({row.task for row in rows}) == 32  # for the 800 partitions with records


def test_a_thousand_partitions_in_limited_micro_batches(spark: SparkSession, bootstrap: str, wide: str) -> None:
    """A micro-batch has at least one row of each partition with a backlog. The numbers of rows are in proportion to the
    backlogs."""
    stream = spark.readStream.format("ottla").option("kafka.bootstrap.servers", bootstrap).option("subscribe", wide)
    stream = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "600")
    writer = stream.load().select("partition", "offset", "value").writeStream.format("memory").queryName("wide")
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(240)
    assert [each.numInputRows for each in query.recentProgress if each.numInputRows] == [800, 600, 600]
    assert rows_of_wide(spark.table("wide").collect())


@pytest.fixture(scope="module")
def compacted(topics: Topics) -> str:
    """A topic with the last value of each key, and with gaps where compaction has removed older values.

    The last record of the key `k0` is a tombstone.
    """
    configs = {
        "min_cleanable_dirty_ratio": "0.01",
        "segment_ms": "1",
    }  # every record is a second later than the one before, so each batch has a segment of its own
    topic = topics.create(1, name="compacted", cleanup_policy="compact", **configs)
    for turn in range(ROUNDS):
        # A record whose key no other round has stays after compaction. So it keeps its segment, and separates the gaps.
        rows = [Record(0, BEGIN_MS + 1000 * turn, b"only-%d" % turn, b"%d" % turn)] if turn % 3 == 0 else []
        rows += [Record(0, BEGIN_MS + 1000 * turn, b"k%d" % key, b"%d:%d" % (key, turn)) for key in range(KEYS)]
        topics.write(topic, 0, rows)
    topics.write(topic, 0, [Record(0, BEGIN_MS + 1000 * ROUNDS, b"k0", None)])
    topics.write(
        topic, 0, [Record(0, BEGIN_MS + 1000 * (ROUNDS + 1), b"last", b"")]
    )  # the active segment is never compacted
    deadline = time.monotonic() + 90
    while len(topics.records(topic)) > ROUNDS // 3 + KEYS + 1:
        assert time.monotonic() < deadline, "the topic isn't compacted"
        time.sleep(0.2)
    return topic


def read(spark: SparkSession, kind: str, bootstrap: str, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format(kind).option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    return reader.options(**options).load()


@pytest.mark.parametrize(
    "options",
    [{}, {"minPartitions": "16"}, {"startingOffsets": '{"?": {"0": 5}}', "endingOffsets": '{"?": {"0": 60}}'}],
    ids=["whole", "tasks within gaps", "bounds within gaps"],
)
def test_gaps(spark: SparkSession, bootstrap: str, compacted: str, options: dict[str, str]) -> None:
    given = {name: value.replace("?", compacted) for name, value in options.items()}
    theirs, ours = (
        read(spark, kind, bootstrap, compacted, **given).orderBy("offset").collect() for kind in ("kafka", "ottla")
    )
    assert ours == theirs
    assert 0 < len(ours) < 50  # out of at least 55 offsets


def test_a_stream_over_gaps(spark: SparkSession, bootstrap: str, compacted: str, tmp_path: Path) -> None:
    """A micro-batch covers fewer offsets than a gap, so some micro-batches have no records. The stream continues with
    the records behind the gap."""
    stream = spark.readStream.format("ottla").option("kafka.bootstrap.servers", bootstrap)
    stream = stream.option("subscribe", compacted).option("startingOffsets", "earliest")
    writer = stream.option("maxOffsetsPerTrigger", "25").load().select("offset").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(tmp_path / "state")).option("path", str(tmp_path / "rows"))
    assert writer.trigger(availableNow=True).start().awaitTermination(60)
    found = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert Counter(found) == Counter(read(spark, "ottla", bootstrap, compacted).select("offset").collect())


def test_the_table_of_a_compacted_topic(spark: SparkSession, bootstrap: str, compacted: str) -> None:
    table = latest_by_key(batch(spark, bootstrap, compacted)).where(f.expr("key LIKE 'k%'"))
    found = {bytes(row.key): bytes(row.value) for row in table.collect()}
    assert found == {b"k%d" % key: b"%d:%d" % (key, ROUNDS - 1) for key in range(1, KEYS)}
