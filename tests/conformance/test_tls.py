"""TLS between real brokers and clients that we did not write: librdkafka, kafka-python, aiokafka, `ottla` and Spark's
client. Certificates are swapped while clients are at work, and three brokers replicate over TLS."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiokafka
import kafka
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from ottla.spark.options import read_options
from ottla.spark.planning import open_client
from tests.peers.certificates import Authority, certificate
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.ottla_cluster import ottla_cluster
from tests.peers.wire import free_port

LISTENERS = ("PLAIN", "OPEN", "ASKED", "LOCKED")


@dataclass(frozen=True)
class House:
    """A broker with an unencrypted listener and three encrypted ones, and the authority of all certificates."""

    broker: OttlaBroker
    authority: Authority
    addresses: dict[str, str]

    def librdkafka(self, listener: str, key: Path | None = None, trust: Path | None = None) -> dict[str, Any]:
        """The settings of a librdkafka client."""
        keys = {} if key is None else {"ssl.key.location": str(key), "ssl.certificate.location": str(key)}
        return {
            "bootstrap.servers": self.addresses[listener],
            "security.protocol": "ssl",
            "ssl.ca.location": str(trust or self.authority.trust),
            "log_level": 0,
            **keys,
        }

    def log(self) -> str:
        """What the broker has written so far."""
        return self.broker.log_path.read_text()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder / "ca")
    addresses = {name: f"127.0.0.1:{free_port()}" for name in LISTENERS}
    listeners = ",".join(f"{name}://{address}" for name, address in addresses.items())
    broker = OttlaBroker(
        folder / "broker",
        addresses["PLAIN"],
        listeners=listeners,
        advertised_listeners=listeners,
        listener_security_protocol_map="PLAIN:PLAINTEXT,OPEN:SSL,ASKED:SSL,LOCKED:SSL",
        inter_broker_listener_name="PLAIN",
        group_initial_rebalance_delay_ms="0",
        ssl_keystore_type="PEM",
        ssl_keystore_location=str(authority.issue("server", common_name="broker")),
        ssl_truststore_type="PEM",
        ssl_truststore_location=str(authority.trust),
        listener_name_open_ssl_keystore_location=str(authority.issue("open", common_name="broker")),
        listener_name_asked_ssl_client_auth="requested",
        listener_name_locked_ssl_client_auth="required",
    )
    yield House(broker, authority, addresses)
    broker.stop()
    assert "Traceback" not in broker.log_path.read_text()


CASES = pytest.mark.parametrize(
    ("listener", "with_key"),
    [("OPEN", False), ("ASKED", False), ("ASKED", True), ("LOCKED", True)],
)


def key_of(house: House, with_key: bool) -> Path | None:
    return house.authority.issue("client", common_name="app") if with_key else None


@CASES
def test_librdkafka(house: House, listener: str, with_key: bool) -> None:
    settings = house.librdkafka(listener, key_of(house, with_key))
    topic = f"librdkafka-{listener}-{with_key}"
    producer = Producer(settings)
    for number in range(3000):
        producer.produce(topic, b"%d" % number + bytes(1000))
    assert producer.flush(30) == 0
    consumer = Consumer(settings | {"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    count, deadline = 0, time.monotonic() + 60
    while count < 3000 and time.monotonic() < deadline:
        count += sum(message.error() is None for message in consumer.consume(500, 1.0))
    consumer.close()
    assert count == 3000


@CASES
def test_kafka_python(house: House, listener: str, with_key: bool) -> None:
    key = key_of(house, with_key)
    settings: dict[str, Any] = {
        "bootstrap_servers": house.addresses[listener],
        "security_protocol": "SSL",
        "ssl_cafile": str(house.authority.trust),
        "ssl_certfile": str(key) if key else None,
        "ssl_keyfile": str(key) if key else None,
    }
    topic = f"kafka-python-{listener}-{with_key}"
    producer = kafka.KafkaProducer(**settings)
    for number in range(500):
        producer.send(topic, b"%d" % number + bytes(500))
    producer.flush(30)
    producer.close()
    consumer = kafka.KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=20_000, **settings)
    assert [int(message.value.rstrip(b"\0")) for _, message in zip(range(500), consumer, strict=False)] == [*range(500)]
    consumer.close()


def test_aiokafka(house: House) -> None:
    async def play() -> None:
        key = key_of(house, True)
        context = ssl.create_default_context(cafile=str(house.authority.trust))
        context.load_cert_chain(str(key))
        settings: dict[str, Any] = {
            "bootstrap_servers": house.addresses["LOCKED"],
            "security_protocol": "SSL",
            "ssl_context": context,
        }
        async with aiokafka.AIOKafkaProducer(**settings) as producer:
            for number in range(200):
                await producer.send_and_wait("aiokafka", b"%d" % number)
        async with aiokafka.AIOKafkaConsumer("aiokafka", auto_offset_reset="earliest", **settings) as consumer:
            async with asyncio.timeout(60):
                assert [int((await consumer.getone()).value) for _ in range(200)] == [*range(200)]

    asyncio.run(play())


def refusal(settings: dict[str, Any]) -> str:
    """The text with which librdkafka gives up a connection."""
    errors: list[KafkaError] = []
    client = AdminClient(settings | {"error_cb": errors.append})
    with pytest.raises(KafkaException):
        client.list_topics(timeout=3)
    client.poll(1)
    assert errors
    return str(errors[0])


def test_a_client_refuses_a_broker_of_another_authority(house: House, tmp_path: Path) -> None:
    stranger = Authority(tmp_path)
    assert "verify failed" in refusal(house.librdkafka("OPEN", trust=stranger.trust))
    assert "ALERT_UNKNOWN_CA" in house.log()


def test_a_client_refuses_another_host_name(house: House) -> None:
    for name, refused in (("localhost", False), ("another.example", True)):
        context = ssl.create_default_context(cafile=str(house.authority.trust))
        port = int(house.addresses["OPEN"].rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as plain:
            if refused:
                with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
                    context.wrap_socket(plain, server_hostname=name)
            else:
                context.wrap_socket(plain, server_hostname=name).close()


def configure(house: House, **settings: str) -> None:
    """Alters settings of the broker, over TLS itself. Raises KafkaException."""
    entries = [
        ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    client = AdminClient(house.librdkafka("OPEN"))
    resource = ConfigResource(ResourceType.BROKER, "0", incremental_configs=entries)
    client.incremental_alter_configs([resource])[resource].result(30)


def shown(house: House) -> bytes:
    """The certificate that the listener OPEN shows to a new connection."""
    host, _, port = house.addresses["OPEN"].partition(":")
    context = ssl.create_default_context(cafile=str(house.authority.trust))
    with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain, server_hostname=host) as tls:
        return tls.getpeercert(binary_form=True) or b""


def test_certificates_are_swapped_under_load(house: House) -> None:
    """By the file's change, by another file, and by the same file again. No connection is cut and nothing is lost."""
    lost: list[Any] = []
    disconnects: list[KafkaError] = []
    producer = Producer(house.librdkafka("OPEN") | {"linger.ms": 1, "error_cb": disconnects.append})
    producer.produce("swapped", b"first")
    assert producer.flush(30) == 0
    sent, going = 1, True

    def load() -> None:
        nonlocal sent
        while going:
            producer.produce("swapped", bytes(1000), on_delivery=lambda error, _: lost.append(error) if error else None)
            producer.poll(0)
            sent += 1
            time.sleep(0.0005)

    thread = threading.Thread(target=load)
    thread.start()
    try:
        first = shown(house)
        path = house.authority.issue("open", common_name="broker")
        deadline = time.monotonic() + 20
        while (by_file := shown(house)) == first:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert by_file == certificate(path)
        other = house.authority.issue("other", common_name="broker")
        configure(house, listener_name_open_ssl_keystore_location=str(other))
        assert shown(house) == certificate(other), "in force as soon as the answer has come"
        house.authority.issue("other", common_name="broker")
        configure(house, listener_name_open_ssl_keystore_location=str(other))
        assert shown(house) == certificate(other)
    finally:
        going = False
        thread.join()
    assert producer.flush(30) == 0
    assert not lost
    assert not disconnects
    consumer = kafka.KafkaConsumer(
        "swapped", bootstrap_servers=house.addresses["PLAIN"], auto_offset_reset="earliest", consumer_timeout_ms=5000
    )
    assert sum(1 for _ in consumer) == sent
    consumer.close()


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("ssl_keystore_location", "per-listener using the listener prefix"),
        ("listener_name_open_ssl_keystore_location", "DistinguishedName does not match"),
        ("listener_name_locked_ssl_truststore_location", "can't be used: No such file"),
    ],
)
def test_certificates_that_are_refused(house: House, tmp_path: Path, setting: str, why: str) -> None:
    before = shown(house)
    path = tmp_path / "none" if "truststore" in setting else house.authority.issue("someone", common_name="someone")
    with pytest.raises(KafkaException, match=why) as caught:
        configure(house, **{setting: str(path)})
    assert caught.value.args[0].code() == KafkaError.INVALID_REQUEST
    assert shown(house) == before


