"""The metadata store is lost, and restored from an old backup: no acknowledged record is lost, on an embedded store or
on etcd."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from tests.peers.ottla_cluster import OttlaCluster
from tests.peers.wire import Wire

INIT_PRODUCER_ID, ALTER_PARTITION_REASSIGNMENTS = 22, 45


@pytest.fixture(params=["embedded", "etcd"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OttlaCluster]:
    cluster = OttlaCluster(tmp_path, 3, 1 if request.param == "etcd" else 0, broker_session_timeout_ms="3000")
    yield cluster
    cluster.close()


def properties(folder: Path, number: int) -> Path:
    return folder / f"broker-{number}" / "server.properties"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, timeout=60, check=False)


def metadata(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run("ottla.cli.main", "metadata", *arguments, "--config", str(properties(folder, 0)))


def lose_the_store(cluster: OttlaCluster, folder: Path) -> None:
    if cluster.etcd:
        cluster.etcd[0].control("del", "--prefix", "/ottla/")
    else:
        for file in folder.glob("metadata*"):
            if file.is_file():
                file.unlink()


def create(cluster: OttlaCluster, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    new = NewTopic(topic, 4, 3, config={"min.insync.replicas": "2"})
    admin.create_topics([new])[topic].result(30)


def produce(cluster: OttlaCluster, topic: str, values: range) -> None:
    failed: list[Any] = []
    settings = {"bootstrap.servers": cluster.bootstrap, "acks": "all", "enable.idempotence": True, "log_level": 0}
    producer = confluent_kafka.Producer(settings)
    for value in values:
        producer.produce(topic, b"%d" % value, on_delivery=lambda error, message: error and failed.append(error))
    assert producer.flush(60) == 0
    assert not failed


def read_all(cluster: OttlaCluster, topic: str) -> list[int]:
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "g", "enable.partition.eof": True, "log_level": 0}
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(4)])
    found: list[int] = []
    ended = 0
    deadline = time.monotonic() + 60
    while ended < 4 and time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error() is None:
            found.append(int(message.value() or b""))
        else:
            ended += 1
    consumer.close()
    return sorted(found)


def producer_id(cluster: OttlaCluster) -> int:
    with Wire(cluster.brokers[0].bootstrap) as wire:
        answer = wire.call(INIT_PRODUCER_ID, 4, {"transactional_id": None, "transaction_timeout": 1000})
        assert answer.error_code == 0
        return int(answer.producer_id)


def test_a_stale_backup_is_restored(cluster: OttlaCluster, tmp_path: Path) -> None:
    backup = str(tmp_path / "backup")
    create(cluster, "kept")
    produce(cluster, "kept", range(500))
    made = metadata(tmp_path, "backup", backup)
    assert made.returncode == 0, made.stderr

    # After the backup there are other leaders, more epochs, more records, another topic and more producer ids.
    for victim in cluster.brokers:
        victim.kill()
        produce(cluster, "kept", range(500, 600))
        victim.start_again()
        cluster.wait_until_in_sync("kept", 4, 3)
    produce(cluster, "kept", range(600, 1000))
    create(cluster, "unknown")
    produce(cluster, "unknown", range(10))
    used = max(producer_id(cluster) for _ in range(3))
    epochs = [cluster.partition("kept", index).leader_epoch for index in range(4)]

    refused = metadata(tmp_path, "restore", backup, "--replace")
    assert refused.returncode == 1
    assert "run on the metadata store" in refused.stderr
    cluster.brokers[0].kill()
    for broker in cluster.brokers[1:]:
        broker.stop()
    lose_the_store(cluster, tmp_path)
    start = run("ottla.cli.server", "--config", str(properties(tmp_path, 1)))
    assert start.returncode == 1
    assert "the metadata store is empty" in start.stderr

    restored = metadata(tmp_path, "restore", backup, "--json")
    assert restored.returncode == 0, restored.stderr
    assert json.loads(restored.stdout)["awaited"] == [0, 1, 2]
    for broker in cluster.brokers[1:]:
        broker.start_again()
    time.sleep(1)
    assert [cluster.leader("kept", index) for index in range(4)] == [-1] * 4
    cluster.brokers[0].start_again()
    cluster.wait_until_in_sync("kept", 4, 3)

    expected = sorted([*range(500), *(3 * [*range(500, 600)]), *range(600, 1000)])
    assert read_all(cluster, "kept") == expected
    assert all(cluster.partition("kept", index).leader_epoch > epochs[index] for index in range(4))
    assert producer_id(cluster) > used + 1_000_000
    produce(cluster, "kept", range(1000, 1100))
    assert read_all(cluster, "kept") == sorted([*expected, *range(1000, 1100)])
    for broker in cluster.brokers:
        assert len(list(broker.data.glob("unknown-*-stray"))) == 4
    store = metadata(tmp_path, "get", "cluster", "--json")
    assert json.loads(store.stdout)["value"]["generation"] == 1
    assert metadata(tmp_path, "ls", "reports/", "--json").stdout.strip() == "[]"


def test_a_broker_that_is_gone_is_not_waited_for(cluster: OttlaCluster, tmp_path: Path) -> None:
    backup = str(tmp_path / "backup")
    create(cluster, "kept")
    produce(cluster, "kept", range(100))
    assert metadata(tmp_path, "backup", backup).returncode == 0
    cluster.stop()
    lose_the_store(cluster, tmp_path)
    assert metadata(tmp_path, "restore", backup).returncode == 0
    for broker in cluster.brokers[1:]:
        broker.start_again()
    time.sleep(1)
    assert cluster.leader("kept", 0) == -1
    left = metadata(tmp_path, "go-without", "0", "--json")
    assert json.loads(left.stdout) == {"awaited": [1, 2]}
    cluster.wait_until_in_sync("kept", 4, 2)
    assert read_all(cluster, "kept") == list(range(100))


def test_what_was_moved_after_the_backup_is_found_and_copied_back(tmp_path: Path) -> None:
    cluster = OttlaCluster(tmp_path, 4)
    try:
        backup = str(tmp_path / "backup")
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        assigned = NewTopic("kept", replica_assignment=[[0, 1], [0, 1], [2, 1], [0, 1]], num_partitions=4)
        admin.create_topics([assigned])["kept"].result(30)
        produce(cluster, "kept", range(100))
        assert metadata(tmp_path, "backup", backup).returncode == 0
        moved = {"name": "kept", "partitions": [{"partition_index": 0, "replicas": [2, 3]}]}
        with Wire(cluster.brokers[1].bootstrap) as wire:
            assert wire.call(ALTER_PARTITION_REASSIGNMENTS, 0, {"topics": [moved]}).error_code == 0
        cluster.wait("kept-0 is moved", lambda: sorted(cluster.partition("kept", 0).isr_nodes) == [2, 3])
        produce(cluster, "kept", range(100, 300))
        cluster.wait("broker 0 gives kept-0 up", lambda: not (cluster.brokers[0].data / "kept-0").exists())
        cluster.stop()
        lose_the_store(cluster, tmp_path)
        assert metadata(tmp_path, "restore", backup).returncode == 0
        for broker in cluster.brokers:
            broker.start_again()

        def copied_back() -> bool:
            # Until the brokers report their logs, the partition has the backup's state and no leader. Then broker 2
            # leads, which has the records.
            kept = cluster.partition("kept", 0)
            return kept.leader_id in (0, 1) and sorted(kept.isr_nodes) == [0, 1]

        cluster.wait("kept-0 is copied back", copied_back)
        assert read_all(cluster, "kept") == list(range(300))
    finally:
        cluster.close()
