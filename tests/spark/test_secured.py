"""Over SASL_SSL, as a user with rights on one topic, both sources read and write the same, and are refused the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import ResourceType
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tests.peers.secured import EVERYTHING, secured_brokers
from tests.spark.topics import Topics

KINDS = pytest.mark.parametrize("kind", ["kafka", "ottla"])
REFUSED = r"(?i)(topic authorization failed|not authorized to access topics|TOPIC_AUTHORIZATION_FAILED)"


@dataclass(frozen=True)
class Place:
    """A broker's topics, and the options by which Spark logs in there."""

    allowed: str  # the topic with 300 records, on which the user has rights
    forbidden: str
    options: dict[str, str]
    topics: Topics


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("secured")
    with secured_brokers(folder, 1, {"spark": "secret-of-spark"}) as secured:
        secured.grant("User:ANONYMOUS", *EVERYTHING)  # who makes and fills the topics, at a listener without login
        with Topics(secured.cluster.bootstrap) as topics:
            allowed, forbidden = topics.create(3, name="allowed"), topics.create(1, name="forbidden")
            for partition in range(3):
                topics.fill(allowed, partition, 100)
            topics.fill(forbidden, 0, 1)
            secured.grant("User:spark", (ResourceType.TOPIC, allowed))
            options = {f"kafka.{name}": value for name, value in secured.java("SECURE", "spark").items()}
            options["kafka.bootstrap.servers"] = secured.cluster.further("SECURE")
            yield Place(allowed, forbidden, options, topics)


def rows(spark: SparkSession, kind: str, place: Place, **options: str) -> list[Any]:
    frame = spark.read.format(kind).options(**place.options, **options).load()
    return frame.orderBy("topic", "partition", "offset").collect()


def test_both_read_the_same(spark: SparkSession, place: Place) -> None:
    theirs, ours = (rows(spark, kind, place, subscribe=place.allowed) for kind in ("kafka", "ottla"))
    assert ours == theirs
    assert len(ours) >= 300


def test_a_pattern_finds_topics_that_the_user_may_see(spark: SparkSession, place: Place) -> None:
    theirs, ours = (rows(spark, kind, place, subscribePattern=".*") for kind in ("kafka", "ottla"))
    assert ours == theirs
    assert {row.topic for row in ours} == {place.allowed}


@KINDS
def test_a_read_of_another_topic_is_refused(spark: SparkSession, place: Place, kind: str) -> None:
    with pytest.raises((PySparkException, Py4JJavaError), match=REFUSED):
        rows(spark, kind, place, subscribe=place.forbidden)


@KINDS
def test_a_stream_reads_and_writes(spark: SparkSession, place: Place, kind: str, tmp_path: Path) -> None:
    """The records that the stream began with come back with another key."""
    stream = spark.readStream.format(kind).options(**place.options, subscribe=place.allowed)
    numbered = stream.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 150).load()
    answers = numbered.where("key NOT LIKE 'answer%'").select(
        f.concat(f.lit(f"answer-{kind}-"), f.col("key").cast("string")).alias("key"), "value"
    )
    writer = answers.writeStream.format(kind).options(**place.options, topic=place.allowed)
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    expected = Counter(b"%d:%d" % (partition, number) for partition in range(3) for number in range(100))
    found = [each for each in place.topics.records(place.allowed) if (each.key or b"").startswith(b"answer-")]
    assert Counter(each.value for each in found if each.key.startswith(f"answer-{kind}".encode())) == expected


@KINDS
def test_a_write_to_another_topic_is_refused(spark: SparkSession, place: Place, kind: str) -> None:
    frame = spark.sql("SELECT 'a' AS value").write.format(kind).mode("append")
    with pytest.raises((PySparkException, Py4JJavaError), match=REFUSED):
        frame.options(**place.options, topic=place.forbidden).save()
    assert len(place.topics.records(place.forbidden)) == 1


@KINDS
def test_a_wrong_password_is_refused(spark: SparkSession, place: Place, kind: str, tmp_path: Path) -> None:
    login = place.options["kafka.sasl.jaas.config"].replace("secret-of-spark", "wrong")
    stream = spark.readStream.format(kind).options(**place.options | {"kafka.sasl.jaas.config": login})
    query = (
        stream.option("subscribe", place.allowed)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path))
        .start()
    )
    with pytest.raises(StreamingQueryException, match=r"(?i)authentication failed"):
        query.awaitTermination(120)
