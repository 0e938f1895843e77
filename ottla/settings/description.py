"""Settings as DescribeConfigs shows them: value, source, and synonyms (all places that have a value for it). Pure.

The order of synonyms and the choice of the source are those of Apache Kafka 4.3's ConfigHelper. Synonyms are ordered by
layer: this broker's dynamic values, the cluster's dynamic defaults, the settings of the broker's start, defaults. A
broker setting's synonyms begin with the first one that has the name of the described setting.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any

from ottla.settings.catalogue import BROKER, CLIENT_METRICS, GROUP, TOPIC
from ottla.settings.config import BrokerConfig
from ottla.settings.own import DAMAGED, LOAD, OVERRIDES, RECOVERED, TOPIC_SETTINGS
from ottla.settings.setting import Kind, Setting, Update, format_value
from ottla.settings.sources import known_setting
from ottla.settings.topic_config import TopicConfig

# Kafka has these as dynamic settings only, so a broker's description contains them only if they are set.
_DYNAMIC_ONLY = frozenset(
    {
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)
# These settings belong to Kafka's StandardAuthorizer, which is a plug-in, and not to its brokers.
_OF_THE_AUTHORIZER = frozenset({"super.users", "allow.everyone.if.no.acl.found"})
# Kafka's clients don't expect Ottla's own topic settings, so a topic's description has them only if they are set.
_ONLY_WHERE_GIVEN = frozenset(setting.name for setting in TOPIC_SETTINGS)

Description = dict[str, Any]
"""One setting in the shape of the response's `configs`."""


class Source(IntEnum):
    """The source of a value. The numbers are Kafka's."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT = 3
    STATIC = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


def describe_broker(config: BrokerConfig) -> Iterator[Description]:
    """Every setting of a broker. Some are included only if they are set: internal and dynamic-only settings, those of
    the authorizer, and those of one listener."""
    given = {**config.static, **config.dynamic_default, **config.dynamic_broker}
    unlisted = _DYNAMIC_ONLY | _OF_THE_AUTHORIZER
    hidden = {name for name, setting in BROKER.items() if setting.internal or name in unlisted}
    names = [name for name in BROKER if name not in hidden or name in given]
    for name in [*names, *(name for name in given if name not in BROKER)]:
        setting = known_setting(name)
        assert setting is not None
        synonyms = _broker_synonyms(config, name, setting)
        yield _description(setting, name, format_value(config[name]), synonyms, setting.update is Update.READ_ONLY)


def describe_cluster_default(config: BrokerConfig) -> Iterator[Description]:
    """The cluster's dynamic defaults for brokers."""
    for name, value in config.dynamic_default.items():
        setting = known_setting(name)
        assert setting is not None
        synonyms = [s for s in _broker_synonyms(config, name, setting) if s["source"] == Source.DYNAMIC_DEFAULT]
        yield _description(setting, name, value, synonyms, setting.update is Update.READ_ONLY)


def describe_topic(config: BrokerConfig, overrides: Mapping[str, str]) -> Iterator[Description]:
    """Every setting of a topic."""
    topic = TopicConfig.resolve(config, overrides)
    for name, setting in TOPIC.items():
        if name not in overrides and (setting.internal or name in _ONLY_WHERE_GIVEN):
            continue
        synonyms: list[Description] = []
        if setting.synonyms:
            first = setting.synonyms[0]
            synonyms = _broker_synonyms(config, first, BROKER[first])
        value = format_value(topic[name])
        if name in overrides:
            synonyms.insert(0, _synonym(setting, name, value, Source.TOPIC))
        yield _description(setting, name, value, synonyms)


def describe_overrides(overrides: Mapping[str, str]) -> Description:
    """All of a topic's own settings as the value of one entry, because the operator often asks for the settings of
    thousands of topics."""
    given = dict(sorted(overrides.items()))
    return _in_one_value(OVERRIDES, _json(given), Source.TOPIC, "All settings that were given to the topic.")


def describe_broker_overrides(overrides: Mapping[str, str]) -> Description:
    """All dynamic settings of one broker, as the value of one read-only entry.

    The settings are in the metadata, so any broker can describe them. Passwords are null, as in all descriptions.
    """
    given: dict[str, str | None] = dict(sorted(overrides.items()))
    for name in given:
        setting = known_setting(name)
        if setting is None or setting.sensitive:
            given[name] = None
    return _in_one_value(
        OVERRIDES, _json(given), Source.DYNAMIC_BROKER, "All settings that were given to this broker alone."
    )


