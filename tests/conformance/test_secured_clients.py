"""Other projects' clients and tools over SASL_SSL, as users who have the rights that they need and no others."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Iterator
from typing import Any

import aiokafka
import pytest
from aiokafka.helpers import create_ssl_context
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import ResourceType

from tests.conformance.conftest import SETTINGS, Target
from tests.conformance.test_frameworks import spring
from tests.conformance.test_round_trips import GO_STEPS, JAVA_STEPS
from tests.crash.faults import MINUTES
from tests.peers.apache_kafka import tool
from tests.peers.clients import GO, JAVA
from tests.peers.secured import EVERYTHING, Secured, secured_brokers

PASSWORDS = {"app": "secret-of-app", "limited": "secret-of-limited", "other": "secret-of-other"}
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
FROM_ANYWHERE = ("--entity-type", "ips", "--entity-name", "10.1.2.3")


@pytest.fixture(scope="module", params=[1, pytest.param(3, marks=MINUTES)], ids=["one-broker", "three-brokers"])
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Brokers where `app` may do everything, but isn't a super user."""
    with secured_brokers(tmp_path_factory.mktemp("secured"), request.param, PASSWORDS, **SETTINGS) as made:
        made.grant("User:app", *EVERYTHING)
        yield made


@pytest.fixture
def as_app(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> Target:
    """The secured listeners, and the environment in which programs of other languages log in there as `app`."""
    monkeypatch.setenv("CLIENT_PROPERTIES", secured.file("SECURE", "app"))
    monkeypatch.setenv("KGO_TEST_TLS", f"ca:{secured.authority.trust}")
    monkeypatch.setenv("KGO_TEST_SCRAM", f"app:{PASSWORDS['app']}:512")
    return Target(secured.cluster.further("SECURE"), len(secured.cluster.brokers))


def test_java(as_app: Target) -> None:
    printed = JAVA.run(as_app.bootstrap, "round-trip", "java", str(as_app.replication_factor), check=False)
    assert [line for line in printed.splitlines() if not line.startswith("ok ")] == []
    assert len(printed.splitlines()) == len(JAVA_STEPS)


def test_franz_go(as_app: Target) -> None:
    printed = GO.run(as_app.bootstrap, "round-trip", "go", str(as_app.replication_factor), check=False)
    assert printed.splitlines() == [f"ok {step}" for step in GO_STEPS]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka(secured: Secured, mechanism: str) -> None:
    topic = f"aiokafka-{mechanism}"
    settings: dict[str, Any] = {
        "bootstrap_servers": secured.cluster.further("SECURE"),
        "security_protocol": "SASL_SSL",
        "ssl_context": create_ssl_context(cafile=str(secured.authority.trust)),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "app",
        "sasl_plain_password": PASSWORDS["app"],
    }

    async def play() -> list[bytes]:
        producer = aiokafka.AIOKafkaProducer(**settings, transactional_id=topic)
        async with producer, producer.transaction():
            for number in range(100):
                await producer.send_and_wait(topic, b"%d" % number, partition=0)
        consumer = aiokafka.AIOKafkaConsumer(
            topic, group_id=topic, auto_offset_reset="earliest", isolation_level="read_committed", **settings
        )
        async with consumer, asyncio.timeout(60):
            return [(await consumer.getone()).value for _ in range(100)]

    assert asyncio.run(play()) == [b"%d" % number for number in range(100)]


def test_spring_template_and_listeners(as_app: Target) -> None:
    assert spring("SpringProgram", as_app, "spring") == "ok 300"


def test_spring_transactions(as_app: Target) -> None:
    said = spring("SpringTransactions", as_app, "spring-transactions")
    assert said == "ok 200 answers, 0 more than once, 0 to aborted records, 20 failures"


def written(secured: Secured, user: str, topic: str) -> int | None:
    """The code of the error with which a record is refused; None if it is written."""
    settings: dict[str, Any] = {"bootstrap.servers": secured.cluster.further("SECURE"), "log_level": 0}
    errors: list[KafkaError | None] = []
    producer = Producer(settings | secured.librdkafka("SECURE", user))
    producer.produce(topic, b"value", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0
    return errors[0].code() if errors[0] else None


def test_kafka_acls(secured: Secured) -> None:
    """An administrator adds, lists and removes ACLs. The user may do what they allow, and then no longer."""
    admin, as_limited, topic = secured.tool(), secured.tool("limited"), ("--topic", "of-limited")
    tool("topics", *admin, "--create", *topic, "--partitions", "2")
    assert written(secured, "limited", "of-limited") == KafkaError.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(AssertionError, match="ClusterAuthorizationException"):
        tool("acls", *as_limited, "--list")
    allow = ("--allow-principal", "User:limited")
    tool("acls", *admin, "--add", *allow, "--producer", *topic)
    tool("acls", *admin, "--add", *allow, "--consumer", *topic, "--group", "of-", "--resource-pattern-type", "prefixed")
    operations = re.findall(r"operation=(\w+)", tool("acls", *admin, "--list", "--principal", "User:limited"))
    assert sorted(operations) == ["CREATE", "DESCRIBE", "DESCRIBE", "READ", "READ", "WRITE"]
    assert written(secured, "limited", "of-limited") is None
    read = ("--from-beginning", "--max-messages", "1", "--group", "of-limited", "--timeout-ms", "30000")
    assert tool("console-consumer", *as_limited, *topic, *read) == "value\n"
    assert tool("topics", *as_limited, "--list") == "of-limited\n"
    tool("acls", *admin, "--remove", "--force", *allow, "--producer", *topic)
    assert written(secured, "limited", "of-limited") == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_kafka_configs(secured: Secured) -> None:
    """Logins and quotas of users, quotas of clients and of addresses. Users without the right may not set them."""
    admin, newcomer = secured.tool(), ("--entity-type", "users", "--entity-name", "newcomer")
    password = f"secret-{uuid.uuid4().hex}"
    credentials = f"SCRAM-SHA-512=[iterations=8192,password={password}]"
    tool("configs", *admin, "--alter", *newcomer, "--add-config", credentials)
    tool("configs", *admin, "--alter", *newcomer, "--add-config", "producer_byte_rate=2000000")
    described = tool("configs", *admin, "--describe", *newcomer)
    assert "SCRAM-SHA-512=iterations=8192" in described
    assert "producer_byte_rate=2000000.0" in described
    assert password not in described
    clients = ("--entity-type", "clients", "--entity-name", "reports")
    for entity, limit in ((clients, "consumer_byte_rate=3000000"), (FROM_ANYWHERE, "connection_creation_rate=50")):
        tool("configs", *admin, "--alter", *entity, "--add-config", limit)
        assert limit in tool("configs", *admin, "--describe", *entity)
        with pytest.raises(AssertionError, match="ClusterAuthorizationException"):
            tool("configs", *secured.tool("other"), "--alter", *entity, "--add-config", limit)
        tool("configs", *admin, "--alter", *entity, "--delete-config", limit.partition("=")[0])
        assert limit not in tool("configs", *admin, "--describe", *entity)

    logged_in = dict(secured.passwords) | {"newcomer": password}
    as_newcomer = Secured(secured.cluster, secured.authority, secured.folder, logged_in).tool("newcomer")
    assert tool("topics", *as_newcomer, "--list").split() == []
    for each in ("SCRAM-SHA-512", "producer_byte_rate"):
        tool("configs", *admin, "--alter", *newcomer, "--delete-config", each)
    with pytest.raises(AssertionError, match="SaslAuthenticationException"):
        tool("topics", *as_newcomer, "--list")


def test_kafka_delegation_tokens(secured: Secured) -> None:
    """A user makes a token, with which others log in and have its rights; another user renews it, its owner ends it."""
    secured.grant("User:other", (ResourceType.TOPIC, "of-other"))
    longest = ("--max-life-time-period", "-1")
    made = tool("delegation-tokens", *secured.tool("other"), "--create", *longest, "--renewer-principal", "User:app")
    (token, hmac) = re.findall(r"^(\S{22})\s+(\S+)\s+User:other", made, re.MULTILINE)[0]
    described = tool("delegation-tokens", *secured.tool("other"), "--describe", "--owner-principal", "User:other")
    assert token in described

    properties = secured.java("SECURE", "other")
    properties["sasl.jaas.config"] = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{token}" password="{hmac}" tokenauth="true";'
    )
    file = secured.folder / "token.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    by_token = ("--bootstrap-server", secured.cluster.further("SECURE"), "--command-config", str(file))
    tool("topics", *by_token, "--create", "--topic", "of-other")
    assert tool("topics", *by_token, "--list").split() == ["of-other"]
    with pytest.raises(AssertionError, match="UnsupportedByAuthenticationException"):
        tool("delegation-tokens", *by_token, "--create", *longest)

    renewed = tool("delegation-tokens", *secured.tool("app"), "--renew", "--renew-time-period", "60000", "--hmac", hmac)
    assert "Completed renew operation" in renewed
    ended = tool("delegation-tokens", *secured.tool("other"), "--expire", "--expiry-time-period", "-1", "--hmac", hmac)
    assert "Completed expire operation" in ended
    with pytest.raises(AssertionError, match="SaslAuthenticationException"):
        tool("topics", *by_token, "--list")
