"""Other people's clients log in over SASL_PLAINTEXT, a cluster's brokers log in at one another, and no secret stands in
anything that was written."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiokafka
import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import KafkaTimeoutError

from tests.peers.apache_kafka import tool
from tests.peers.etcd import Etcd
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.ottla_cluster import OttlaCluster, ottla_cluster
from tests.peers.wire import free_port

MODULES = "org.apache.kafka.common.security"
PLAIN = f"{MODULES}.plain.PlainLoginModule required"
SCRAM = f"{MODULES}.scram.ScramLoginModule required"
OAUTH = f"{MODULES}.oauthbearer.OAuthBearerLoginModule required"
SECRETS = ("alices-secret", "bobs=,secret", "brokers-secret", "wrong-secret")
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
USERS = {"PLAIN": ("alice", "alices-secret")} | dict.fromkeys(MECHANISMS[1:], ("bob", "bobs=,secret"))


def ottla(*arguments: str, password: str = "", check: bool = True) -> str:
    """Runs `ottla` and returns everything that it printed."""
    command = [sys.executable, "-m", "ottla.cli.main", *arguments]
    environment = os.environ | ({"OTTLA_USER_PASSWORD": password} if password else {})
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    printed = done.stdout + done.stderr
    assert not [secret for secret in SECRETS if secret in printed]
    return printed


@dataclass
class Secured:
    """A broker with a listener that asks for a login, and the properties of a client for each mechanism."""

    broker: OttlaBroker
    address: str
    folder: Path

    def file(self, mechanism: str, password: str = "") -> str:
        """A file of Java's client properties."""
        user, right = USERS[mechanism]
        module = PLAIN if mechanism == "PLAIN" else SCRAM
        path = self.folder / f"{mechanism}-{bool(password)}.properties"
        path.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
            f'sasl.jaas.config={module} username="{user}" password="{password or right}";\n'
        )
        return str(path)

    def python(self, mechanism: str, password: str = "") -> dict[str, Any]:
        """The settings of kafka-python and aiokafka."""
        user, right = USERS[mechanism]
        return {
            "bootstrap_servers": self.address,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism,
            "sasl_plain_username": user,
            "sasl_plain_password": password or right,
        }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    inside, outside = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    store = folder / "metadata.sqlite"
    for mechanism in MECHANISMS[1:]:
        user, password = USERS[mechanism]
        ottla("users", "create", user, "-m", mechanism, "--store", str(store), password=password)
    broker = OttlaBroker(
        folder,
        inside,
        **{
            "listeners": f"INSIDE://{inside},OUTSIDE://{outside}",
            "advertised.listeners": f"INSIDE://{inside},OUTSIDE://{outside}",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT",
            "inter.broker.listener.name": "INSIDE",
            "ottla.metadata.store": f"embedded:{store}",
            "ottla.log.level": "DEBUG",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            "listener.name.outside.plain.sasl.jaas.config": f'{PLAIN} user_alice="alices-secret";',
            "listener.name.outside.oauthbearer.sasl.jaas.config": f"{OAUTH};",
            "connections.max.reauth.ms": "5000",
        },
    )
    yield Secured(broker, outside, folder)
    broker.stop()
    written = broker.log_path.read_bytes()
    assert b"Traceback" not in written, written.decode()[-4000:]
    assert not [secret for secret in SECRETS if secret.encode() in written]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python(secured: Secured, mechanism: str) -> None:
    topic = f"kafka-python-{mechanism}"
    producer = KafkaProducer(**secured.python(mechanism))
    for value in (b"first", b"second"):  # the second after the session's end: the client has logged in anew
        producer.send(topic, value).get(20)
        time.sleep(6 if value == b"first" else 0)
    producer.close()
    consumer = KafkaConsumer(
        topic, group_id=topic, auto_offset_reset="earliest", consumer_timeout_ms=20000, **secured.python(mechanism)
    )
    assert [next(consumer).value for _ in range(2)] == [b"first", b"second"]
    consumer.close()
    with pytest.raises(KafkaTimeoutError):
        KafkaAdminClient(bootstrap_timeout_ms=3000, **secured.python(mechanism, "wrong-secret"))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka(secured: Secured, mechanism: str) -> None:
    async def main() -> list[bytes]:
        topic = f"aiokafka-{mechanism}"
        async with aiokafka.AIOKafkaProducer(**secured.python(mechanism)) as producer:
            await producer.send_and_wait(topic, b"value")
        async with aiokafka.AIOKafkaConsumer(
            topic, auto_offset_reset="earliest", **secured.python(mechanism)
        ) as consumer:
            return [(await asyncio.wait_for(consumer.getone(), 20)).value]

    assert asyncio.run(main()) == [b"value"]


