"""ACLs hold for users who log in by SCRAM over TLS, while the cluster's brokers are a super user of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import kafka
import kafka.errors
import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from tests.peers.certificates import Authority
from tests.peers.ottla_cluster import OttlaCluster, ottla_cluster
from tests.peers.wire import Wire

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
USERS = ("broker", "admin", "alice", "eve")
METADATA = 3


def secret(user: str) -> str:
    return f"secret-of-{user}"


class House:
    """Three brokers, whose own listener asks for a login over TLS. Over the other one clients are ANONYMOUS."""

    def __init__(self, cluster: OttlaCluster, authority: Authority, folder: Path) -> None:
        self.cluster, self.authority, self.folder = cluster, authority, folder
        self.address = ",".join(cluster.between_brokers)

    def ottla(self, user: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `ottla` as this user."""
        path = self.folder / f"{user}.properties"
        path.write_text(
            "security.protocol=SASL_SSL\nssl.truststore.type=PEM\n"
            f"ssl.truststore.location={self.authority.trust}\nsasl.mechanism=SCRAM-SHA-512\n"
            f'sasl.jaas.config={SCRAM} username="{user}" password="{secret(user)}";\n'
        )
        command = [
            sys.executable,
            "-m",
            "ottla.cli.main",
            *arguments,
            "-b",
            self.address,
            "--command-config",
            str(path),
        ]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def done(self, user: str, *arguments: str) -> str:
        """What a command prints that succeeds."""
        made = self.ottla(user, *arguments)
        assert made.returncode == 0, made.stdout + made.stderr
        return made.stdout

    def librdkafka(self, user: str) -> dict[str, Any]:
        """The settings of a librdkafka client."""
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority.trust),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": secret(user),
            "log_level": 0,
        }

    def produced(self, user: str, topic: str) -> int | None:
        """The error code with which a record is refused; None if it is written."""
        outcomes: list[KafkaError | None] = []
        producer = Producer(self.librdkafka(user) | {"acks": "all", "message.timeout.ms": 20_000})
        producer.produce(topic, b"value", on_delivery=lambda error, _: outcomes.append(error))
        assert producer.flush(30) == 0
        return None if outcomes[0] is None else outcomes[0].code()


def test_acls_hold_for_users_who_log_in(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    store = str(tmp_path / "metadata")
    for user in USERS:
        command = [sys.executable, "-m", "ottla.cli.main", "users", "create", user, "--store", store]
        environment = os.environ | {"OTTLA_USER_PASSWORD": secret(user)}
        subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60)
    jaas = f'{SCRAM} username="broker" password="{secret("broker")}";'
    settings = {
        "listener_security_protocol_map": "CLIENTS:PLAINTEXT,BROKERS:SASL_SSL",
        "ssl_keystore_type": "PEM",
        "ssl_keystore_location": str(authority.issue("brokers", common_name="broker")),
        "ssl_truststore_type": "PEM",
        "ssl_truststore_location": str(authority.trust),
        "sasl_enabled_mechanisms": "SCRAM-SHA-512",
        "sasl_mechanism_inter_broker_protocol": "SCRAM-SHA-512",
        "listener_name_brokers_scram-sha-512_sasl_jaas_config": jaas,
        "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super_users": "User:broker;User:admin",
    }
    with ottla_cluster(tmp_path, 3, **settings) as cluster:
        house = House(cluster, authority, tmp_path)
        for topic in ("orders", "secrets"):
            house.done("admin", "topics", "create", topic, "-p", "1")
        assert house.produced("alice", "orders") == KafkaError.TOPIC_AUTHORIZATION_FAILED
        house.done("admin", "acls", "create", "--allow", "User:alice", "--topic", "orders", "--producer")
        house.done(
            "admin", "acls", "create", "--allow", "User:alice", "--topic", "orders", "--group", "billing", "--consumer"
        )
        assert house.produced("alice", "orders") is None
        assert house.produced("alice", "secrets") == KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert house.produced("eve", "orders") == KafkaError.TOPIC_AUTHORIZATION_FAILED

        consumer = Consumer(house.librdkafka("alice") | {"group.id": "billing", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        assert [message.value() for message in consumer.consume(1, 30)] == [b"value"]
        consumer.close()
        listed = {user: json.loads(house.done(user, "topics", "list", "--json")) for user in ("alice", "eve")}
        assert {user: [topic["name"] for topic in topics] for user, topics in listed.items()} == {
            "alice": ["orders"],
            "eve": [],
        }
        with Wire(cluster.bootstrap.split(",")[0]) as wire:
            assert wire.call(METADATA, 9, {"topics": None}).topics == ()

        for command in (("users", "list"), ("quotas", "list"), ("acls", "list")):
            assert house.ottla("alice", *command).returncode != 0, command
            house.done("admin", *command)
        with pytest.raises(kafka.errors.GroupAuthorizationFailedError):
            next(
                kafka.KafkaConsumer(
                    "orders",
                    group_id="other",
                    bootstrap_servers=house.address,
                    security_protocol="SASL_SSL",
                    ssl_cafile=str(authority.trust),
                    sasl_mechanism="SCRAM-SHA-512",
                    sasl_plain_username="alice",
                    sasl_plain_password=secret("alice"),
                    consumer_timeout_ms=20_000,
                )
            )

        house.done("admin", "acls", "delete", "--principal", "User:alice", "--topic", "orders", "--yes")
        assert house.produced("alice", "orders") == KafkaError.TOPIC_AUTHORIZATION_FAILED
        time.sleep(0.5)
        written = "".join(broker.log_path.read_text() for broker in cluster.brokers)
        assert "Principal = User:eve is Denied operation = DESCRIBE" in written
        assert "Principal = User:broker is Denied" not in written
        assert "secret-of" not in written
        assert "Traceback" not in written
