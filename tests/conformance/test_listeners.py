"""Several listeners: a client that connects by one listener gets that listener's addresses, and can work with them."""

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
    """The advertised addresses of one broker's three listeners; the third advertises another host name than it listens
    on."""
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
    """The brokers' addresses in the answers to Metadata, DescribeCluster and FindCoordinator at `address`."""
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


def test_an_address_that_is_known_later_is_told_without_a_restart(tmp_path: Path) -> None:
    inside, outside = free_port(), free_port()
    broker = OttlaBroker(
        tmp_path,
        listeners=f"INSIDE://127.0.0.1:{inside},OUTSIDE://127.0.0.1:{outside}",
        advertised_listeners=f"INSIDE://127.0.0.1:{inside}",
        listener_security_protocol_map="INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        inter_broker_listener_name="INSIDE",
        bootstrap=f"127.0.0.1:{inside}",
    )
    try:
        wait_until_ready(f"127.0.0.1:{inside}")
        assert brokers_told(f"127.0.0.1:{outside}") == set()
        alter_addresses(f"127.0.0.1:{inside}", "OUTSIDE://node-7.example:31092")
        deadline = time.monotonic() + 20
        while brokers_told(f"127.0.0.1:{outside}") != {"node-7.example:31092"}:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert brokers_told(f"127.0.0.1:{inside}") == {f"127.0.0.1:{inside}"}
    finally:
        broker.stop()


def brokers_told(address: str) -> set[str]:
    with Wire(address) as wire:
        return {f"{one.host}:{one.port}" for one in wire.call(DESCRIBE_CLUSTER, 1, {"endpoint_type": 1}).brokers}


def alter_addresses(address: str, addresses: str) -> None:
    config = {"name": "ottla.listener.addresses", "config_operation": 0, "value": addresses}
    resource = {"resource_type": 4, "resource_name": "0", "configs": [config]}
    with Wire(address) as wire:
        (response,) = wire.call(44, 1, {"resources": [resource], "validate_only": False}).responses
    assert (response.error_code, response.error_message) == (0, None)
