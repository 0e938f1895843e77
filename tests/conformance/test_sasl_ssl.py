"""SASL_SSL: three brokers connect to one another by it, and other people's clients and our own use this listener."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kafka
import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from ottla.spark.options import read_options
from ottla.spark.planning import open_client
from tests.peers.certificates import Authority
from tests.peers.ottla_cluster import OttlaCluster, ottla_cluster

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
SECRETS = ("alices-secret", "brokers-secret", "wrong-secret")


def ottla(*arguments: str, password: str = "", check: bool = True) -> str:
    """Runs `ottla` and returns what it printed."""
    command = [sys.executable, "-m", "ottla.cli.main", *arguments]
    environment = os.environ | ({"OTTLA_USER_PASSWORD": password} if password else {})
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    assert not [secret for secret in SECRETS if secret in done.stdout + done.stderr]
    return done.stdout + done.stderr


@dataclass
class House:
    """A cluster whose brokers' own listener has SASL_SSL, and the authority of their certificates."""

    cluster: OttlaCluster
    authority: Authority
    folder: Path

    @property
    def address(self) -> str:
        """The secured listener of each broker."""
        return ",".join(self.cluster.between_brokers)

    def properties(self, password: str = "alices-secret") -> dict[str, str]:
        """Java's client properties."""
        return {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.trust),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": f'{SCRAM} username="alice" password="{password}";',
        }

    def file(self, password: str = "alices-secret") -> str:
        """A file of these properties."""
        path = self.folder / f"{password}.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in self.properties(password).items()))
        return str(path)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("sasl-ssl")
    authority = Authority(folder / "ca")
    store = str(folder / "metadata")
    ottla("users", "create", "broker", "--store", store, password="brokers-secret")
    ottla("users", "create", "alice", "--store", store, password="alices-secret")
    settings = {
        "listener_security_protocol_map": "CLIENTS:PLAINTEXT,BROKERS:SASL_SSL",
        "ssl_keystore_type": "PEM",
        "ssl_keystore_location": str(authority.issue("brokers", common_name="broker")),
        "ssl_truststore_type": "PEM",
        "ssl_truststore_location": str(authority.trust),
        "ssl_client_auth": "required",  # it doesn't reach listeners with logins
        "sasl_enabled_mechanisms": "SCRAM-SHA-512",
        "sasl_mechanism_inter_broker_protocol": "SCRAM-SHA-512",
        "listener_name_brokers_scram-sha-512_sasl_jaas_config": f'{SCRAM} username="broker" password="brokers-secret";',
        "connections_max_reauth_ms": "3000",
    }
    with ottla_cluster(folder, 3, **settings) as cluster:
        ottla("topics", "create", "t", "-p", "3", "-b", cluster.bootstrap)
        yield House(cluster, authority, folder)
        cluster.stop()
        for broker in cluster.brokers:
            written = broker.log_path.read_text()
            assert "Traceback" not in written
            assert not [secret for secret in SECRETS if secret in written]


def test_librdkafka(house: House) -> None:
    settings: dict[str, Any] = {
        "bootstrap.servers": house.address,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(house.authority.trust),
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "alices-secret",
        "log_level": 0,
    }
    producer = Producer(settings | {"acks": "all"})
    for number in range(3000):
        producer.produce("t", b"%d" % number + bytes(1000))
    assert producer.flush(30) == 0
    consumer = Consumer(settings | {"group.id": "librdkafka", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    count, deadline = 0, time.monotonic() + 60
    while count < 3000 and time.monotonic() < deadline:
        count += sum(message.error() is None for message in consumer.consume(500, 1.0))
    consumer.close()
    assert count >= 3000
    errors: list[KafkaError] = []
    Producer(settings | {"sasl.password": "wrong-secret", "error_cb": errors.append}).poll(5)
    assert any(error.code() == KafkaError._AUTHENTICATION for error in errors)


def test_kafka_python(house: House) -> None:
    settings: dict[str, Any] = {
        "bootstrap_servers": house.address,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(house.authority.trust),
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "alice",
        "sasl_plain_password": "alices-secret",
    }
    producer = kafka.KafkaProducer(**settings)
    producer.send("by-kafka-python", b"first").get(20)
    time.sleep(4)  # longer than a session: the client has logged in anew over the encrypted connection
    producer.send("by-kafka-python", b"second").get(20)
    producer.close()
    consumer = kafka.KafkaConsumer(
        "by-kafka-python", auto_offset_reset="earliest", consumer_timeout_ms=20000, **settings
    )
    assert sorted(next(consumer).value for _ in range(2)) == [b"first", b"second"]
    consumer.close()


def test_the_command_line(house: House) -> None:
    made = ("topics", "create", "by-command", "-b", house.address, "--command-config")
    ottla(*made, house.file())
    listed = ottla("topics", "list", "--json", "-b", house.address, "--command-config", house.file())
    assert "by-command" in {topic["name"] for topic in json.loads(listed)}
    refused = ottla(*made, house.file("wrong-secret"), check=False)
    assert "the login at" in refused
    assert "by SCRAM-SHA-512 failed" in refused


def test_sparks_client(house: House) -> None:
    secured = {f"kafka.{name}": value for name, value in house.properties().items()}
    options = {"kafka.bootstrap.servers": house.address, "subscribe": "by-spark", **secured}
    with open_client(read_options(options, streaming=False).properties) as client:
        assert client.create_topic("by-spark", 3)
        assert len(client.metadata(["by-spark"]).topics["by-spark"].leaders) == 3
        time.sleep(4)  # longer than a session
        assert len(client.metadata(["by-spark"]).topics["by-spark"].leaders) == 3


def test_brokers_replicate_and_fail_over(house: House) -> None:
    cluster = house.cluster
    cluster.wait_until_in_sync("t", 3, 3)
    leader = cluster.leader("t", 0)
    cluster.brokers[leader].kill()
    cluster.wait("another leader", lambda: cluster.leader("t", 0) not in (-1, leader))
    cluster.brokers[leader].start_again()
    cluster.wait_until_in_sync("t", 3, 3)
