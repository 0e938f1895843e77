"""A disk on which writes hang blocks a broker's event loop. If the loop is blocked for less than
`ottla.event.loop.stall.ms.max`, the broker keeps its registration. If the loop is blocked for longer, other brokers
become the leaders. A disk on which reads hang delays only the readers of its logs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
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
    """A context in which a producer with acks=all writes without a pause. Yields a list that gets the time of each
    acknowledgement."""
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
            assert cluster.leader(TOPIC, 0) == victim, (
                "the broker lost its leadership by a stall of two session time-outs"
            )
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
            cluster.wait("records by the other leader", lambda: acknowledged[-1] > before + 1)
            said = cluster.brokers[victim].log_path.read_text()
            assert "the event loop has stood still" in said

            stuck[victim].unlink()
            cluster.wait_until_in_sync(TOPIC, 1, 3)


COLD, WARM = "cold", "warm"
RECORDS = 200
VALUE = bytes(1000)
READS_STUCK_S = 5.0
SOON_S = 1.5  # the limit for other requests on a busy machine; they usually take less than 200 ms


def consumed(bootstrap: str, topic: str, group: str, count: int, seconds: float) -> int:
    """The number of records, at most `count`, that a consumer of a new group gets within `seconds`."""
    settings = {"group.id": group, "auto.offset.reset": "earliest", "log_level": 0, "fetch.message.max.bytes": 50_000}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    consumer.subscribe([topic])
    got, deadline = 0, time.monotonic() + seconds
    while got < count and time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            got += 1
    consumer.close()
    return got


def test_reads_that_the_disk_doesnt_answer_hold_nobody_else(tmp_path: Path) -> None:
    with ottla_cluster(tmp_path, 1, 0, **FOR_ALL) as cluster:
        [broker] = cluster.brokers
        broker.stop()
        stuck = tmp_path / "stuck"
        reads = tmp_path / "stuck.reads"
        broker.command[1:3] = ["-m", "tests.crash.stuck_disk", str(stuck)]
        broker.start_again()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        for made in admin.create_topics([NewTopic(COLD, 1, 1), NewTopic(WARM, 1, 1)]).values():
            made.result(30)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0, "linger.ms": 0})
        for topic in (COLD, WARM):
            for _ in range(RECORDS):
                producer.produce(topic, VALUE)
        assert producer.flush(30) == 0
        # Before the disk hangs, the groups' coordinator exists, and a consumer has used it.
        assert consumed(cluster.bootstrap, WARM, "before", RECORDS, 60) == RECORDS

        with ThreadPoolExecutor(3) as readers:
            reads.touch()
            try:
                until = time.monotonic() + READS_STUCK_S
                reading = [readers.submit(consumed, cluster.bootstrap, COLD, f"g{n}", RECORDS, 90) for n in range(3)]
                took = []
                while time.monotonic() < until:
                    before = time.monotonic()
                    producer.produce(WARM, VALUE)
                    assert producer.flush(30) == 0, "a record of another topic wasn't acknowledged"
                    admin.list_consumer_groups(request_timeout=30).result()
                    took.append(time.monotonic() - before)
                    time.sleep(0.02)
                assert consumed(cluster.bootstrap, WARM, "during", RECORDS, 60) == RECORDS
                assert not any(reader.done() for reader in reading), "records came from a disk whose reads hang"
            finally:
                reads.unlink()
            assert [reader.result() for reader in reading] == [RECORDS] * 3
        print(f"{len(took)} rounds, the longest of {max(took) * 1000:.0f} ms")
        assert max(took) < SOON_S
        assert "the event loop has stood still" not in broker.log_path.read_text()


def test_a_broker_whose_reads_are_stuck_stops(tmp_path: Path) -> None:
    with ottla_cluster(tmp_path, 1, 0, **FOR_ALL) as cluster:
        [broker] = cluster.brokers
        broker.stop()
        reads = tmp_path / "stuck.reads"
        broker.command[1:3] = ["-m", "tests.crash.stuck_disk", str(tmp_path / "stuck")]
        broker.start_again()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        admin.create_topics([NewTopic(COLD, 1, 1)])[COLD].result(30)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
        producer.produce(COLD, VALUE)
        assert producer.flush(30) == 0
        reads.touch()
        assert consumed(cluster.bootstrap, COLD, "g", 1, 3) == 0
        began = time.monotonic()
        broker.stop()
        assert broker.process.returncode == 0
        assert time.monotonic() - began < 20
