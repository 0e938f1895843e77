"""Several listeners: whoever comes in by one is told that one's addresses, and gets along with them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer

from tests.peers.ottla_broker import OttlaBroker
from tests.peers.wire import Wire, free_port, wait_until_ready

METADATA, FIND_COORDINATOR, DESCRIBE_CLUSTER = 3, 10, 60


@pytest.fixture
def addresses(tmp_path: Path) -> Iterator[list[str]]:
    """One broker's addresses: inside, outside, and a third that advertises another host name."""
    inside, outside, named = (free_port() for _ in range(3))
    listeners = f"INSIDE://127.0.0.1:{inside},OUTSIDE://127.0.0.1:{outside},NAMED://127.0.0.1:{named}"
    broker = OttlaBroker(
        tmp_path,
        listeners=listeners,
        advertised_listeners=listeners.replace(f"NAMED://127.0.0.1:{named}", f"NAMED://localhost:{named}"),
        listener_security_protocol_map="INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,NAMED:PLAINTEXT",
        inter_broker_listener_name="INSIDE",
        bootstrap=f"127.0.0.1:{inside}",
    )
    wait_until_ready(f"127.0.0.1:{outside}")
    yield [f"127.0.0.1:{inside}", f"127.0.0.1:{outside}", f"localhost:{named}"]
    broker.stop()


def told(address: str) -> set[str]:
    """What a client that comes in by `address` is told."""
    with Wire(address) as wire:
        brokers = wire.call(METADATA, 12, {"topics": []}).brokers
        cluster = wire.call(DESCRIBE_CLUSTER, 1, {"endpoint_type": 1}).brokers
        deadline = time.monotonic() + 20
        while True:
            coordinator = wire.call(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["g"]}).coordinators[0]
            if coordinator.error_code == 0 or time.monotonic() > deadline:
                break
            time.sleep(0.1)
    return {f"{one.host}:{one.port}" for one in (*brokers, *cluster, coordinator)}


def test_each_listener_tells_its_own_address(addresses: list[str]) -> None:
    for address in addresses:
        assert told(address) == {address}


def test_records_written_by_one_listener_are_read_by_another(addresses: list[str]) -> None:
    producer = KafkaProducer(bootstrap_servers=addresses[1])
    producer.send("shared", b"value").get(20)
    producer.close()
    consumer = KafkaConsumer(
        "shared",
        bootstrap_servers=addresses[2],
        group_id="readers",
        auto_offset_reset="earliest",
        consumer_timeout_ms=20_000,
    )
    assert next(consumer).value == b"value"
    consumer.close()