def describe_load(cpu_seconds: float, partitions: str) -> Description:
    """The broker's work since its start, as the value of one read-only entry.

    The value has the CPU time of the broker's process, and for each partition the bytes that clients have appended at
    this broker and the bytes that consumers have read from it: {topic: {index: [bytes, bytes]}} as JSON. All numbers
    only grow, and begin at 0 with the next start.
    """
    value = f'{{"cpu_seconds":{round(cpu_seconds, 3)},"partitions":{partitions}}}'
    return _in_one_value(LOAD, value, Source.STATIC, "The broker's work since its start.")


def describe_recovered(logs: int, bytes_dropped: int, cuts: Iterable[Mapping[str, object]]) -> Description:
    """The number of bytes that recovery cut off the logs at the broker's start, as the value of one read-only entry.

    `logs` is the number of these logs, `cuts` has the details of the first few cuts.
    """
    value = {"logs": logs, "bytes_dropped": bytes_dropped, "cuts": list(cuts)}
    return _in_one_value(
        RECOVERED, _json(value), Source.STATIC, "The bytes that recovery cut off the logs at the broker's start."
    )


def describe_damaged(damages: Iterable[Mapping[str, object]]) -> Description:
    """The unreadable places that the broker has found in its logs, as the value of one read-only entry."""
    return _in_one_value(
        DAMAGED, _json(list(damages)), Source.STATIC, "The unreadable places that the broker has found in its logs."
    )


def describe_group(config: BrokerConfig, overrides: Mapping[str, str]) -> Iterator[Description]:
    """Every setting of a group."""
    for name, setting in GROUP.items():
        if setting.synonyms:
            first = setting.synonyms[0]
            synonyms = _broker_synonyms(config, first, BROKER[first])
            value = format_value(config[first])
        else:
            synonyms = [_synonym(setting, name, setting.default, Source.DEFAULT)]
            value = setting.default
        if name in overrides:
            value = overrides[name]
            synonyms.insert(0, _synonym(setting, name, value, Source.GROUP))
        yield _description(setting, name, value, synonyms)


def describe_client_metrics(overrides: Mapping[str, str]) -> Iterator[Description]:
    """Every setting of a subscription to clients' metrics."""
    for name, setting in CLIENT_METRICS.items():
        value = overrides.get(name, setting.default)
        synonyms = [_synonym(setting, name, value, Source.CLIENT_METRICS)] if name in overrides else []
        yield _description(setting, name, value, synonyms)


def describe_loggers(levels: Mapping[str, str]) -> Iterator[Description]:
    """The levels of this process's loggers."""
    for name, level in levels.items():
        yield {"name": name, "value": level, "config_source": Source.BROKER_LOGGER}


def only(descriptions: Iterable[Description], names: Iterable[str] | None) -> list[Description]:
    """The descriptions of the settings in `names`. None or no names mean all; unknown names are ignored."""
    wanted = frozenset(names or ())
    return [description for description in descriptions if not wanted or description["name"] in wanted]


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _in_one_value(name: str, value: str, source: Source, documentation: str) -> Description:
    return {
        "name": name,
        "value": value,
        "read_only": True,
        "config_source": source,
        "config_type": Kind.STRING.value,
        "documentation": documentation,
    }


def _broker_synonyms(config: BrokerConfig, name: str, setting: Setting) -> list[Description]:
    layers = (
        (config.dynamic_broker, Source.DYNAMIC_BROKER),
        (config.dynamic_default, Source.DYNAMIC_DEFAULT),
        (config.static, Source.STATIC),
    )
    names = setting.synonyms or ((name,) if name == setting.name else (name, setting.name))
    found = [
        _synonym(setting, each, layer[each], source) for layer, source in layers for each in names if each in layer
    ]
    for each in names:
        default = BROKER[each].default if each in BROKER else None
        if default is not None:
            found.append(_synonym(setting, each, default, Source.DEFAULT))
    while found and found[0]["name"] != name:
        found.pop(0)
    return found


def _synonym(setting: Setting, name: str, value: str | None, source: Source) -> Description:
    return {"name": name, "value": None if setting.sensitive else value, "source": source}


def _description(
    setting: Setting, name: str, value: str | None, synonyms: list[Description], read_only: bool = False
) -> Description:
    return {
        "name": name,
        "value": None if setting.sensitive else value,
        "read_only": read_only,
        "config_source": synonyms[0]["source"] if synonyms else Source.DEFAULT,
        "is_sensitive": setting.sensitive,
        "synonyms": synonyms,
        "config_type": setting.kind.value,
        "documentation": setting.doc,
    }