@pytest.mark.parametrize("mechanism", [*MECHANISMS, "OAUTHBEARER"])
def test_librdkafka(secured: Secured, mechanism: str) -> None:
    settings: dict[str, Any] = {
        "bootstrap.servers": secured.address,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        settings |= {"enable.sasl.oauthbearer.unsecure.jwt": True, "sasl.oauthbearer.config": "principal=carol"}
    else:
        settings |= dict(zip(("sasl.username", "sasl.password"), USERS[mechanism], strict=True))
    topic = f"librdkafka-{mechanism}"
    producer = Producer(settings)
    for value in (b"first", b"second"):
        producer.produce(topic, value)
        assert producer.flush(20) == 0
        time.sleep(6 if value == b"first" else 0)
    consumer = Consumer(settings | {"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values = [message.value() for message in consumer.consume(2, 20)]
    consumer.close()
    assert values == [b"first", b"second"]
    if mechanism != "OAUTHBEARER":
        errors: list[KafkaError] = []
        refused = Producer(settings | {"sasl.password": "wrong-secret", "error_cb": errors.append})
        refused.poll(5)
        assert any(error.code() == KafkaError._AUTHENTICATION for error in errors)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_javas_tools(secured: Secured, mechanism: str) -> None:
    common = ("--bootstrap-server", secured.address, "--command-config", secured.file(mechanism))
    users = ("--entity-type", "users", "--entity-name")
    name = f"java-{mechanism.lower()}"
    tool(
        "configs",
        *common,
        "--alter",
        *users,
        name,
        "--add-config",
        "SCRAM-SHA-512=[iterations=5000,password=wrong-secret]",
    )
    described = tool("configs", *common, "--describe", *users, name)
    assert "SCRAM-SHA-512=iterations=5000" in described
    assert name in ottla("users", "list", "-b", secured.address, "--command-config", secured.file(mechanism))
    tool("configs", *common, "--alter", *users, name, "--delete-config", "SCRAM-SHA-512")
    assert "SCRAM" not in tool("configs", *common, "--describe", *users, name)
    with pytest.raises(AssertionError, match=r"SaslAuthenticationException|Authentication failed"):
        tool(
            "topics",
            "--list",
            "--bootstrap-server",
            secured.address,
            "--command-config",
            secured.file(mechanism, "wrong-secret"),
        )


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_command_line(secured: Secured, mechanism: str) -> None:
    common = ("-b", secured.address, "--command-config", secured.file(mechanism))
    name = f"ottla-{mechanism}"
    ottla("users", "create", name, *common, password="wrong-secret")
    assert "already" in ottla("users", "create", name, *common, password="wrong-secret", check=False)
    ottla("users", "create", name, "--replace", *common, password="wrong-secret")
    assert name in ottla("users", "list", *common)
    ottla("users", "delete", name, "--yes", *common)
    assert name not in ottla("users", "list", *common)
    refused = ottla(
        "topics",
        "list",
        "-b",
        secured.address,
        "--command-config",
        secured.file(mechanism, "wrong-secret"),
        check=False,
    )
    assert f"by {mechanism} failed: Authentication failed" in refused


def in_sync(cluster: OttlaCluster, topic: str) -> bool:
    """Whether all three brokers are in the ISR of each partition."""
    return all(len(cluster.partition(topic, index).isr_nodes) == 3 for index in range(3))


BETWEEN = {
    "listener_security_protocol_map": "CLIENTS:PLAINTEXT,BROKERS:SASL_PLAINTEXT",
    "sasl_enabled_mechanisms": "SCRAM-SHA-512",
    "sasl_mechanism_inter_broker_protocol": "SCRAM-SHA-512",
    "listener_name_brokers_scram-sha-512_sasl_jaas_config": f'{SCRAM} username="broker" password="brokers-secret";',
    "connections_max_reauth_ms": "3000",
}


@pytest.mark.parametrize("on_etcd", [False, True], ids=["embedded", "etcd"])
def test_three_brokers_log_in_at_one_another(tmp_path: Path, on_etcd: bool) -> None:
    if on_etcd:
        etcd = Etcd(tmp_path / "etcd")
        store = f"etcd:{etcd.endpoint}"
        settings = BETWEEN | {"ottla_metadata_store": store}
    else:
        store, settings = str(tmp_path / "metadata"), BETWEEN
    ottla("users", "create", "broker", "--store", store, password="brokers-secret")
    try:
        with ottla_cluster(tmp_path, 3, **settings) as cluster:
            common = ("-b", cluster.bootstrap)
            ottla("topics", "create", "t", "-p", "3", *common)
            producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all")
            for number in range(50):
                producer.send("t", b"%d" % number).get(20)
                time.sleep(0.1)  # longer than a session in all
            producer.close()
            # The brokers' own user is replaced while they run: another one first, then the settings, then the old goes.
            ottla("users", "create", "broker-2", *common, password="wrong-secret")
            jaas = f'{SCRAM} username="broker-2" password="wrong-secret";'
            for number in range(3):
                name = "listener.name.brokers.scram-sha-512.sasl.jaas.config"
                ottla("configs", "alter", "broker", str(number), "--set", f"{name}={jaas}", *common)
            ottla("users", "delete", "broker", "--yes", *common)
            time.sleep(4)  # longer than a session: every connection has logged in anew, or was made anew
            producer = KafkaProducer(bootstrap_servers=cluster.bootstrap, acks="all")
            producer.send("t", b"after").get(20)
            producer.close()
            assert "broker-2" in ottla("users", "list", *common)
            cluster.wait("all replicas are in sync", lambda: in_sync(cluster, "t"), 30)
            cluster.stop()
            for broker in cluster.brokers:
                written = broker.log_path.read_text()
                assert "Traceback" not in written
                assert not [secret for secret in SECRETS if secret in written]
                assert "session has ended" not in written
    finally:
        if on_etcd:
            etcd.kill()
