"""A disk that answers nothing stops a broker's event loop: for less than the bound it costs no registration, and for
longer its partitions move."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.peers.ottla_cluster import OttlaCluster, ottla_cluster

pytestmark = pytest.mark.timeout(240)

TOPIC = "t"
SESSION_S, STALL_S = 3.0, 10.0
FOR_ALL = {
    "broker_session_timeout_ms": str(int(SESSION_S * 1000)),
    "ottla_event_loop_stall_ms_max": str(int(STALL_S * 1000)),
}


@contextmanager
def written_to(cluster: OttlaCluster) -> Iterator[list[float]]:
    """When records were acknowledged, by all replicas in sync, while somebody writes all the time."""
    acknowledged: list[float] = []
    over = threading.Event()

    def write() -> None:
        settings = {
            "acks": "all",
            "linger.ms": 5,
            "request.timeout.ms": 2000,
            "socket.timeout.ms": 4000,
            "log_level": 0,
        }
        producer = Producer({"bootstrap.servers": cluster.bootstrap, **settings})
        while not over.is_set():
            producer.produce(TOPIC, b"x", on_delivery=lambda error, _: error or acknowledged.append(time.monotonic()))
            producer.poll(0.02)
        producer.flush(30)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield acknowledged
    finally:
        over.set()
        writer.join()


@pytest.mark.parametrize("etcd_members", [0, 1])
def test_a_disk_that_answers_nothing(tmp_path: Path, etcd_members: int) -> None:
    with ottla_cluster(tmp_path, 3, etcd_members, **FOR_ALL) as cluster:
        stuck = [tmp_path / f"stuck-{number}" for number in range(3)]
        for number, broker in enumerate(cluster.brokers):
            broker.stop()
            broker.command[1:3] = ["-m", "tests.crash.stuck_disk", str(stuck[number])]
            broker.start_again()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(TOPIC, 1, 3)])[TOPIC].result(30)
        cluster.wait_until_in_sync(TOPIC, 1, 3)
        with written_to(cluster) as acknowledged:
            cluster.wait("records", lambda: len(acknowledged) > 20)
            victim = cluster.leader(TOPIC, 0)
            epoch = cluster.partition(TOPIC, 0).leader_epoch

            stuck[victim].touch()
            time.sleep(2 * SESSION_S)
            assert cluster.leader(TOPIC, 0) == victim, "a stall of two sessions cost the registration"
            stuck[victim].unlink()
            before = time.monotonic()
            cluster.wait("records again", lambda: acknowledged[-1] > before + 1)
            assert cluster.leader(TOPIC, 0) == victim
            assert cluster.partition(TOPIC, 0).leader_epoch == epoch

            began = time.monotonic()
            stuck[victim].touch()
            cluster.wait("another leader", lambda: cluster.leader(TOPIC, 0) not in (victim, -1), STALL_S + 30)
            assert time.monotonic() - began > STALL_S - SESSION_S
            before = time.monotonic()
            cluster.wait("records by the other", lambda: acknowledged[-1] > before + 1)
            said = cluster.brokers[victim].log_path.read_text()
            assert "the event loop has stood still" in said

            stuck[victim].unlink()
            cluster.wait_until_in_sync(TOPIC, 1, 3)
