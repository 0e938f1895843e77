"""The options that Spark itself adds, and Java's regular expressions compared with Ottla's translation of them."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest
from pyspark.errors import IllegalArgumentException, PySparkException
from pyspark.sql import SparkSession

from ottla.net.names import TopicPartition
from ottla.spark.java_pattern import compiled
from ottla.spark.positions import Position
from tests.spark.topics import Topics
from tests.unit.spark.test_java_pattern import MATCHED, NAMES, REFUSED

# Java accepts these patterns, but Ottla's translation refuses them: their syntax isn't supported.
KNOWN_TO_JAVA = {"(?x)a b", "(?<=a+)b", r"\b{g}", "{2}"}


def test_a_named_stream_writes_to_a_topic(spark: SparkSession, bootstrap: str, topics: Topics, tmp_path: Path) -> None:
    """Spark adds the option `queryname` for a stream with a name, and so for every sink of spark-pipelines.

    Before the fix, such streams failed with "unknown option 'queryname'".
    """
    source, target = topics.create(1), topics.create(1)
    topics.fill(source, 0, 50)
    reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", bootstrap).option("subscribe", source)
    frame = reader.option("startingOffsets", "earliest").load().select("key", "value")
    writer = frame.writeStream.format("ottla").queryName("named").option("kafka.bootstrap.servers", bootstrap)
    writer = writer.option("topic", target).option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    assert writer.start().awaitTermination(120)
    assert topics.end(target) == 50


def test_tables_and_views(spark: SparkSession, bootstrap: str, topics: Topics) -> None:
    topic = topics.create(1)
    topics.fill(topic, 0, 5)
    given = f"`kafka.bootstrap.servers`='{bootstrap}', subscribe='{topic}'"
    spark.sql(f"CREATE TEMPORARY VIEW seen_{topic[2:]} USING ottla OPTIONS ({given})")
    assert spark.table(f"seen_{topic[2:]}").count() == 5
    table = f"kept_{topic[2:]}"
    spark.sql(f"CREATE TABLE {table} USING ottla OPTIONS ({given}) COMMENT 'what it is' TBLPROPERTIES ('made.by'='us')")
    try:
        with pytest.raises(PySparkException, match="a table's options don't reach its queries"):
            spark.table(table).count()
        assert spark.sql(f"SELECT * FROM {table} WITH ({given})").count() == 5
    finally:
        spark.sql(f"DROP TABLE {table}")


def test_patterns_match_what_java_matches(spark: SparkSession) -> None:
    """A real Java runtime confirms the table of patterns in the unit tests.

    Java also refuses all patterns that Ottla refuses, except KNOWN_TO_JAVA.
    """
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    for pattern, matched in MATCHED:
        found = {name for name in NAMES if jvm.java.util.regex.Pattern.matches(pattern, name)}
        assert found == set(matched.split()) == {name for name in NAMES if compiled(pattern).fullmatch(name)}, pattern
    for pattern in set(REFUSED) - KNOWN_TO_JAVA:
        with pytest.raises(IllegalArgumentException):
            jvm.java.util.regex.Pattern.compile(pattern)


def test_sparks_own_source_reads_our_offsets(spark: SparkSession) -> None:
    """Ottla's offsets have an entry for each topic's id. Spark's JsonUtils takes such an entry for a topic without
    partitions."""
    offsets = {TopicPartition("a", 0): 5, TopicPartition("a", 1): 7, TopicPartition("b", 0): 0}
    text = json.dumps(Position(offsets, {"a": UUID(int=1), "b": UUID(int=2)}).json())
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    read = jvm.org.apache.spark.sql.kafka010.JsonUtils.partitionOffsets(text)
    assert json.loads(jvm.org.apache.spark.sql.kafka010.JsonUtils.partitionOffsets(read)) == {
        "a": {"0": 5, "1": 7},
        "b": {"0": 0},
    }
