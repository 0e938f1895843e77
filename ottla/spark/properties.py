"""Java client properties, the options `kafka.*`: used by Ottla's client, ignored with a warning, or refused. Pure.

Each property of Kafka 4.3's consumer, producer and admin client is in exactly one of the tables below. So most options
that were written for Spark's Kafka source work unchanged. A property that Ottla's client doesn't have is ignored only
if the same records are read or written without it; otherwise it is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from ottla.net.names import READ_COMMITTED, READ_UNCOMMITTED
from ottla.protocol.codecs import Codec
from ottla.security.client_settings import PROPERTIES, ClientSecurity, client_security


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


CONSUMER = _names(
    "isolation.level check.crcs max.partition.fetch.bytes fetch.max.bytes fetch.min.bytes fetch.max.wait.ms"
)
PRODUCER = _names(
    """
    acks compression.type compression.gzip.level compression.lz4.level compression.zstd.level batch.size
    max.request.size enable.idempotence delivery.timeout.ms transaction.timeout.ms
    """
)
COMMON = _names(
    """
    bootstrap.servers client.id group.id request.timeout.ms default.api.timeout.ms retry.backoff.ms
    socket.connection.setup.timeout.ms
    """
)
REFUSED = {
    "auto.offset.reset": "the option startingOffsets says where a query starts",
    "enable.auto.commit": "offsets are kept in Spark's checkpoint",
    "interceptor.classes": "interceptors are Java classes",
    "key.deserializer": "keys are read as bytes; use DataFrame functions on the column",
    "value.deserializer": "values are read as bytes; use DataFrame functions on the column",
    "key.serializer": "keys are written as bytes or strings; use DataFrame functions on the column",
    "value.serializer": "values are written as bytes or strings; use DataFrame functions on the column",
    "partitioner.class": "partitioners are Java classes; choose partitions by a column 'partition'",
    "transactional.id": "the option ottla.exactlyOnce gives each task an id of its own",
    "transaction.two.phase.commit.enable": "the option ottla.exactlyOnce commits in two phases without it",
}
SECURITY = _names(
    """
    sasl.client.callback.handler.class sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin
    sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
    sasl.login.callback.handler.class sasl.login.class sasl.oauthbearer.assertion.algorithm
    sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
    sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include
    sasl.oauthbearer.assertion.claim.nbf.seconds sasl.oauthbearer.assertion.claim.sub
    sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file
    sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
    sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
    sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope.claim.name
    sasl.oauthbearer.sub.claim.name security.providers ssl.engine.factory.class ssl.keymanager.algorithm
    ssl.protocol ssl.provider ssl.secure.random.implementation ssl.trustmanager.algorithm
    """
)
IGNORED = _names(
    """
    allow.auto.create.topics auto.commit.interval.ms bootstrap.controllers buffer.memory client.dns.lookup
    client.rack config.providers connections.max.idle.ms enable.metrics.push exclude.internal.topics
    group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms
    internal.throw.on.fetch.stable.offset.unsupported linger.ms max.block.ms
    max.in.flight.requests.per.connection max.poll.interval.ms max.poll.records metadata.max.age.ms
    metadata.max.idle.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters
    metrics.num.samples metrics.recording.level metrics.sample.window.ms partition.assignment.strategy
    partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.ignore.keys
    receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms retries retry.backoff.max.ms
    send.buffer.bytes session.timeout.ms share.acknowledgement.mode share.acquire.mode
    socket.connection.setup.timeout.max.ms
    """
)


@dataclass(frozen=True)
class ClientProperties:
    """The checked properties of a client. Times are in ms, sizes in bytes. Warnings are messages for the log."""

    bootstrap: str
    client_id: str = "ottla-spark"
    request_timeout_ms: int = 30_000
    api_timeout_ms: int = 60_000
    connect_timeout_ms: int = 10_000
    retry_backoff_ms: int = 100
    unknown_retries: int = 3
    unknown_interval_ms: int = 1000
    isolation: int = READ_UNCOMMITTED
    check_crc: bool = True
    fetch_max_bytes: int = 4 << 20
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    acks: int = -1
    codec: int = Codec.none
    level: int | None = None
    batch_bytes: int = 1 << 18
    request_bytes: int = 1 << 20
    idempotent: bool = True
    delivery_timeout_ms: int = 120_000
    transaction_timeout_ms: int = 900_000
    security: ClientSecurity = field(default_factory=ClientSecurity)
    warnings: tuple[str, ...] = ()


def client_properties(given: Mapping[str, str], side: Literal["consumer", "producer"]) -> ClientProperties:
    """Checks the properties of a consumer or producer. The names in `given` lack the prefix `kafka.`.

    Raises ValueError, whose message has the property and the accepted values.
    """
    warnings = []
    used = {}
    for name, value in given.items():
        if name in REFUSED:
            raise ValueError(f"option kafka.{name} is not supported: {REFUSED[name]}")
        if name in COMMON or name in PROPERTIES or name in (CONSUMER if side == "consumer" else PRODUCER):
            used[name] = value.strip()
        elif name in CONSUMER or name in PRODUCER:
            warnings.append(f"option kafka.{name} has no meaning for a {side} and is ignored")
        elif name in SECURITY or name in IGNORED:
            warnings.append(f"option kafka.{name} is ignored: Ottla's client has nothing that it would change")
        else:
            known = [*COMMON, *CONSUMER, *PRODUCER, *PROPERTIES, *SECURITY, *IGNORED]
            near = difflib.get_close_matches(name, known, 1, 0.6)
            raise ValueError(f"unknown option 'kafka.{name}'" + (f"; did you mean kafka.{near[0]}?" if near else ""))
    try:
        security = client_security(given)
    except ValueError as error:
        raise ValueError(f"kafka.{error}") from None
    codec, level = _compression(used)
    acks = used.get("acks", "all").lower()
    if acks not in ("all", "-1", "0", "1"):
        raise ValueError(f"kafka.acks is '{acks}': it must be all, 1 or 0")
    sizes = [
        _number(used, name, 4 << 20, 1) for name in ("max.partition.fetch.bytes", "fetch.max.bytes") if name in used
    ]
    return ClientProperties(
        bootstrap=used["bootstrap.servers"],
        client_id=used.get("client.id") or used.get("group.id") or "ottla-spark",
        request_timeout_ms=_number(used, "request.timeout.ms", 30_000, 1),
        api_timeout_ms=_number(used, "default.api.timeout.ms", 60_000, 1),
        connect_timeout_ms=_number(used, "socket.connection.setup.timeout.ms", 10_000, 1),
        retry_backoff_ms=_number(used, "retry.backoff.ms", 100, 0),
        isolation=_isolation(used.get("isolation.level", "read_uncommitted")),
        check_crc=_boolean(used, "check.crcs", True),
        fetch_max_bytes=min(sizes, default=4 << 20),
        fetch_min_bytes=_number(used, "fetch.min.bytes", 1, 0),
        fetch_max_wait_ms=_number(used, "fetch.max.wait.ms", 500, 0),
        acks=-1 if acks == "all" else int(acks),
        codec=codec,
        level=level,
        batch_bytes=_number(used, "batch.size", 1 << 18, 0),
        request_bytes=_number(used, "max.request.size", 1 << 20, 1),
        idempotent=_boolean(used, "enable.idempotence", acks in ("all", "-1")),
        delivery_timeout_ms=_number(used, "delivery.timeout.ms", 120_000, 1),
        # As long as brokers allow by default: transactions last from a task's first row to the micro-batch's end.
        transaction_timeout_ms=_number(used, "transaction.timeout.ms", 900_000, 1),
        security=security,
        warnings=tuple(warnings),
    )


def _isolation(text: str) -> int:
    if text not in ("read_committed", "read_uncommitted"):
        raise ValueError(f"isolation.level is '{text}': it must be read_committed or read_uncommitted")
    return READ_COMMITTED if text == "read_committed" else READ_UNCOMMITTED


def _compression(used: Mapping[str, str]) -> tuple[int, int | None]:
    name = used.get("compression.type", "none").lower()
    if name not in Codec.__members__:
        raise ValueError(f"kafka.compression.type is '{name}': it must be one of {', '.join(Codec.__members__)}")
    level = used.get(f"compression.{name}.level")
    return Codec[name], None if level is None else _number(used, f"compression.{name}.level", 0, -131072)


def _number(used: Mapping[str, str], name: str, default: int, lowest: int) -> int:
    text = used.get(name, str(default))
    try:
        number = int(text)
    except ValueError:
        raise ValueError(f"kafka.{name} is '{text}': it must be an integer") from None
    if number < lowest:
        raise ValueError(f"kafka.{name} is {number}: it must be at least {lowest}")
    return number


def _boolean(used: Mapping[str, str], name: str, default: bool) -> bool:
    text = used.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise ValueError(f"kafka.{name} is '{text}': it must be true or false")
    return text == "true"
