"""A consumer reads from the replica in its rack, and goes on from the leader when that replica dies (KIP-392)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.peers.ottla_cluster import OttlaCluster, ottla_cluster

pytestmark = pytest.mark.timeout(120)

TOPIC = "near"
SENT_BYTES = f'kafka_server_brokertopicmetrics_bytesout_total{{topic="{TOPIC}"}}'
RECORDS = 500


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[OttlaCluster]:
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    with ottla_cluster(tmp_path, 3, broker_rack="rack-{id}", replica_selector_class=selector) as running:
        yield running


def produce(cluster: OttlaCluster, values: range) -> None:
    failed: list[object] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    for value in values:
        producer.produce(TOPIC, b"%d" % value, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(30) == 0
    assert not failed


def read(consumer: confluent_kafka.Consumer, count: int) -> list[int]:
    """The values of the next `count` records."""
    found: list[int] = []
    deadline = time.monotonic() + 40
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} records of {count}"
        found += [int(message.value() or b"") for message in consumer.consume(count, 0.5) if message.error() is None]
    return found


def test_a_consumer_reads_from_the_replica_in_its_rack(cluster: OttlaCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, 1, replica_assignment=[[0, 1, 2]])])[TOPIC].result(30)
    cluster.wait_until_in_sync(TOPIC, 1, 3)
    produce(cluster, range(RECORDS))
    near = 2
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "client.rack": f"rack-{near}", "log_level": 0}
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    assert read(consumer, RECORDS) == list(range(RECORDS))
    produce(cluster, range(RECORDS, 2 * RECORDS))
    assert read(consumer, RECORDS) == list(range(RECORDS, 2 * RECORDS))
    assert [cluster.metrics(number).get(SENT_BYTES, 0) > 0 for number in range(3)] == [False, False, True]

    cluster.brokers[near].kill()
    produce(cluster, range(2 * RECORDS, 3 * RECORDS))
    assert read(consumer, RECORDS) == list(range(2 * RECORDS, 3 * RECORDS))
    consumer.close()
    assert cluster.metrics(0)[SENT_BYTES] > 0
