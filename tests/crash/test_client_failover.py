"""Clients while brokers are killed one after the other: Ottla's client, its producer (Spark's), and librdkafka."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import confluent_kafka
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


DEATHS = 10
SOON_S = 0.5  # after an answer without a new leader, librdkafka asks again only a second later


def test_librdkafka_goes_on_as_soon_as_another_broker_leads(cluster: OttlaCluster) -> None:
    """When its connection is cut, librdkafka asks for Metadata, and the answer names the new leader. A failover has
    ended when each partition that the dead broker led has acknowledged a record."""
    with Client(cluster.bootstrap) as client:
        create(client, cluster)
    took = [seconds_without(cluster) for _ in range(DEATHS)]
    print(f"median {median(took):.2f} s, all {sorted(round(seconds, 2) for seconds in took)}")
    assert median(took) < SOON_S
    assert sum(seconds < SOON_S for seconds in took) >= DEATHS * 0.7  # the machine may be busy


def seconds_without(cluster: OttlaCluster) -> float:
    """Kills a leader, and returns the seconds until each partition that it led has acknowledged a record. The broker is
    started again afterwards."""
    again: dict[int, float] = {}  # partition → the first acknowledgement of a record that was sent after the death
    heard: dict[int, list[tuple[float, float]]] = {partition.partition: [] for partition in PARTITIONS}
    stopping = threading.Event()
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})

    def send() -> None:
        while not stopping.wait(0.005):
            for index in heard:
                sent = time.monotonic()

                def answered(error: Any, _: Any, index: int = index, sent: float = sent) -> None:
                    if error is None:
                        heard[index].append((sent, time.monotonic()))

                producer.produce(TOPIC, b"x" * 100, partition=index, on_delivery=answered)
            producer.poll(0)

    sending = threading.Thread(target=send)
    sending.start()
    try:
        cluster.wait("every partition is written to", lambda: all(heard.values()))
        victim = next(leader for index in heard if (leader := cluster.leader(TOPIC, index)) >= 0)
        led = [index for index in heard if cluster.leader(TOPIC, index) == victim]
        began = time.monotonic()
        cluster.brokers[victim].kill()

        def goes_on() -> bool:
            for index in led:
                after = [answered for sent, answered in list(heard[index]) if sent > began]
                if after:
                    again.setdefault(index, min(after))
            return len(again) == len(led)

        cluster.wait("every partition is written to again", goes_on)
    finally:
        stopping.set()
        sending.join()
    producer.flush(30)
    cluster.brokers[victim].start_again()
    cluster.wait_until_in_sync(TOPIC, len(PARTITIONS), 3)
    return max(again.values()) - began
