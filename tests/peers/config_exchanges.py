"""Requests of the configuration and quota APIs, and Apache Kafka's recorded answers, so that tests need no Java.

`python -m tests.peers.config_exchanges` starts Apache Kafka and records the answers anew. The requests build on each
other.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from ottla.protocol.messages import milliseconds
from tests.peers.apache_kafka import ApacheKafka
from tests.peers.wire import Wire

RECORDED = Path(__file__).resolve().parents[1] / "unit/settings/apache_kafka_4_3_1.json"
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
DESCRIBE, ALTER, INCREMENTAL, LIST = 32, 33, 44, 74
DESCRIBE_QUOTAS, ALTER_QUOTAS = 48, 49
SETTLE_SECONDS = 0.3  # a change has reached the broker after this time

Exchange = tuple[int, int, dict[str, Any]]
"""API key, version, request."""


def _describe(*resources: tuple[int, str], keys: list[str] | None = None, version: int = 4) -> Exchange:
    asked = [{"resource_type": kind, "resource_name": name, "configuration_keys": keys} for kind, name in resources]
    return DESCRIBE, version, {"resources": asked, "include_synonyms": True}


def _edit(kind: int, name: str, *edits: tuple[str, int, str | None], validate_only: bool = False) -> Exchange:
    configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in edits]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    return INCREMENTAL, 1, {"resources": [resource], "validate_only": validate_only}


def _replace(kind: int, name: str, *pairs: tuple[str, str | None], validate_only: bool = False) -> Exchange:
    configs = [{"name": key, "value": value} for key, value in pairs]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    return ALTER, 2, {"resources": [resource], "validate_only": validate_only}


def _limit(
    *parts: tuple[str, str | None], validate_only: bool = False, remove: bool = False, **limits: float
) -> Exchange:
    entry = {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in parts],
        "ops": [{"key": key, "value": value, "remove": remove} for key, value in limits.items()],
    }
    return ALTER_QUOTAS, 1, {"entries": [entry], "validate_only": validate_only}


def _quotas(*components: tuple[str, int, str | None], strict: bool = False) -> Exchange:
    filters = [{"entity_type": kind, "match_type": match, "match": name} for kind, match, name in components]
    return DESCRIBE_QUOTAS, 1, {"components": filters, "strict": strict}


def _twice(exchange: Exchange) -> Exchange:
    key, version, request = exchange
    field = "resources" if "resources" in request else "entries"
    return key, version, {**request, field: request[field] * 2}


TOPIC_EXCHANGES: tuple[Exchange, ...] = (
    _describe((TOPIC, "t")),
    _describe((TOPIC, "t"), keys=["retention.ms", "no.such"]),
    _describe((TOPIC, "t"), keys=["retention.ms"], version=1),
    _describe((TOPIC, "t"), keys=[]),
    _describe((TOPIC, "missing"), (TOPIC, "b@d"), (TOPIC, "")),
    _edit(TOPIC, "t", ("retention.ms", SET, "2000")),
    _edit(TOPIC, "t", ("retention.ms", SET, "x")),
    _edit(TOPIC, "t", ("retention.ms", SET, "-5")),
    _edit(TOPIC, "t", ("retention.ms", SET, "")),
    _edit(TOPIC, "t", ("retention.ms", SET, None)),
    _edit(TOPIC, "t", ("retention.ms", SET, "1"), ("retention.ms", SET, "2")),
    _edit(TOPIC, "t", ("no.such", SET, "x")),
    _edit(TOPIC, "t", ("no.such", DELETE, None)),
    _twice(_edit(TOPIC, "t", ("retention.ms", SET, "1"))),
    _edit(TOPIC, "missing", ("retention.ms", SET, "1")),
    _edit(TOPIC, "b@d", ("retention.ms", SET, "1")),
    _edit(TOPIC, "", ("retention.ms", SET, "1")),
    _edit(TOPIC, "t", ("cleanup.policy", APPEND, "compact")),
    _describe((TOPIC, "t"), keys=["cleanup.policy"]),
    _edit(TOPIC, "t", ("cleanup.policy", APPEND, "compact")),
    _edit(TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete")),
    _describe((TOPIC, "t"), keys=["cleanup.policy"]),
    _edit(TOPIC, "t", ("cleanup.policy", SUBTRACT, "compact")),
    _describe((TOPIC, "t"), keys=["cleanup.policy"]),
    _edit(TOPIC, "t", ("cleanup.policy", APPEND, "nothing")),
    _edit(TOPIC, "t", ("cleanup.policy", SET, "compact,compact")),
    _edit(TOPIC, "t", ("cleanup.policy", DELETE, None)),
    _edit(TOPIC, "t", ("retention.ms", APPEND, "5")),
    _edit(TOPIC, "t", ("remote.storage.enable", SET, "true")),
    _edit(TOPIC, "t", ("min.compaction.lag.ms", SET, "100"), ("max.compaction.lag.ms", SET, "50")),
    _edit(TOPIC, "t", ("compression.type", SET, "brotli")),
    _edit(TOPIC, "t", ("compression.gzip.level", SET, "0")),
    _edit(TOPIC, "t", ("compression.gzip.level", SET, "-1")),
    _edit(TOPIC, "t", ("preallocate", SET, "yes")),
    _edit(TOPIC, "t", ("preallocate", SET, "TRUE")),
    _edit(TOPIC, "t", ("min.cleanable.dirty.ratio", SET, "2")),
    _edit(TOPIC, "t", ("min.cleanable.dirty.ratio", SET, ".25")),
    _edit(TOPIC, "t", ("segment.bytes", SET, "10"), validate_only=True),
    _edit(TOPIC, "t", ("segment.bytes", SET, "2000000"), validate_only=True),
    _edit(TOPIC, "t", ("internal.segment.bytes", SET, "20000")),
    _edit(TOPIC, "t", ("min.insync.replicas", SET, "2")),
    _edit(TOPIC, "t", ("leader.replication.throttled.replicas", SET, "0:1,1:2")),
    _edit(TOPIC, "t", ("leader.replication.throttled.replicas", SET, "zz")),
    _edit(TOPIC, "t", ("follower.replication.throttled.replicas", SET, "*")),
    _edit(TOPIC, "t"),
    _describe((TOPIC, "t")),
    _replace(TOPIC, "t", ("retention.ms", "3000")),
    _describe((TOPIC, "t")),
    _replace(TOPIC, "t", ("retention.ms", None)),
    _replace(TOPIC, "t", ("no.such", "1")),
    _replace(TOPIC, "t", ("retention.ms", "1"), ("retention.ms", "2")),
    _replace(TOPIC, "missing", ("retention.ms", "1")),
    _replace(TOPIC, "t", ("segment.bytes", "10"), validate_only=True),
    _replace(TOPIC, "t", ("segment.bytes", "2000000"), validate_only=True),
    _describe((TOPIC, "t"), keys=["retention.ms", "segment.bytes"]),
    _replace(TOPIC, "t"),
    _describe((TOPIC, "t"), keys=["retention.ms"]),
)

BROKER_EXCHANGES: tuple[Exchange, ...] = (
    _describe((BROKER, "0")),
    _describe((BROKER, "")),
    _describe((BROKER, "7"), (BROKER, "x")),
    _edit(BROKER, "0", ("log.retention.ms", SET, "5000")),
    _edit(BROKER, "", ("log.retention.ms", SET, "7000")),
    _edit(TOPIC, "t", ("retention.ms", SET, "2000")),
    _describe((TOPIC, "t"), keys=["retention.ms", "min.insync.replicas"]),
    _describe((BROKER, "0"), keys=["log.retention.ms", "log.retention.minutes", "log.retention.hours"]),
    _describe((BROKER, "")),
    _edit(BROKER, "0", ("log.retention.hours", SET, "5")),
    _edit(BROKER, "0", ("log.retention.ms", SET, "0")),
    _edit(BROKER, "0", ("log.segment.bytes", SET, "5")),
    _edit(BROKER, "0", ("log.segment.bytes", SET, "x")),
    _edit(BROKER, "", ("ssl.keystore.location", SET, "x")),
    _edit(BROKER, "0", ("ssl.keystore.location", SET, "x")),
    _edit(BROKER, "", ("sasl.jaas.config", SET, "x")),
    _edit(BROKER, "0", ("advertised.listeners", SET, "PLAINTEXT://x:1")),
    _edit(BROKER, "7", ("log.retention.ms", SET, "7000")),
    _edit(BROKER, "x", ("log.retention.ms", SET, "7000")),
    _edit(BROKER, "0", ("max.connections.per.ip.overrides", SET, "nothing")),
    _edit(BROKER, "0", ("num.io.threads", SET, "9")),
    _edit(BROKER, "0", ("num.io.threads", DELETE, None)),
    _edit(BROKER, "0", ("log.cleanup.policy", APPEND, "compact")),
    _describe((BROKER, "0"), keys=["log.cleanup.policy"]),
    _describe((TOPIC, "t"), keys=["cleanup.policy"]),
    _edit(BROKER, "0", ("log.cleanup.policy", DELETE, None)),
    _replace(BROKER, "0", ("log.retention.ms", "100000")),
    _replace(BROKER, "0", ("log.retention.hours", "1")),
    _replace(BROKER, "7", ("log.retention.ms", "100000")),
    _describe((BROKER, "0"), keys=["log.retention.ms", "log.flush.interval.ms", "ssl.keystore.password"]),
)

OTHER_EXCHANGES: tuple[Exchange, ...] = (
    _describe((LOGGER, "")),
    _describe((LOGGER, "7")),
    _edit(LOGGER, "0", ("no.such", SET, "DEBUG")),
    _edit(LOGGER, "0", ("root", SET, "LOUD")),
    _edit(LOGGER, "0", ("root", APPEND, "DEBUG")),
    _edit(LOGGER, "0", ("root", DELETE, None)),
    _edit(LOGGER, "", ("root", SET, "INFO")),
    _edit(LOGGER, "7", ("root", SET, "INFO")),
    _edit(LOGGER, "x", ("root", SET, "INFO")),
    _replace(LOGGER, "0", ("root", "INFO")),
    _describe((METRICS, "m")),
    _describe((METRICS, "")),
    _edit(METRICS, "m", ("interval.ms", SET, "1000"), ("metrics", SET, "*")),
    _edit(METRICS, "m", ("interval.ms", SET, "10")),
    _edit(METRICS, "m", ("interval.ms", SET, "x")),
    _edit(METRICS, "m", ("match", SET, "foo=bar")),
    _edit(METRICS, "m", ("match", SET, "client_id=[")),
    _edit(METRICS, "m", ("match", SET, "client_id=a.*")),
    _edit(METRICS, "m", ("no.such", SET, "10")),
    _edit(METRICS, "", ("interval.ms", SET, "1000")),
    _describe((METRICS, "m")),
    _describe((GROUP, "g")),
    _describe((GROUP, "")),
    _edit(GROUP, "g", ("consumer.session.timeout.ms", SET, "46000")),
    _edit(GROUP, "g", ("consumer.session.timeout.ms", SET, "1000")),
    _edit(GROUP, "g", ("consumer.heartbeat.interval.ms", SET, "16000")),
    _edit(GROUP, "g", ("share.auto.offset.reset", SET, "nowhere")),
    _edit(GROUP, "g", ("share.auto.offset.reset", SET, "earliest")),
    _edit(GROUP, "g", ("streams.num.standby.replicas", SET, "3")),
    _edit(GROUP, "g", ("no.such", SET, "1000")),
    _edit(GROUP, "", ("consumer.session.timeout.ms", SET, "46000")),
    _describe((GROUP, "g")),
    _edit(3, "x", ("a", SET, "1")),
    _replace(3, "x", ("a", "1")),
    *((LIST, 1, {"resource_types": types}) for types in ([], [2], [4], [8], [16], [32], [2, 32], [3])),
    (LIST, 0, {}),
)

QUOTA_EXCHANGES: tuple[Exchange, ...] = (
    _limit(("user", "u"), producer_byte_rate=1000.0),
    _limit(("user", "u"), producer_byte_rate=1000.5),
    _limit(("user", "u"), producer_byte_rate=0.0),
    _limit(("user", "u"), producer_byte_rate=-1.0),
    _limit(("user", "u"), producer_byte_rate=1e30),
    _limit(("user", "u"), request_percentage=0.5),
    _limit(("user", "u"), no_such=1.0),
    _limit(("user", "u"), no_such=1.0, remove=True),
    _limit(("user", "u"), connection_creation_rate=1.0),
    _limit(producer_byte_rate=1.0),
    _limit(("color", "red"), producer_byte_rate=1.0),
    _limit(("user", ""), producer_byte_rate=1.0),
    _limit(("user", None), producer_byte_rate=5.0),
    _limit(("user", "u"), ("client-id", "c"), consumer_byte_rate=7.0),
    _limit(("user", "u"), ("client-id", None), consumer_byte_rate=8.0),
    _limit(("client-id", "c"), consumer_byte_rate=9.0),
    _limit(("ip", "127.0.0.1"), connection_creation_rate=9.0),
    _limit(("ip", "127.0.0.1"), connection_creation_rate=3e9),
    _limit(("ip", "127.0.0.1"), producer_byte_rate=9.0),
    _limit(("ip", "no such host"), connection_creation_rate=9.0),
    _limit(("ip", None), connection_creation_rate=10.0),
    _limit(("ip", "127.0.0.1"), ("user", "u"), connection_creation_rate=9.0),
    _limit(("user", "u"), producer_byte_rate=77.0, validate_only=True),
    _limit(("user", "gone"), producer_byte_rate=3.0),
    _limit(("user", "gone"), producer_byte_rate=3.0, remove=True),
    _limit(("user", "u")),
    _quotas(),
    _quotas(strict=True),
    _quotas(("user", 0, "u")),
    _quotas(("user", 0, "u"), strict=True),
    _quotas(("user", 1, None)),
    _quotas(("user", 2, None)),
    _quotas(("user", 2, None), strict=True),
    _quotas(("user", 2, None), ("client-id", 2, None)),
    _quotas(("client-id", 1, None)),
    _quotas(("ip", 2, None)),
    _quotas(("user", 0, "nobody")),
    _quotas(("color", 2, None)),
    _quotas(("", 2, None)),
    _quotas(("user", 0, None)),
    _quotas(("user", 1, "x")),
    _quotas(("user", 2, "x")),
    _quotas(("user", 3, "x")),
    _quotas(("user", 0, "u"), ("user", 0, "v")),
    _quotas(("user", 0, "u"), ("ip", 2, None)),
)

EXCHANGES = (*TOPIC_EXCHANGES, *BROKER_EXCHANGES, *OTHER_EXCHANGES, *QUOTA_EXCHANGES)


def plain(value: Any) -> Any:
    """An answer as JSON data. Lists without a meaningful order are sorted."""
    if isinstance(value, timedelta):
        return milliseconds(value)
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        items = [plain(inner) for inner in value]
        unordered = items and isinstance(items[0], dict) and "source" not in items[0]
        return sorted(items, key=lambda item: json.dumps(item, sort_keys=True)) if unordered else items
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def record(bootstrap: str) -> list[dict[str, Any]]:
    """A broker's answers to all requests, in the order of the requests."""
    with Wire(bootstrap) as wire:
        topic = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        wire.call(19, 5, {"topics": [topic], "timeout": 10_000})
        time.sleep(SETTLE_SECONDS)
        answers = []
        for key, version, request in EXCHANGES:
            answers.append(plain(asdict(wire.call(key, version, request))))
            if key in (ALTER, INCREMENTAL, ALTER_QUOTAS):
                time.sleep(SETTLE_SECONDS)
        return answers


def main() -> None:
    """Records Apache Kafka's answers, and the properties with which its broker ran."""
    with tempfile.TemporaryDirectory() as folder:
        kafka = ApacheKafka(Path(folder) / "kafka")
        try:
            answers = record(kafka.bootstrap)
            properties = (Path(folder) / "kafka/server.properties").read_text().replace(folder, "/tmp/folder")
        finally:
            kafka.stop()
    lines = ",\n".join(json.dumps(answer) for answer in answers).replace(folder, "/tmp/folder")
    RECORDED.write_text(f'{{"properties": {json.dumps(properties)},\n"answers": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
