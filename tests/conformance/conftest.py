"""One broker for all tests of this folder, three brokers for the suites of other clients, and Apache Kafka to compare
with.

OTTLA_TEST_BOOTSTRAP=host:port tests another broker instead, for example Apache Kafka: all tests except the comparisons
have to pass against it, too. For the suites the variable may name several brokers (host:port,host:port,host:port).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.peers.apache_kafka import ApacheKafka
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.ottla_cluster import OttlaCluster, ottla_cluster
from tests.peers.wire import Wire

METADATA = 3
# Settings of both brokers: kafka-python's suite needs four partitions and short sessions, and no test should wait for
# more members of a group.
SETTINGS = {"num_partitions": "4", "group_min_session_timeout_ms": "1000", "group_initial_rebalance_delay_ms": "0"}


@pytest.fixture(scope="session")
def ottla(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaBroker | None]:
    """The broker under test as a process; None if OTTLA_TEST_BOOTSTRAP names a broker."""
    if os.environ.get("OTTLA_TEST_BOOTSTRAP"):
        yield None
        return
    broker = OttlaBroker(tmp_path_factory.mktemp("ottla"), **SETTINGS)
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def bootstrap(ottla: OttlaBroker | None) -> str:
    """Address of the broker under test."""
    return ottla.bootstrap if ottla else os.environ["OTTLA_TEST_BOOTSTRAP"]


@dataclass(frozen=True)
class Target:
    """The brokers that a suite is run against."""

    bootstrap: str  # the addresses of all brokers
    replication_factor: int  # of the topics that the suite creates, and the brokers' default


@pytest.fixture(scope="module", params=[1, 3], ids=["one-broker", "three-brokers"])
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """One broker, then three brokers that all have a replica of each partition. Of the three brokers, at least two have
    each acknowledged record.

    When a suite has run, the three brokers have the same bytes in every partition.
    """
    brokers: int = request.param
    if brokers == 1:
        bootstrap = str(request.getfixturevalue("bootstrap"))
        yield Target(bootstrap, min(len(bootstrap.split(",")), 3))
        return
    if os.environ.get("OTTLA_TEST_BOOTSTRAP"):
        pytest.skip("OTTLA_TEST_BOOTSTRAP names the brokers: no other three are started")
    with ottla_cluster(tmp_path_factory.mktemp("three"), brokers, **SETTINGS) as cluster:
        yield Target(cluster.bootstrap, brokers)
        cluster.wait("all replicas are in sync and have the same bytes", lambda: replicated(cluster), 60)
        cluster.stop()


def replicated(cluster: OttlaCluster) -> bool:
    """Whether each broker is in the ISR of every partition, and all replicas have the same bytes."""
    with Wire(cluster.brokers[0].bootstrap) as wire:
        topics = wire.call(METADATA, 9, {"topics": None, "allow_auto_topic_creation": False}).topics
    everybody = list(range(len(cluster.brokers)))
    return len(topics) > 0 and all(
        sorted(partition.replica_nodes) == sorted(partition.isr_nodes) == everybody
        and len({records(cluster, number, topic.name, partition.partition_index) for number in everybody}) == 1
        for topic in topics
        for partition in topic.partitions
    )


def records(cluster: OttlaCluster, number: int, topic: str, index: int) -> bytes:
    """A replica's segments, one after the other. Raises AssertionError if the broker has no replica."""
    folder = cluster.folder_of(number, topic, index)
    assert folder, f"broker {number} has no replica of {topic}-{index}"
    return b"".join(segment.read_bytes() for segment in sorted(folder.glob("*.log")))


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """Apache Kafka 4.3 with the same settings."""
    broker = ApacheKafka(tmp_path_factory.mktemp("kafka"), **SETTINGS)
    yield broker
    broker.stop()


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Names of topics and groups that no other test uses: unique("orders")."""
    return lambda prefix: f"{prefix}-{uuid.uuid4().hex[:8]}"
