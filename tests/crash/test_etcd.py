"""Brokers on a real etcd, end to end: no acknowledged record is lost by kill -9 of the broker or of etcd."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.peers.etcd import Etcd
from tests.peers.ottla_broker import OttlaBroker

SESSION_MS = 3000


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    etcd = Etcd(tmp_path_factory.mktemp("etcd"))
    yield etcd
    etcd.kill()


def broker_on(etcd: Etcd, folder: Path, cluster: str) -> OttlaBroker:
    return OttlaBroker(
        folder,
        ottla_metadata_store=f"etcd:{etcd.endpoint}",
        ottla_metadata_etcd_prefix=f"/ottla/{cluster}/",
        broker_session_timeout_ms=str(SESSION_MS),
        group_initial_rebalance_delay_ms="0",
    )


def produce(bootstrap: str, topic: str, values: list[str]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0})
    failed: list[object] = []
    for value in values:
        producer.produce(topic, value=value, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(30) == 0
    assert not failed


def consume(bootstrap: str, topic: str, group: str, count: int) -> list[str]:
    """Reads `count` records from the group's committed offset, and commits them."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0}
    )
    consumer.subscribe([topic])
    values: list[str] = []
    for _ in range(60):
        for message in consumer.consume(count - len(values), 0.5):
            assert message.error() is None
            value = message.value()
            assert value is not None
            values.append(value.decode())
        if len(values) == count:
            consumer.commit(asynchronous=False)
            break
    consumer.close()
    return values


def metadata(etcd: Etcd, cluster: str, *arguments: str) -> list[dict[str, object]]:
    """The output of `ottla metadata`."""
    command = [sys.executable, "-m", "ottla.cli.main", "metadata", *arguments, "--store", f"etcd:{etcd.endpoint}"]
    command += ["--set", f"ottla.metadata.etcd.prefix=/ottla/{cluster}/", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_a_broker_killed_and_started_again_goes_on(etcd: Etcd, tmp_path: Path) -> None:
    broker = broker_on(etcd, tmp_path, "one")
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("kept", 3, 1)])["kept"].result(20)
        produce(broker.bootstrap, "kept", [f"first {n}" for n in range(30)])
        assert len(consume(broker.bootstrap, "kept", "readers", 30)) == 30
        produce(broker.bootstrap, "kept", [f"second {n}" for n in range(30)])
        broker.kill()
        broker.start_again()
        assert sorted(consume(broker.bootstrap, "kept", "readers", 30)) == sorted(f"second {n}" for n in range(30))
        assert "topics/kept" in [row["key"] for row in metadata(etcd, "one", "ls", "-r")]
        assert metadata(etcd, "two", "ls", "-r") == []
    finally:
        broker.kill()


def test_a_broker_serves_while_etcd_is_away_and_changes_wait(etcd: Etcd, tmp_path: Path) -> None:
    broker = broker_on(etcd, tmp_path, "two")
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("before", 1, 1)])["before"].result(20)
        produce(broker.bootstrap, "before", ["a"])
        etcd.kill()
        produce(broker.bootstrap, "before", ["b"])
        waiting = admin.create_topics([NewTopic("meanwhile", 1, 1)], request_timeout=30)
        etcd.start()
        waiting["meanwhile"].result(30)
        produce(broker.bootstrap, "meanwhile", ["c"])
        assert consume(broker.bootstrap, "before", "readers", 2) == ["a", "b"]
    finally:
        broker.kill()
