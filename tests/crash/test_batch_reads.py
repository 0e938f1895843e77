"""Batch reads of Ottla's Spark source while leaders of the read partitions are killed: each row is read once, and in
time.

The tests call the source as Spark does, without Spark: `partitions` plans the tasks, `read` yields a task's rows. If a
process is killed, the kernel closes its connections. If a machine, or a pod with its network, dies, the connections
stay open: for this case the test pauses the process before it kills the process.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from random import Random

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from ottla.net.client import Client
from ottla.net.names import TopicPartition
from ottla.net.producing import Producer
from ottla.protocol.batches import Record, write_record
from ottla.spark.source import DefaultSource
from tests.crash.faults import LONG
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.ottla_cluster import OttlaCluster, ottla_cluster

TOPIC = "read"
PARTITIONS = 6
BATCHES, BATCH_RECORDS, RECORD_BYTES = 60, 20, 1000
QUICK = {"broker_session_timeout_ms": "3000", "replica_lag_time_max_ms": "3000"}
# (settings, kills, the longest duration that a read may take in seconds). A machine's death is noticed at the end of a
# session, 9 s by default. Twelve more seconds are for the election, the new leader and a machine with a load of 30.
CLUSTERS = {"quick": (QUICK, 50 if LONG else 4, 15.0)} | ({"defaults": ({}, 15, 21.0)} if LONG else {})
OFFSETS = StructType([StructField("offset", LongType())])


@pytest.mark.timeout(3600 if LONG else 300)
@pytest.mark.parametrize("goodbye", [True, False], ids=["process", "machine"])
@pytest.mark.parametrize(("settings", "kills", "slowest_s"), CLUSTERS.values(), ids=CLUSTERS)
def test_a_read_whose_leader_is_killed_in_the_middle_ends_in_time(
    tmp_path: Path, settings: dict[str, str], kills: int, slowest_s: float, goodbye: bool
) -> None:
    seed = time.time_ns() if LONG else 7
    chance = Random(seed)
    with ottla_cluster(tmp_path, 3, 1, **settings) as cluster:
        fill(cluster)
        load_kernels(cluster)
        took = []
        for _ in range(kills):
            took.append(read_over_a_kill(cluster, chance, goodbye))
            cluster.wait_until_in_sync(TOPIC, PARTITIONS, 3)
        print(f"seed {seed}: {kills} reads over a kill took {min(took):.1f} to {max(took):.1f} s")
        assert max(took) < slowest_s, sorted(took)


def fill(cluster: OttlaCluster) -> None:
    body = bytearray()
    for index in range(BATCH_RECORDS):
        write_record(body, Record(index, 0, None, b"x" * RECORD_BYTES, ()), 0, 0)
    with Client(cluster.bootstrap) as client:
        client.create_topic(TOPIC, PARTITIONS, configs={"retention.ms": "-1"})
        cluster.wait_until_in_sync(TOPIC, PARTITIONS, 3)
        producer = Producer(client)
        for _ in range(BATCHES):
            for index in range(PARTITIONS):
                producer.send(TopicPartition(TOPIC, index), bytes(body), BATCH_RECORDS, 1)
        producer.flush()


def options(cluster: OttlaCluster) -> dict[str, str]:
    return {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": TOPIC, "kafka.fetch.max.bytes": "50000"}


def load_kernels(cluster: OttlaCluster) -> None:
    """Reads one task without a fault, so that the measured reads don't include a process's first task: that takes
    seconds longer, on a busy machine ten seconds."""
    reader = DefaultSource(options(cluster)).reader(OFFSETS)
    assert sum(rows.num_rows for rows in reader.read(reader.partitions()[0])) == BATCHES * BATCH_RECORDS


def read_over_a_kill(cluster: OttlaCluster, chance: Random, goodbye: bool) -> float:
    """Reads the whole topic, and kills the leader of a partition while the partition is read. Returns the seconds that
    the read took."""
    reader = DefaultSource(options(cluster)).reader(OFFSETS)
    partition = chance.randrange(PARTITIONS)
    moment = chance.randrange(BATCHES * BATCH_RECORDS)
    victim: OttlaBroker | None = None
    restarting: threading.Timer | None = None
    began = time.monotonic()
    for task in reader.partitions():
        (asked,) = task.ranges
        offsets: list[int] = []
        for rows in reader.read(task):
            offsets += rows.column("offset").to_pylist()
            if victim is None and asked.partition.partition == partition and len(offsets) > moment:
                victim = cluster.brokers[cluster.leader(TOPIC, partition)]
                if goodbye:
                    victim.kill()
                    restarting = threading.Timer(chance.uniform(0, 4), victim.start_again)
                    restarting.start()
                else:
                    victim.pause()
        assert offsets == list(range(BATCHES * BATCH_RECORDS))
    took = time.monotonic() - began
    assert victim is not None
    if restarting is not None:
        restarting.join()
    else:
        victim.kill()
        victim.start_again()
    return took
