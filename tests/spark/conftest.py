"""One broker and one SparkSession for all tests of this folder.

The session also has Spark's own Kafka connector, with which tests compare Ottla's. If OTTLA_TEST_BOOTSTRAP=host:port is
set, the tests use that broker instead, for example one of Apache Kafka. All tests must pass against it too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from ottla.net.blocking import UnsupportedVersion
from ottla.net.client import Client
from ottla.net.transactions import END_TXN
from ottla.spark.java import JavaMissing
from ottla.spark.session import spark_session
from tests.peers.apache_kafka import ApacheKafka, jars
from tests.peers.ottla_broker import OttlaBroker
from tests.spark.jvms import DRIVER, keywords
from tests.spark.topics import Topics


@pytest.fixture(scope="session")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The host:port of the broker under test."""
    if os.environ.get("OTTLA_TEST_BOOTSTRAP"):
        yield os.environ["OTTLA_TEST_BOOTSTRAP"]
        return
    broker = OttlaBroker(tmp_path_factory.mktemp("ottla"), log_cleaner_backoff_ms="100")
    yield broker.bootstrap
    broker.stop()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with two cores and the data sources `ottla` and `kafka`."""
    connector = ",".join(map(str, sorted(Path(jars("spark").removesuffix("/*")).glob("*.jar"))))
    try:
        session = spark_session(
            "tests",
            spark__master="local[2]",
            spark__jars=connector,
            spark__driver__memory="1g",
            **keywords(DRIVER),
            spark__sql__session__timeZone="UTC",
        )
    except JavaMissing as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    yield session
    session.stop()


@pytest.fixture(scope="module", params=["ottla", "kafka"])
def transactional_broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A broker of Ottla, and one of Apache Kafka, whose transactions tests use."""
    folder = tmp_path_factory.mktemp(request.param)
    started: OttlaBroker | ApacheKafka
    if request.param == "kafka":
        started = ApacheKafka(folder, heap="512M", transaction_state_log_num_partitions="5")
    else:
        started = OttlaBroker(folder, transaction_state_log_num_partitions="5")
    try:
        with Client(started.bootstrap) as client:
            client.any_broker().version(END_TXN, 0, 3)
        yield started
    except UnsupportedVersion:
        pytest.skip("this broker serves no transactions")
    finally:
        started.stop()


@pytest.fixture(scope="session")
def topics(bootstrap: str) -> Iterator[Topics]:
    """Creates topics and fills them."""
    with Topics(bootstrap) as made:
        yield made
