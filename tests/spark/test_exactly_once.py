"""Exactly-once streams into topics, and batches in transactions: on Ottla and on Apache Kafka, also under kills.

OTTLA_SPARK_KILLS=200 is the number of kills (`make spark-kills`). With more than LONG kills, the broker is killed now
and then, too.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Theirs
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.peers.apache_kafka import ApacheKafka
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.tools import ROOT
from tests.spark.kills import ROWS
from tests.spark.topics import Topics

KILLS = int(os.environ.get("OTTLA_SPARK_KILLS", "4"))
LONG = 20
BROKER_EVERY = 15


@pytest.fixture(scope="module")
def made(transactional_broker: Any) -> Iterator[Topics]:
    """Creates topics on that broker."""
    with Topics(transactional_broker.bootstrap) as topics:
        yield topics


def read(bootstrap: str, topic: str, partitions: int, isolation: str = "read_committed") -> Counter[str]:
    """How often each value is in a topic, as librdkafka's consumer reads it."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "isolation.level": isolation, "enable.partition.eof": True}
    )
    consumer.assign([Theirs(topic, partition, 0) for partition in range(partitions)])
    found, ends = Counter[str](), 0
    while ends < partitions:
        message = consumer.poll(30)
        assert message is not None
        if message.error():
            ends += 1
        else:
            found[(message.value() or b"").decode()] += 1
    consumer.close()
    return found


def started(
    spark: SparkSession, made: Topics, source: str, target: str, folder: Path, **options: str
) -> StreamingQuery:
    """Starts an exactly-once stream of the source's rows, which ends with the last of them."""
    reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", made.bootstrap)
    reader = reader.option("subscribe", source).option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 40)
    writer = reader.load().select("key", "value").writeStream.format("ottla").option("ottla.exactlyOnce", "true")
    writer = writer.option("kafka.bootstrap.servers", made.bootstrap).option("topic", target)
    writer = writer.option("checkpointLocation", str(folder)).queryName("copy").trigger(availableNow=True)
    given = {name.replace("__", "."): value for name, value in options.items()}
    return writer.options(**given).start()


def expected(partitions: int, count: int, times: int = 1) -> Counter[str]:
    return Counter({f"{partition}:{index}": times for partition in range(partitions) for index in range(count)})


def test_a_stream_and_another_checkpoint(spark: SparkSession, made: Topics, tmp_path: Path) -> None:
    source, target = made.create(2), made.create(2)
    for partition in range(2):
        made.fill(source, partition, 50)
    query = started(spark, made, source, target, tmp_path / "one")
    assert query.awaitTermination(200)
    assert len([progress for progress in query.recentProgress if progress.numInputRows]) == 3
    assert read(made.bootstrap, target, 2) == expected(2, 50)
    committed = spark.read.format("ottla").option("kafka.bootstrap.servers", made.bootstrap).option("subscribe", target)
    assert committed.option("isolation.level", "read_committed").load().count() == 100
    # Another checkpoint, with the same name.
    with pytest.raises(StreamingQueryException) as refused:
        started(spark, made, source, target, tmp_path / "two").awaitTermination(200)
    allowed = re.search(r"ottla\.exactlyOnce\.confirm = '(replace [^']*)'", str(refused.value))
    assert allowed, str(refused.value)
    assert read(made.bootstrap, target, 2) == expected(2, 50)
    confirmed = {"ottla__exactlyOnce__confirm": allowed[1]}
    assert started(spark, made, source, target, tmp_path / "two", **confirmed).awaitTermination(200)
    assert read(made.bootstrap, target, 2) == expected(2, 50, times=2)


