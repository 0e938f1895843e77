"""Three brokers: records that were acknowledged with acks=all are on each broker, byte for byte, even if a broker is
killed meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.peers.ottla_broker import OttlaBroker

PARTITIONS = 6
RECORDS = 3000
TOPIC = "copied"


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[list[OttlaBroker]]:
    """Three brokers on one embedded store, with small segments, so that the replicas roll segments."""
    started: list[OttlaBroker] = []
    try:
        for number in range(3):
            settings = {
                "node_id": str(number),
                "ottla_metadata_store": f"embedded:{tmp_path / 'metadata'}",
                "log_segment_bytes": "1048576",
                "min_insync_replicas": "2",
                "default_replication_factor": "3",
                "num_partitions": str(PARTITIONS),
                "log_retention_check_interval_ms": "3600000",
            }
            started.append(OttlaBroker(tmp_path / f"broker-{number}", **settings))
        yield started
    finally:
        for broker in started:
            if broker.process.poll() is None:
                broker.stop()


def bootstrap_of(brokers: list[OttlaBroker]) -> str:
    return ",".join(broker.bootstrap for broker in brokers)


def create_topic(brokers: list[OttlaBroker]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_of(brokers)})
    for future in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)]).values():
        future.result(30)


def produce(brokers: list[OttlaBroker], first: int, count: int) -> dict[int, list[bytes]]:
    """Produces `count` records, and returns their values by partition, in the order of their acknowledgements. Raises
    AssertionError if a record fails."""
    acknowledged: dict[int, list[bytes]] = {index: [] for index in range(PARTITIONS)}
    failed: list[str] = []

    def answered(error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is not None:
            failed.append(str(error))
        else:
            index, value = message.partition(), message.value()
            assert index is not None
            assert isinstance(value, bytes)
            acknowledged[index].append(value)

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": bootstrap_of(brokers),
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 1,
            "batch.num.messages": 20,
            "message.timeout.ms": 60_000,
            "log_level": 0,
        }
    )
    for number in range(first, first + count):
        value = b"%d:" % number + b"x" * 2000
        while True:
            try:
                producer.produce(TOPIC, value, partition=number % PARTITIONS, on_delivery=answered)
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
    assert producer.flush(60) == 0
    assert not failed, failed[:3]
    return acknowledged


def segments(broker: OttlaBroker, index: int) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((broker.data / f"{TOPIC}-{index}").glob("*.log"))}


def wait_until_alike(brokers: list[OttlaBroker], seconds: float = 30.0) -> None:
    """Waits until all replicas of each partition have the same segments with the same bytes."""
    deadline = time.monotonic() + seconds
    for index in range(PARTITIONS):
        while True:
            copies = [segments(broker, index) for broker in brokers]
            if copies[0] and copies[0] == copies[1] == copies[2]:
                break
            if time.monotonic() > deadline:
                sizes = [{name: len(data) for name, data in copy.items()} for copy in copies]
                raise AssertionError(f"{TOPIC}-{index} differs: {sizes}")
            time.sleep(0.1)


def read_all(brokers: list[OttlaBroker]) -> dict[int, list[bytes]]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap_of(brokers),
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
    found: dict[int, list[bytes]] = {index: [] for index in range(PARTITIONS)}
    ended: set[int] = set()
    deadline = time.monotonic() + 60
    while len(ended) < PARTITIONS and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is None:
            continue
        index = message.partition()
        assert index is not None
        if (error := message.error()) is not None:
            assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
            ended.add(index)
        else:
            value = message.value()
            assert isinstance(value, bytes)
            found[index].append(value)
    consumer.close()
    assert len(ended) == PARTITIONS
    return found


def test_followers_have_the_leaders_bytes(brokers: list[OttlaBroker]) -> None:
    create_topic(brokers)
    acknowledged = produce(brokers, 0, RECORDS)
    wait_until_alike(brokers)
    assert read_all(brokers) == acknowledged


def test_a_killed_brokers_replicas_are_made_alike_again(brokers: list[OttlaBroker]) -> None:
    create_topic(brokers)
    acknowledged = produce(brokers, 0, RECORDS)
    for victim in (0, 1):
        brokers[victim].kill()
        first = RECORDS * (victim + 1)
        for index, values in produce(brokers, first, RECORDS).items():
            acknowledged[index] += values
        brokers[victim].start_again()
        wait_until_alike(brokers, 60)
    assert read_all(brokers) == acknowledged
