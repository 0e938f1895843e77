"""What does encryption cost a broker?

librdkafka produces to a topic of 6 partitions over TLS and reads it again, and Python's ssl makes handshakes, one after
the other, each on a new connection; then a user logs in by SCRAM over each new encrypted connection. The certificates
are ECDSA P-256. Estimate: AES-256-GCM costs 0.4 to 0.6 CPU seconds a GB, so 1 KiB records cost about twice the CPU time
of unencrypted ones; a handshake costs 0.5 CPU ms, and 1.5 ms more if the client shows a certificate; a login takes
three more requests and three HMACs.
"""

from __future__ import annotations

import itertools
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.librdkafka import consume, end_offsets, payloads, produce
from bench.pair import SETTINGS, Pair, Peer, Plan, create_topic, delete_topic, folder, measured
from bench.table import Row, at_least
from ottla.protocol.sasl import SCRAM_SHA_512
from ottla.security.scram import ScramClient, salted_password
from tests.peers.apache_kafka import AS_SHIPPED, ApacheKafka
from tests.peers.certificates import Authority
from tests.peers.ottla_broker import OttlaBroker
from tests.peers.wire import Wire, free_port, log_in

PARTITIONS = 6
RECORD_BYTES = 1024
BYTES = 400_000_000
HANDSHAKES = 1000
PROTOCOLS = {"OPEN": "SSL", "LOCKED": "SSL", "LOGIN": "SASL_SSL"}
ALTER_USER_SCRAM_CREDENTIALS = 51
USER, PASSWORD = "bench", "bench-secret"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


@dataclass(frozen=True)
class Secured:
    """Both brokers, the addresses of their encrypted listeners, and a client's files."""

    pair: Pair
    addresses: dict[str, dict[str, str]]
    trust: Path
    key: Path

    @property
    def librdkafka(self) -> dict[str, str]:
        """librdkafka's settings."""
        return {"security.protocol": "ssl", "ssl.ca.location": str(self.trust)}


@contextmanager
def secured() -> Iterator[Secured]:
    """A context in which both brokers run, with a listener OPEN that asks for no certificate, LOCKED, which does, and
    LOGIN, which asks for a login by SCRAM."""
    with folder() as root:
        authority = Authority(root / "ca")
        addresses = {
            which: {name: f"127.0.0.1:{free_port()}" for name in ("OPEN", "LOCKED", "LOGIN")}
            for which in ("ottla", "kafka")
        }
        settings = {
            **SETTINGS,
            "listener_security_protocol_map": ",".join(
                f"{name}:{protocol}"
                for name, protocol in {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **PROTOCOLS}.items()
            ),
            "sasl_enabled_mechanisms": SCRAM_SHA_512,
            f"listener_name_login_{SCRAM_SHA_512.lower()}_sasl_jaas_config": SCRAM,
            "inter_broker_listener_name": "PLAINTEXT",
            "ssl_keystore_type": "PEM",
            "ssl_keystore_location": str(authority.issue("server")),
            "ssl_truststore_type": "PEM",
            "ssl_truststore_location": str(authority.trust),
            "listener_name_locked_ssl_client_auth": "required",
        }
        listeners = {
            which: [f"{name}://{address}" for name, address in names.items()] for which, names in addresses.items()
        }
        kafka = ApacheKafka(root / "kafka", heap="1G", options=AS_SHIPPED, listeners=listeners["kafka"], **settings)
        try:
            plain = f"127.0.0.1:{free_port()}"
            of_ottla = ",".join([f"PLAINTEXT://{plain}", *listeners["ottla"]])
            ottla = OttlaBroker(root / "ottla", plain, **settings, listeners=of_ottla, advertised_listeners=of_ottla)
            try:
                key = authority.issue("client", common_name="bench")
                yield Secured(Pair(ottla, kafka), addresses, authority.trust, key)
            finally:
                ottla.stop()
        finally:
            kafka.stop()


def run(plan: Plan) -> list[Row]:
    """Rows for records in both directions, for handshakes, and for logins."""
    with secured() as brokers:
        return [*_records(brokers, plan), *_handshakes(brokers, plan), _logins(brokers, plan)]


