"""Committed and aborted records, on Ottla and on Apache Kafka: Ottla's source leaves out those that Spark's does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, Row, SparkSession

from tests.spark.topics import Topics

COLUMNS = ["partition", "offset", "key", "value", "timestamp", "timestampType"]


class Transactions:
    """Creates transactional producers, which send records to one topic."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._bootstrap, self._topic = bootstrap, topic

    def begin(self, name: str) -> Producer:
        lasting = {"transactional.id": name, "transaction.timeout.ms": 600_000, "log_level": 2}
        producer = Producer({"bootstrap.servers": self._bootstrap, **lasting})
        producer.init_transactions(30)
        producer.begin_transaction()
        return producer

    def send(self, producer: Producer, values: list[str]) -> None:
        """Sends each value in a batch of its own, alternately to two partitions."""
        for index, value in enumerate(values):
            producer.produce(self._topic, value, partition=index % 2)
            producer.flush()


@pytest.fixture(scope="module")
def transactional(transactional_broker: Any) -> Iterator[tuple[str, set[bytes]]]:
    """A topic with interleaved committed and aborted transactions, and the values that read_committed returns.

    The topic also has a transaction that stays open. Records behind its first record aren't stable until it ends, so
    read_committed doesn't return them.
    """
    with Topics(transactional_broker.bootstrap) as topics:
        topic = topics.create(2, name="transactional")
    transactions = Transactions(transactional_broker.bootstrap, topic)
    committed: list[str] = []
    plain = Producer({"bootstrap.servers": transactional_broker.bootstrap, "log_level": 2})
    for turn in range(3):
        good, bad = transactions.begin("good"), transactions.begin("bad")
        for step in range(3):
            values = [f"good {turn} {step} {index}" for index in range(4)]
            transactions.send(good, values)
            transactions.send(bad, [f"bad {turn} {step} {index}" for index in range(4)])
            committed += values
            plain.produce(topic, f"plain {turn} {step}", partition=0)
            plain.flush()
            committed.append(f"plain {turn} {step}")
        bad.abort_transaction(30)
        good.commit_transaction(30)
    left_open = transactions.begin("open")
    transactions.send(left_open, ["open 0", "open 1"])
    plain.produce(topic, "behind the open one", partition=0)
    plain.flush()
    yield topic, {value.encode() for value in committed}
    left_open.abort_transaction(30)


def read(spark: SparkSession, kind: str, bootstrap: str, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format(kind).option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    return reader.options(**options).load()


def rows(frame: DataFrame) -> list[Row]:
    return frame.select(COLUMNS).orderBy("partition", "offset").collect()


@pytest.mark.parametrize("more", [{}, {"minPartitions": "12"}, {"maxRecordsPerPartition": "3"}], ids=str)
@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted", "the default"])
def test_equals_sparks_connector(
    spark: SparkSession,
    transactional_broker: Any,
    transactional: tuple[str, set[bytes]],
    isolation: str,
    more: dict[str, str],
) -> None:
    topic, committed = transactional
    options = more if isolation == "the default" else {"kafka.isolation.level": isolation, **more}
    theirs, ours = (
        rows(read(spark, kind, transactional_broker.bootstrap, topic, **options)) for kind in ("kafka", "ottla")
    )
    assert ours == theirs
    found = {bytes(row.value) for row in ours}
    if isolation == "read_committed":
        assert found == committed
    else:
        assert found > committed
        assert {b"bad 0 0 0", b"open 1", b"behind the open one"} < found


@pytest.mark.parametrize("kind", ["ottla", "kafka"])
def test_a_stream_of_committed_records(
    spark: SparkSession, transactional_broker: Any, transactional: tuple[str, set[bytes]], tmp_path: Path, kind: str
) -> None:
    """Micro-batches begin and end within transactions, and some have only aborted records."""
    topic, committed = transactional
    reader = spark.readStream.format(kind).option("kafka.bootstrap.servers", transactional_broker.bootstrap)
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "20", "kafka.isolation.level": "read_committed"}
    writer = reader.option("subscribe", topic).options(**options).load().select("value").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", str(tmp_path / "state")).option("path", str(tmp_path / "rows"))
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    found = [bytes(row.value) for row in spark.read.parquet(str(tmp_path / "rows")).collect()]
    assert len(found) == len(committed)
    assert set(found) == committed
