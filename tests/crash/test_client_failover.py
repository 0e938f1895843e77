"""Our own client and producer (Spark's) on a cluster whose brokers are killed one after the other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.net.client import Client
from ottla.net.names import LATEST, TopicPartition
from ottla.net.producing import PRODUCE, Producer
from ottla.protocol.batches import Record, write_record
from tests.peers.ottla_cluster import OttlaCluster

TOPIC = "t"
PARTITIONS = [TopicPartition(TOPIC, index) for index in range(6)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[OttlaCluster]:
    cluster = OttlaCluster(tmp_path)
    yield cluster
    cluster.close()


def create(client: Client, cluster: OttlaCluster) -> None:
    client.create_topic(TOPIC, len(PARTITIONS))
    cluster.wait_until_in_sync(TOPIC, len(PARTITIONS), 3)


def test_metadata_is_asked_beside_what_is_under_way(cluster: OttlaCluster) -> None:
    with Client(cluster.bootstrap) as client:
        create(client, cluster)
        brokers = client.metadata([]).brokers
        busy = [client.broker(node) for node in brokers]
        for connection in busy:
            message = {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": []}
            connection.send(PRODUCE, connection.version(PRODUCE, 3, 9), message)
        assert client.metadata([TOPIC]).brokers == brokers
        for connection in busy:
            assert connection.receive().responses == ()


def test_a_producer_goes_on_over_the_death_of_each_broker(cluster: OttlaCluster) -> None:
    body = bytearray()
    write_record(body, Record(0, 0, None, b"x" * 100, ()), 0, 0)
    with Client(cluster.bootstrap) as client:
        create(client, cluster)
        producer = Producer(client, buffer_bytes=20_000, delivery_timeout_ms=60_000)
        killing = threading.Thread(target=kill_each, args=(cluster,))
        killing.start()
        sent = 0
        while killing.is_alive():
            for partition in PARTITIONS:
                producer.send(partition, bytes(body), 1, 1)
                sent += 1
        producer.flush()
        assert producer.records_acknowledged == sent > 100
        ends = client.list_offsets(dict.fromkeys(PARTITIONS, LATEST))
        assert sum(found.offset for found in ends.values()) == sent


def kill_each(cluster: OttlaCluster) -> None:
    for broker in cluster.brokers:
        time.sleep(1)
        broker.kill()
        time.sleep(1)
        broker.start_again()
        cluster.wait_until_in_sync(TOPIC, len(PARTITIONS), 3)
