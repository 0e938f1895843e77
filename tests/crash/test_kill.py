"""SIGKILL under load: acknowledged records are there after the restart, once and in order.

This tests recovery, not fsync: the page cache survives the process.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, TopicPartition

from tests.peers.apache_kafka import tool
from tests.peers.ottla_broker import OttlaBroker

ROUNDS = 4
PARTITIONS = 3


class Writer(threading.Thread):
    """An idempotent producer that numbers its records by partition, and notes the acknowledged numbers."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[list[int]] = [[] for _ in range(PARTITIONS)]
        self.failed: list[str] = []
        self.stopping = False
        self._topic = topic
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "compression.type": "lz4",
                "linger.ms": 2,
                "message.timeout.ms": 120_000,
                "reconnect.backoff.max.ms": 200,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        number = 0
        while not self.stopping:
            for partition in range(PARTITIONS):
                self._send(partition, number)
            number += 1
            self._producer.poll(0)
            if number % 20 == 0:
                time.sleep(0.001)
        if left := self._producer.flush(60):
            self.failed.append(f"{left} never answered")

    def _send(self, partition: int, number: int) -> None:
        def answered(error: confluent_kafka.KafkaError | None, _: confluent_kafka.Message) -> None:
            if error is None:
                self.acknowledged[partition].append(number)
            else:
                self.failed.append(str(error))

        while True:
            try:
                value = b"%d" % number
                self._producer.produce(self._topic, value, partition=partition, on_delivery=answered)
                return
            except BufferError:
                self._producer.poll(0.05)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[OttlaBroker]:
    """A broker with small segments, so that kills hit segment rolls, snapshots and indexes."""
    running = OttlaBroker(tmp_path, log_segment_bytes="1048576", group_initial_rebalance_delay_ms="0")
    yield running
    running.stop()


def read_all(bootstrap: str, topic: str, partition: int) -> list[int]:
    """The numbers in a partition, in order of their offsets."""
    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id=None, check_crcs=True)
    assigned = TopicPartition(topic, partition)
    consumer.assign([assigned])
    end = consumer.end_offsets([assigned])[assigned]
    numbers: list[int] = []
    deadline = time.monotonic() + 60
    while len(numbers) < end and time.monotonic() < deadline:
        for records in consumer.poll(500).values():
            numbers.extend(int(record.value) for record in records)
    consumer.close()
    return numbers


@pytest.mark.timeout(300)
def test_acknowledged_records_survive_kills_once_and_in_order(broker: OttlaBroker) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("killed", PARTITIONS, 1)])["killed"].result(20)
    writer = Writer(broker.bootstrap, "killed")
    writer.start()
    for _ in range(ROUNDS):
        time.sleep(dice.uniform(0.5, 2.0))
        broker.kill()
        broker.start_again()
    time.sleep(1)
    writer.stopping = True
    writer.join(90)
    assert not writer.is_alive()
    assert not writer.failed, writer.failed[:3]
    for partition in range(PARTITIONS):
        numbers = read_all(broker.bootstrap, "killed", partition)
        assert len(numbers) > 1000
        assert numbers == writer.acknowledged[partition], "the log has the acknowledged records, once and in order"
    for path in sorted(broker.data.glob("killed-*/*.log")):
        assert "isvalid: false" not in tool("dump-log", "--files", str(path))
        break


@pytest.mark.timeout(300)
def test_committed_offsets_and_topics_survive_kills(broker: OttlaBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for round_number in range(3):
        name = f"topic-{round_number}"
        admin.create_topics([NewTopic(name, 2, 1, config={"retention.ms": "1234567"})])[name].result(20)
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": broker.bootstrap, "group.id": "survivor", "enable.auto.commit": False, "log_level": 0}
        )
        position = confluent_kafka.TopicPartition(name, 1, 100 + round_number)
        committed = consumer.commit(offsets=[position], asynchronous=False)
        assert committed[0].error is None
        broker.kill()
        broker.start_again()
        for earlier in range(round_number + 1):
            asked = [confluent_kafka.TopicPartition(f"topic-{earlier}", 1)]
            assert consumer.committed(asked, timeout=30)[0].offset == 100 + earlier
        consumer.close()
    assert {f"topic-{i}" for i in range(3)} <= set(admin.list_topics(timeout=20).topics)
