"""Checks of the dynamic settings of a topic, broker, group or client-metrics subscription. Pure.

Each check raises KafkaError with Kafka's code for the problem: mostly INVALID_CONFIG, for brokers mostly
INVALID_REQUEST. Source: `validate` of LogConfig, DynamicBrokerConfig, GroupConfig and ClientMetricsConfigs in Apache
Kafka 4.3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.settings.catalogue import BROKER, CLIENT_METRICS, GROUP, TOPIC, nearest_name
from ottla.settings.config import BrokerConfig, InvalidConfiguration
from ottla.settings.setting import InvalidSetting, Setting, Update, Value
from ottla.settings.sources import known_setting

CORDONED = "cordoned.log.dirs"
CLIENT_METRICS_INTERVAL_MS = (100, 3_600_000)
_MATCH_FIELDS = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
# Key and trust stores belong to a listener, so in Kafka they can be changed only under the listener's prefix.
_LISTENER_ONLY = re.compile(
    r"ssl\.(key\.password|(key|trust)store\.(type|location|password|key|certificate\.chain|certificates))"
)
# A group's setting <kind>.<rest> has the broker's bounds group.<kind>.min.<rest> and group.<kind>.max.<rest>.
_GROUP_BOUNDED = re.compile(r"(consumer|share|streams)\.(.+)")
_GROUP_ALONE = {"streams.num.standby.replicas": "group.streams.max.standby.replicas"}


def check_topic(config: BrokerConfig, entries: Mapping[str, str]) -> None:
    """Raises KafkaError unless a topic can have these settings, together with the broker's defaults for all others."""
    values = {**config.topic_defaults, **_parsed(entries, TOPIC, "topic config name", ErrorCode.invalid_config)}
    low, high = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    assert isinstance(low, int)
    assert isinstance(high, int)
    if low > high:
        message = f"conflict topic config setting min.compaction.lag.ms ({low}) > max.compaction.lag.ms ({high})"
        raise KafkaError(ErrorCode.invalid_config, message)
    if values["remote.storage.enable"]:
        message = "Tiered storage is not there yet. Topic cannot be configured with remote log storage."
        raise KafkaError(ErrorCode.invalid_config, message)


def check_broker(config: BrokerConfig, entries: Mapping[str, str], *, per_broker: bool) -> None:
    """Raises KafkaError unless these dynamic settings are allowed for one broker (`per_broker`), or for all."""
    fixed: list[str] = []
    individual: list[str] = []
    for name in entries:
        setting = known_setting(name)
        if setting is None:
            raise KafkaError(ErrorCode.invalid_config, f"Unknown broker config name: {name}{_hint(name, BROKER)}")
        if setting.update is Update.READ_ONLY:
            fixed.append(name)
        elif setting.update is Update.PER_BROKER:
            individual.append(name)
    bare = [name for name in entries if _LISTENER_ONLY.fullmatch(name)]
    for names, message in (
        (fixed, "Cannot update these configs dynamically"),
        (bare, "These security configs can be dynamically updated only per-listener using the listener prefix"),
        (
            individual if not per_broker else [],
            "Cannot update these configs at default cluster level, broker id must be specified",
        ),
    ):
        if names:
            raise KafkaError(ErrorCode.invalid_request, f"{message}: [{', '.join(sorted(names))}]")
    broker, default = (entries, config.dynamic_default) if per_broker else (config.dynamic_broker, entries)
    try:
        BrokerConfig(config.static, broker, default)
    except InvalidConfiguration as error:
        raise KafkaError(ErrorCode.invalid_request, "; ".join(error.problems)) from None
    if per_broker and (given := entries.get(CORDONED)) and given != config.dynamic_broker.get(CORDONED):
        # A value that was set before stays valid, even if its directory was removed from log.dirs since.
        named = {name.strip().rstrip("/") for name in given.split(",")}
        if named != {"*"} and (unknown := sorted(named - {path.rstrip("/") for path in config.log_dirs})):
            message = f"All entries in {CORDONED} must be present in log.dirs, or it must be *: {unknown[0]} isn't"
            raise KafkaError(ErrorCode.invalid_request, message)


def check_group(config: BrokerConfig, entries: Mapping[str, str]) -> None:
    """Raises KafkaError unless a group can have these settings, within the bounds that the broker's settings give."""
    given = _parsed(entries, GROUP, "group config name", ErrorCode.invalid_config)
    for name, value in given.items():
        match = _GROUP_BOUNDED.fullmatch(name)
        assert match is not None
        least, most = (f"group.{match[1]}.{edge}.{match[2]}" for edge in ("min", "max"))
        most = _GROUP_ALONE.get(name, most)
        if least in config and _number(value) < config.get_int(least):
            raise KafkaError(ErrorCode.invalid_config, f"{name} must be greater than or equal to {least}")
        if most in config and _number(value) > config.get_int(most):
            raise KafkaError(ErrorCode.invalid_config, f"{name} must be less than or equal to {most}")
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if _number(given.get(session, config[f"group.{session}"])) <= _number(
            given.get(heartbeat, config[f"group.{heartbeat}"])
        ):
            raise KafkaError(ErrorCode.invalid_config, f"{session} must be greater than {heartbeat}")


def check_client_metrics(entries: Mapping[str, str]) -> None:
    """Raises KafkaError unless a subscription to clients' metrics can have these settings."""
    given = _parsed(entries, CLIENT_METRICS, "client metrics configuration", ErrorCode.invalid_request)
    least, most = CLIENT_METRICS_INTERVAL_MS
    interval = given.get("interval.ms")
    if interval is not None and not least <= _number(interval) <= most:
        message = f"Invalid value {interval} for interval.ms, interval must be between {least} and {most} (1 hour)"
        raise KafkaError(ErrorCode.invalid_request, message)
    patterns = given.get("match", ())
    assert isinstance(patterns, tuple)
    for pattern in patterns:
        field, separator, regex = (part.strip() for part in pattern.partition("="))
        if not separator or field not in _MATCH_FIELDS or not _is_regex(regex):
            raise KafkaError(ErrorCode.invalid_config, f"Illegal client matching pattern: {pattern}")


def _parsed(
    entries: Mapping[str, str], table: Mapping[str, Setting], kind: str, unknown: ErrorCode
) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for name, text in entries.items():
        setting = table.get(name)
        if setting is None:
            raise KafkaError(unknown, f"Unknown {kind}: {name}{_hint(name, table)}")
        try:
            values[name] = setting.parse(text)
        except InvalidSetting as error:
            message = f"Invalid value {error.value} for configuration {name}: Value {error.reason}"
            raise KafkaError(ErrorCode.invalid_config, message) from None
    return values


def _hint(name: str, table: Mapping[str, Setting]) -> str:
    nearest = nearest_name(name, table)
    return f" (the nearest is {nearest})" if nearest is not None else ""


def _number(value: Value) -> float:
    assert isinstance(value, int | float)
    return value


def _is_regex(text: str) -> bool:
    try:
        re.compile(text)
    except re.error:
        return False
    return True
