"""A follower comes back while clients write without a pause to its leader, the only in-sync replica.

If the leader committed each record immediately, the follower would always be a little behind, and never reach the high
watermark. So the high watermark waits for a follower that catches up, but not for one that stalls.
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.metadata import keys
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.model.brokers import Broker
from tests.peers.ottla_cluster import OttlaCluster, ottla_cluster
from tests.peers.wire import Wire

pytestmark = pytest.mark.timeout(240)

TOPIC = "loaded"
LEADER, FOLLOWER = 0, 1
FETCH, LIST_OFFSETS, METADATA = 1, 2, 3
JOINS_WITHIN_S = 1.0
LAG_S = 4.0
RECORD_BYTES = 170  # the size of a batch of one record
LOAD_S = 90  # seconds after which the load ends at the latest; the test ends it earlier
# A process that always has requests with acks=1 in flight, each of one small record: the leader's log grows all the
# time.
PRODUCER = """
import socket, struct, sys, time
from ottla.protocol.batches import Record, build_batch
from ottla.protocol.frames import request_frame
from ottla.protocol.messages import write_request
host, _, port = sys.argv[1].rpartition(":")
batch = build_batch([Record(0, int(time.time() * 1000), None, b"x" * 100)])
partitions = [{"index": 0, "records": batch}]
message = {"acks": 1, "timeout": 10_000, "topic_data": [{"name": sys.argv[2], "partition_data": partitions}]}
frame = request_frame(0, 9, 1, "load", write_request(0, 9, message))
connection = socket.create_connection((host, int(port)), 20)
connection.sendall(frame * 50)
received = bytearray()
ends = time.monotonic() + float(sys.argv[3])
while time.monotonic() < ends:
    received += connection.recv(65536)
    answered, at = 0, 0
    while len(received) - at >= 4 and len(received) - at >= 4 + struct.unpack_from(">i", received, at)[0]:
        at += 4 + struct.unpack_from(">i", received, at)[0]
        answered += 1
    del received[:at]
    connection.sendall(frame * answered)
"""


@contextmanager
def load(bootstrap: str, producers: int) -> Iterator[None]:
    """Producers that send as fast as they can."""
    command = [sys.executable, "-c", PRODUCER, bootstrap, TOPIC, str(LOAD_S)]
    running = [subprocess.Popen(command) for _ in range(producers)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def pair(folder: Path, **settings: str) -> Any:
    """Two brokers. The first one leads the topic, the other one follows."""
    return ottla_cluster(folder, 2, min_insync_replicas="1", auto_leader_rebalance_enable="false", **settings)


def create(cluster: OttlaCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, 1, replica_assignment=[[LEADER, FOLLOWER]])])[TOPIC].result(30)
    cluster.wait_until_in_sync(TOPIC, 1, 2)


def stored_bytes(cluster: OttlaCluster, number: int) -> int:
    """The size of a broker's log of the partition. Equal logs have the same bytes."""
    folder = cluster.folder_of(number, TOPIC, 0)
    return 0 if folder is None else sum(path.stat().st_size for path in folder.glob("*.log"))


