"""One broker for all of these tests, and Apache Kafka beside it where they compare.

OTTLA_TEST_BOOTSTRAP=host:port tries another broker instead, Apache Kafka for one: everything here but the comparisons
has to pass against it too.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.peers.apache_kafka import ApacheKafka
from tests.peers.ottla_broker import OttlaBroker

# What both brokers are told: kafka-python's suite wants four partitions and short sessions; no test wants to wait for
# more members.
SETTINGS = {"num_partitions": "4", "group_min_session_timeout_ms": "1000", "group_initial_rebalance_delay_ms": "0"}


@pytest.fixture(scope="session")
def ottla(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaBroker | None]:
    """The broker under test as a process; None where it is somebody else's."""
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