def _records(brokers: Secured, plan: Plan) -> list[Row]:
    unit = "records/broker CPU s"
    produced, consumed = (
        Row("TLS: produce 1 KiB, acks=all", unit, at_least(1.5)),
        Row("TLS: consume 1 KiB", unit, at_least(1.2)),
    )
    values = payloads(RECORD_BYTES)
    count = plan.scaled(BYTES) // RECORD_BYTES
    warm: set[str] = set()
    number = itertools.count()

    def work(which: str, broker: Peer) -> None:
        topic = f"tls-{next(number)}"
        address = brokers.addresses[which]["OPEN"]
        create_topic(broker.bootstrap, topic, PARTITIONS)
        with measured(broker) as producing:
            produce(address, topic, count, values, "all", "none", brokers.librdkafka)
        with measured(broker) as consuming:
            consume(address, topic, PARTITIONS, count, security=brokers.librdkafka)
        written = end_offsets(broker.bootstrap, topic, PARTITIONS)
        delete_topic(broker.bootstrap, topic)
        if written != count:
            raise AssertionError(f"{which}: the topic has {written} of {count} acknowledged records")
        if which not in warm:
            warm.add(which)
            return
        produced.add(which, count / producing.broker_cpu)
        consumed.add(which, count / consuming.broker_cpu)

    brokers.pair.alternate(plan, work, plan.rounds + 1)
    return [produced, consumed]


def _handshakes(brokers: Secured, plan: Plan) -> list[Row]:
    rows = {
        "OPEN": Row("TLS: handshakes", "handshakes/broker CPU s", at_least(1)),
        "LOCKED": Row("TLS: handshakes with a client's certificate", "handshakes/broker CPU s", at_least(1)),
    }
    count = plan.scaled(HANDSHAKES)
    context = ssl.create_default_context(cafile=str(brokers.trust))
    context.load_cert_chain(str(brokers.key))
    warm: set[tuple[str, str]] = set()

    def work(which: str, broker: Peer) -> None:
        for listener, row in rows.items():
            host, _, port = brokers.addresses[which][listener].partition(":")
            with measured(broker) as spent:
                for _ in range(count):
                    with socket.create_connection((host, int(port))) as plain:
                        context.wrap_socket(plain, server_hostname=host).close()
            if (which, listener) in warm:
                row.add(which, count / spent.broker_cpu)
            warm.add((which, listener))

    brokers.pair.alternate(plan, work, plan.rounds + 1)
    return list(rows.values())


def _logins(brokers: Secured, plan: Plan) -> Row:
    row = Row("TLS: handshakes and logins by SCRAM-SHA-512", "logins/broker CPU s", at_least(1))
    count = plan.scaled(HANDSHAKES)
    context = ssl.create_default_context(cafile=str(brokers.trust))
    warm: set[str] = set()

    def work(which: str, broker: Peer) -> None:
        if which not in warm:
            _make_user(broker.bootstrap)
        address = brokers.addresses[which]["LOGIN"]
        with measured(broker) as spent:
            for number in range(count):
                with Wire(address, tls=context) as wire:
                    log_in(wire, ScramClient(SCRAM_SHA_512, USER, PASSWORD, f"nonce-{number}"))
        if which in warm:
            row.add(which, count / spent.broker_cpu)
        warm.add(which)

    brokers.pair.alternate(plan, work, plan.rounds + 1)
    return row


def _make_user(bootstrap: str) -> None:
    salt, iterations = b"salt-of-a-user", 4096
    salted = salted_password(SCRAM_SHA_512, PASSWORD, salt, iterations)
    user = {"name": USER, "mechanism": 2, "iterations": iterations, "salt": salt, "salted_password": salted}
    with Wire(bootstrap) as wire:
        answer = wire.call(ALTER_USER_SCRAM_CREDENTIALS, 0, {"deletions": [], "upsertions": [user]})
    if answer.results[0].error_code:
        raise AssertionError(f"no user for the logins: {answer.results[0]}")