def in_sync(wire: Wire) -> set[int]:
    """The ISR, as the leader knows it."""
    answer = wire.call(METADATA, 9, {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": False})
    return set(answer.topics[0].partitions[0].isr_nodes)


def rejoined(cluster: OttlaCluster, wire: Wire) -> tuple[float, float]:
    """Starts the follower and waits until it is in sync. Returns the seconds from the moment at which it had caught up
    until it was in the ISR, and the longest time in seconds between two checks."""
    cluster.brokers[FOLLOWER].start_again()
    caught_up_at, longest_gap_s, had = -1.0, 0.0, -1
    began = sampled_at = time.monotonic()
    before = stored_bytes(cluster, LEADER)
    while True:
        now = time.monotonic()
        assert now - began < 60, "the follower doesn't join the ISR"
        longest_gap_s, sampled_at = max(longest_gap_s, now - sampled_at), now
        if caught_up_at < 0 and 0 <= had <= stored_bytes(cluster, FOLLOWER):
            caught_up_at = now  # the follower has the bytes that the leader had at the previous check
        had = stored_bytes(cluster, LEADER)
        if FOLLOWER in in_sync(wire):
            break
        time.sleep(0.01)
    joined_at = time.monotonic()
    took_s = joined_at - caught_up_at if caught_up_at >= 0 else 0.0
    rate = (had - before) / RECORD_BYTES / (joined_at - began)
    print(f"in sync {took_s:.3f} s after catching up, {joined_at - began:.3f} s after the start; {rate:.0f} records/s")
    cluster.wait("the load goes on", lambda: stored_bytes(cluster, LEADER) > had)
    return took_s, longest_gap_s


def test_a_restarted_follower_joins_within_a_second_of_having_caught_up(tmp_path: Path) -> None:
    with pair(tmp_path) as cluster:
        create(cluster)
        leader = cluster.brokers[LEADER].bootstrap
        with Wire(leader) as wire, load(leader, 3):
            for _ in range(3):
                cluster.brokers[FOLLOWER].kill()
                cluster.wait("the leader is alone in the ISR", lambda: in_sync(wire) == {LEADER})
                took_s, longest_gap_s = rejoined(cluster, wire)
                # On a busy machine a check may be late. The broker doesn't cause that delay.
                assert took_s <= JOINS_WITHIN_S + longest_gap_s


def broker_epoch(folder: Path, number: int) -> int:
    """The epoch of a broker's registration, from the metadata store."""

    async def read() -> int:
        store = await EmbeddedStore.open(folder)
        try:
            snapshot = await store.read(keys.broker(number))
            (entry,) = [entry for entry in snapshot.entries if entry.key == keys.broker(number)]
            return Broker.decode(entry).epoch
        finally:
            await store.close()

    return asyncio.run(read())


def test_a_stalled_candidate_holds_the_high_watermark_no_longer_than_the_lag_allowed(tmp_path: Path) -> None:
    """The follower gets SIGSTOP and keeps its registration. The test sends Fetch requests with the follower's id,
    catches up, and then never fetches again."""
    settings = {"replica_lag_time_max_ms": str(int(LAG_S * 1000)), "broker_session_timeout_ms": "120000"}
    with pair(tmp_path, **settings) as cluster:
        create(cluster)
        leader = cluster.brokers[LEADER].bootstrap
        epoch = broker_epoch(tmp_path / "metadata", FOLLOWER)
        cluster.brokers[FOLLOWER].pause()
        try:
            with Wire(leader) as asking, Wire(leader) as fetching:
                names = itertools.count()

                def produce() -> None:
                    producer = confluent_kafka.Producer({"bootstrap.servers": leader, "acks": "1", "log_level": 0})
                    producer.produce(TOPIC, b"%d" % next(names), partition=0)
                    assert producer.flush(20) == 0

                def high_watermark() -> int:
                    partitions = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]
                    message = {"replica_id": -1, "topics": [{"name": TOPIC, "partitions": partitions}]}
                    return int(asking.call(LIST_OFFSETS, 7, message).topics[0].partitions[0].offset)

                produce()
                cluster.wait("the leader is alone in the ISR", lambda: in_sync(asking) == {LEADER})
                metadata = asking.call(METADATA, 12, {"topics": [{"name": TOPIC}], "allow_auto_topic_creation": False})
                topic = metadata.topics[0]
                produce()
                end = high_watermark()

                def fetch(offset: int) -> None:
                    """Fetches as the follower does."""
                    partition = {
                        "partition": 0, "current_leader_epoch": topic.partitions[0].leader_epoch,
                        "fetch_offset": offset, "last_fetched_epoch": -1, "log_start_offset": 0,
                        "partition_max_bytes": 1 << 20,
                    }  # fmt: skip
                    answer = fetching.call(
                        FETCH, 17,
                        {
                            "replica_state": {"replica_id": FOLLOWER, "replica_epoch": epoch},
                            "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "session_epoch": -1,
                            "topics": [{"topic_id": UUID(str(topic.topic_id)), "partitions": [partition]}],
                        },
                    )  # fmt: skip
                    assert not answer.responses[0].partitions[0].error_code

                fetch(end - 1)
                produce()
                fetch(end)  # the leader's log ended there at the previous fetch
                caught_up_at = time.monotonic()
                assert in_sync(asking) == {LEADER}, "the follower is behind the high watermark"
                held = high_watermark()
                produce()
                assert high_watermark() == held == end + 1
                cluster.wait("the leader commits alone", lambda: high_watermark() == end + 2, LAG_S + 20)
                waited_s = time.monotonic() - caught_up_at
                print(f"the high watermark was held for {waited_s:.2f} s")
                assert waited_s <= LAG_S + 1  # the test checks every 50 ms, on a machine that may be busy
                produce()
                assert high_watermark() == end + 3
        finally:
            cluster.brokers[FOLLOWER].go_on()