def test_the_command_line(house: House, tmp_path: Path) -> None:
    properties = tmp_path / "client.properties"
    key = key_of(house, True)
    properties.write_text(
        "security.protocol=SSL\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={house.authority.trust}\nssl.keystore.type=PEM\nssl.keystore.location={key}\n"
    )
    environment = os.environ | {"OTTLA_CONFIG_FILE": str(tmp_path / "contexts.toml")}

    def ottla(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "ottla.cli.main", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)

    address = house.addresses["LOCKED"]
    made = ottla(
        "topics", "create", "by-command", "--if-not-exists", "-b", address, "--command-config", str(properties)
    )
    assert made.returncode == 0, made.stderr
    assert ottla("contexts", "add", "locked", address, "--command-config", str(properties)).returncode == 0
    listed = ottla("topics", "list", "--json")
    assert "by-command" in {topic["name"] for topic in json.loads(listed.stdout)}, listed.stderr
    plain = ottla("topics", "list", "-b", address, "--timeout", "3")
    assert plain.returncode != 0
    assert "it may speak TLS, and security.protocol is PLAINTEXT" in plain.stderr


def test_sparks_client(house: House) -> None:
    key = key_of(house, True)
    options = {
        "kafka.bootstrap.servers": house.addresses["LOCKED"],
        "subscribe": "by-spark",
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": house.authority.trust.read_text(),
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.location": str(key),
    }
    with open_client(read_options(options, streaming=False).properties) as client:
        assert client.create_topic("by-spark", 3)
        assert len(client.metadata(["by-spark"]).topics["by-spark"].leaders) == 3


