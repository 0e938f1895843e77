"""Checks of a broker's settings against one another, which no single row of the tables can express.

Pure. Source: Apache Kafka 4.3's KafkaConfig.validateValues and the constructors of its coordinators' configurations.
Only settings that Ottla honours are checked, and a few in which a typing error is likely.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ottla.settings.contradiction import Contradiction
from ottla.settings.setting import Value

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

_ORDERED = (
    ("group.min.session.timeout.ms", "group.max.session.timeout.ms"),
    ("group.consumer.min.session.timeout.ms", "group.consumer.session.timeout.ms"),
    ("group.consumer.session.timeout.ms", "group.consumer.max.session.timeout.ms"),
    ("group.consumer.min.heartbeat.interval.ms", "group.consumer.heartbeat.interval.ms"),
    ("group.consumer.heartbeat.interval.ms", "group.consumer.max.heartbeat.interval.ms"),
    ("group.share.min.session.timeout.ms", "group.share.session.timeout.ms"),
    ("group.share.session.timeout.ms", "group.share.max.session.timeout.ms"),
    ("group.streams.min.session.timeout.ms", "group.streams.session.timeout.ms"),
    ("group.streams.session.timeout.ms", "group.streams.max.session.timeout.ms"),
    ("replica.fetch.wait.max.ms", "replica.socket.timeout.ms"),
    ("replica.fetch.wait.max.ms", "replica.lag.time.max.ms"),
    ("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"),
    ("socket.request.max.bytes", "ottla.buffered.memory.bytes.max"),
)
"""Pairs of settings of which the first must not exceed the second."""

_ABOVE = (
    ("log.roll.ms", 1),
    ("log.roll.jitter.ms", 0),
    ("default.replication.factor", -1),
    ("socket.send.buffer.bytes", -1),
    ("socket.receive.buffer.bytes", -1),
)


def _number(values: Mapping[str, Value], name: str) -> int | float:
    value = values[name]
    assert isinstance(value, int | float)
    return value


def inconsistencies(values: Mapping[str, Value]) -> Iterator[Contradiction]:
    """One sentence for each inconsistency. `values` has the typed value of every broker setting."""
    for low, high in _ORDERED:
        if _number(values, low) > _number(values, high):
            yield Contradiction(f"{low}={values[low]}: must not exceed {high}, which is {values[high]}", low, high)
    for name, minimum in _ABOVE:
        if values[name] is not None and _number(values, name) < minimum:
            yield Contradiction(f"{name}={values[name]}: must be at least {minimum}", name)
    for name in ("log.retention.ms", "log.retention.minutes", "log.retention.hours"):
        if values[name] == 0:
            yield Contradiction(f"{name}=0: must be at least 1, or -1 for no limit", name)
    if values["node.id"] is None:
        yield Contradiction("node.id: every broker needs a number of its own, 0 or greater", "node.id")
    if values["broker.id"] not in (-1, values["node.id"]):
        problem = f"broker.id={values['broker.id']}: must be the same as node.id, which is {values['node.id']}"
        yield Contradiction(problem, "broker.id", "node.id")
    of_hosts, overrides = "max.connections.per.ip", "max.connections.per.ip.overrides"
    if values[of_hosts] == 0 and not values[overrides]:
        yield Contradiction(f"{of_hosts}=0: is allowed only with {overrides}", of_hosts, overrides)
    if _number(values, "log.cleaner.dedupe.buffer.size") / max(1, _number(values, "log.cleaner.threads")) <= 1048576:
        yield Contradiction(
            f"log.cleaner.dedupe.buffer.size={values['log.cleaner.dedupe.buffer.size']}: "
            "must be more than 1048576 for each of log.cleaner.threads",
            "log.cleaner.dedupe.buffer.size",
            "log.cleaner.threads",
        )
    if values["offsets.topic.compression.codec"] not in range(5):
        name = "offsets.topic.compression.codec"
        yield Contradiction(f"{name}={values[name]}: must be between 0 and 4", name)
    yield from _etcd(values)
    yield from _authorizer(values)
    rebalance_protocols = values["group.coordinator.rebalance.protocols"]
    assert isinstance(rebalance_protocols, tuple)
    if "classic" not in rebalance_protocols:
        name = "group.coordinator.rebalance.protocols"
        yield Contradiction(f"{name}={','.join(rebalance_protocols)}: must include classic", name)


def principals(super_users: str) -> list[str]:
    """The principals in a value of `super.users`."""
    return [principal for part in super_users.split(";") if (principal := part.strip())]


def _authorizer(values: Mapping[str, Value]) -> Iterator[Contradiction]:
    setting = "authorizer.class.name"
    name, super_users = values[setting], values["super.users"]
    if name not in ("", STANDARD_AUTHORIZER):
        problem = f"{setting}={name}: must be empty, or {STANDARD_AUTHORIZER}, Ottla's only authorizer"
        yield Contradiction(problem, setting)
    assert isinstance(super_users, str)
    for principal in principals(super_users):
        if ":" not in principal:
            example = f"{principal} must have its type before a colon, as in User:{principal}"
            yield Contradiction(f"super.users={super_users}: {example}", "super.users")


def _etcd(values: Mapping[str, Value]) -> Iterator[Contradiction]:
    prefix = "ottla.metadata.etcd."
    for one, other in (("user", "password.file"), ("tls.certificate.file", "tls.key.file")):
        for name, needed in ((one, other), (other, one)):
            if values[prefix + name] and not values[prefix + needed]:
                problem = f"{prefix}{name}={values[prefix + name]}: needs {prefix}{needed}, too"
                yield Contradiction(problem, prefix + name, prefix + needed)
    if not values[prefix + "tls"]:
        for name in ("tls.ca.file", "tls.certificate.file"):
            if values[prefix + name]:
                problem = f"{prefix}{name}={values[prefix + name]}: has no effect without {prefix}tls=true"
                yield Contradiction(problem, prefix + name, f"{prefix}tls")
