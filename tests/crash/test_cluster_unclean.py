"""All in-sync replicas of a partition are down: the partition waits for them, unless its topic allows unclean
elections.

In both cases the replicas are alike in the end, and a log that has diverged is truncated.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.crash.faults import SETTINGS
from tests.peers.ottla_cluster import OttlaCluster, ottla_cluster

pytestmark = pytest.mark.timeout(120)

TOPIC = "torn"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[OttlaCluster]:
    with ottla_cluster(tmp_path, 3, **{**SETTINGS, "min_insync_replicas": "1"}) as running:
        yield running


def produce(cluster: OttlaCluster, values: list[str]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    failed: list[object] = []
    for value in values:
        producer.produce(TOPIC, value.encode(), on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(30) == 0
    assert not failed


def read_all(cluster: OttlaCluster) -> list[str]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "none", "enable.auto.commit": False, "log_level": 0}
    )
    partition = confluent_kafka.TopicPartition(TOPIC, 0, 0)
    _, end = consumer.get_watermark_offsets(partition, timeout=20)
    consumer.assign([partition])
    found: list[str] = []
    deadline = time.monotonic() + 20
    while len(found) < end and time.monotonic() < deadline:
        found += [message.value().decode() for message in consumer.consume(100, 0.5) if message.value() is not None]
    consumer.close()
    return found


def lonely_leader(cluster: OttlaCluster, unclean: str) -> tuple[int, list[int]]:
    """(the only in-sync replica, the other replicas); the brokers of all of them have been killed."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    config = {"unclean.leader.election.enable": unclean}
    admin.create_topics([NewTopic(TOPIC, 1, 3, config=config)])[TOPIC].result(30)
    cluster.wait_until_in_sync(TOPIC, 1, 3)
    produce(cluster, [f"shared {number}" for number in range(100)])
    leader = cluster.leader(TOPIC, 0)
    others = [number for number in range(3) if number != leader]
    for number in others:
        cluster.brokers[number].kill()
    cluster.wait("only the leader is in sync", lambda: list(cluster.partition(TOPIC, 0).isr_nodes) == [leader])
    produce(cluster, [f"alone {number}" for number in range(100)])
    cluster.brokers[leader].kill()
    return leader, others


def wait_until_alike(cluster: OttlaCluster) -> None:
    def alike() -> bool:
        folders = [cluster.folder_of(number, TOPIC, 0) for number in range(3)]
        logs = {b"".join(log.read_bytes() for log in sorted(folder.glob("*.log"))) for folder in folders if folder}
        return len(logs) == 1

    cluster.wait_until_in_sync(TOPIC, 1, 3)
    cluster.wait("the replicas are alike", alike)


def test_the_last_in_sync_replica_is_waited_for(cluster: OttlaCluster) -> None:
    leader, others = lonely_leader(cluster, "false")
    for number in others:
        cluster.brokers[number].start_again()
    time.sleep(2)
    assert cluster.leader(TOPIC, 0) == -1
    cluster.brokers[leader].start_again()
    cluster.wait("it leads again", lambda: cluster.leader(TOPIC, 0) == leader)
    produce(cluster, ["last"])
    wait_until_alike(cluster)
    kinds = [value.split()[0] for value in read_all(cluster)]
    assert kinds == ["shared"] * 100 + ["alone"] * 100 + ["last"]


def test_an_unclean_election_truncates_who_knew_more(cluster: OttlaCluster) -> None:
    leader, others = lonely_leader(cluster, "true")
    for number in others:
        cluster.brokers[number].start_again()
    cluster.wait("a replica without the last records leads", lambda: cluster.leader(TOPIC, 0) in others)
    produce(cluster, [f"instead {number}" for number in range(50)])
    cluster.brokers[leader].start_again()
    wait_until_alike(cluster)
    kinds = [value.split()[0] for value in read_all(cluster)]
    assert kinds == ["shared"] * 100 + ["instead"] * 50
    assert f"{TOPIC}-0: truncates to 100, from 200" in cluster.brokers[leader].log_path.read_text()