def test_three_brokers_replicate_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    key = authority.issue("brokers", common_name="broker")
    settings = {
        "listener_security_protocol_map": "CLIENTS:PLAINTEXT,BROKERS:SSL",
        "ssl_keystore_type": "PEM",
        "ssl_keystore_location": str(key),
        "ssl_truststore_type": "PEM",
        "ssl_truststore_location": str(authority.trust),
        "ssl_client_auth": "required",
    }
    with ottla_cluster(tmp_path / "cluster", 3, **settings) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
        for number in range(2000):
            producer.produce("replicated", b"%d" % number + bytes(2000), partition=0)
        assert producer.flush(60) == 0
        cluster.wait_until_in_sync("replicated", 1, 3)
        before = certificate(key)
        authority.issue("brokers", common_name="broker")
        time.sleep(2.5)  # each broker has looked at its files
        assert certificate(key) != before
        leader = cluster.leader("replicated", 0)
        cluster.brokers[leader].kill()
        cluster.wait("another leader", lambda: cluster.leader("replicated", 0) not in (-1, leader))
        cluster.brokers[leader].start_again()
        for number in range(2000):
            producer.produce("replicated", b"%d" % number + bytes(2000), partition=0)
        assert producer.flush(60) == 0
        cluster.wait_until_in_sync("replicated", 1, 3)
        assert all("Traceback" not in broker.log_path.read_text() for broker in cluster.brokers)
        assert any("new connections get the new certificates" in each.log_path.read_text() for each in cluster.brokers)