def test_a_batch_write(spark: SparkSession, made: Topics) -> None:
    """After a task failed, nothing of the write is visible; and each task's rows are in one transaction."""
    target = made.create(1)

    def write(frame: DataFrame) -> None:
        writer = frame.selectExpr("CAST(id AS STRING) AS value").write.format("ottla").mode("append")
        writer.option("kafka.bootstrap.servers", made.bootstrap).option("topic", target).option(
            "ottla.exactlyOnce", "true"
        ).save()

    def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for each in batches:
            yield each
            if 999 in each["id"].to_pylist():
                raise ValueError("the last row")

    rows = spark.range(0, 1000, 1, 2)
    with pytest.raises(PySparkException, match="the last row"):
        write(rows.mapInArrow(failing, rows.schema))
    assert read(made.bootstrap, target, 1) == Counter()
    write(rows)
    assert read(made.bootstrap, target, 1) == Counter(map(str, range(1000)))


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("", {}, "ottla.exactlyOnce needs the stream's name"),
        ("n", {"kafka.acks": "1"}, "ottla.exactlyOnce needs kafka.acks=all"),
        ("n", {"kafka.transaction.timeout.ms": "900001"}, "kafka.transaction.timeout.ms is 900001"),
        ("n", {"ottla.exactlyOnce.confirm": "yes"}, "ottla.exactlyOnce.confirm is 'yes'"),
    ],
)
def test_refusals(
    spark: SparkSession, made: Topics, tmp_path: Path, name: str, options: dict[str, str], says: str
) -> None:
    source, target = made.create(1), made.create(1)
    made.fill(source, 0, 5)
    frame = spark.readStream.format("ottla").option("kafka.bootstrap.servers", made.bootstrap)
    writer = frame.option("subscribe", source).option("startingOffsets", "earliest").load().writeStream.format("ottla")
    writer = writer.option("kafka.bootstrap.servers", made.bootstrap).option("ottla.exactlyOnce", "true")
    writer = writer.options(**options).option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    with pytest.raises(StreamingQueryException) as caught:
        (writer.queryName(name) if name else writer).option("topic", target).start().awaitTermination(200)
    assert says in str(caught.value)
    assert read(made.bootstrap, target, 1, "read_uncommitted") == Counter()


class BrokerKills(threading.Thread):
    """Kills a broker after each BROKER_EVERY lines of the file `hits`, and starts it again."""

    def __init__(self, broker: OttlaBroker | ApacheKafka, hits: Path) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self._broker = broker
        self._hits = hits
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(1):
            lines = self._hits.read_text().splitlines() if self._hits.exists() else []
            if len(lines) >= (self.count + 1) * BROKER_EVERY:
                self.count += 1
                self._broker.kill()
                while True:
                    with suppress(AssertionError):  # a busy machine may take more time for it than is waited for
                        self._broker.start_again()
                        break

    def stop(self) -> None:
        self._over.set()
        self.join()


@pytest.mark.timeout(300 + 60 * KILLS)
def test_kills(transactional_broker: Any, made: Topics, tmp_path: Path) -> None:
    """Each row is visible once, whichever process was killed at whichever point; and no transaction stays open."""
    broker, source, target = transactional_broker, made.create(2), made.create(2)
    command = [
        sys.executable,
        "-m",
        "tests.spark.kills",
        broker.bootstrap,
        str(tmp_path),
        "1",
        str(KILLS),
        source,
        target,
    ]
    kills = BrokerKills(broker, tmp_path / "hits")
    if KILLS > LONG:
        kills.start()
    with (tmp_path / "log").open("ab") as log:
        for _ in range(2 + KILLS):
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
            code = process.wait()
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if code == 0:
                break
    if KILLS > LONG:
        kills.stop()
    assert code == 0, (tmp_path / "log").read_text()[-4000:]
    hits = Counter((tmp_path / "hits").read_text().splitlines())
    for what, count in sorted(hits.items()):
        print(f"{count:4} {what}")
    print(f"{hits.total()} kills of Spark's processes, {kills.count} of the broker")
    assert hits.total() >= KILLS // 2
    rows = read(broker.bootstrap, source, 2)  # a row that was filled in while the broker was killed may be there twice
    assert rows.total() >= 2 * KILLS * ROWS
    assert read(broker.bootstrap, target, 2) == rows
