"""A topic's configuration: its own settings over what the broker's settings mean for it.

Pure. It is built once per change of the topic's or the broker's settings.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.broker.config import BrokerConfig
from ottla.broker.settings.catalogue import TOPIC, nearest_name
from ottla.broker.settings.setting import InvalidSetting, Value
from ottla.broker.settings.typed_values import TypedValues

from ottla.protocol.errors import ErrorCode, KafkaError


class TopicConfig(TypedValues):
    """All settings of one topic; `overrides` is the topic's own part, as text by name."""

    __slots__ = ("overrides",)

    overrides: Mapping[str, str]

    def __init__(self, values: Mapping[str, Value], overrides: Mapping[str, str]) -> None:
        super().__init__(values)
        self.overrides = overrides

    @classmethod
    def resolve(cls, broker: BrokerConfig, overrides: Mapping[str, str]) -> TopicConfig:
        """Settings of a topic on this broker.

        An override that is unknown or invalid is passed over: it was checked when it was written, perhaps by another
        version, and a partition must be served all the same.
        """
        values = dict(broker.topic_defaults)
        for name, text in overrides.items():
            setting = TOPIC.get(name)
            if setting is None:
                continue
            try:
                values[name] = setting.parse(text)
            except InvalidSetting:
                continue
        return cls(values, dict(overrides))


def check_topic_overrides(broker: BrokerConfig, overrides: Mapping[str, str]) -> None:
    """Raise KafkaError(invalid_config) unless a topic can have these settings (Kafka's LogConfig.validate)."""
    values = dict(broker.topic_defaults)
    for name, text in overrides.items():
        setting = TOPIC.get(name)
        if setting is None:
            nearest = nearest_name(name, TOPIC)
            hint = f"; the nearest is {nearest}" if nearest is not None else ""
            raise KafkaError(ErrorCode.invalid_config, f"Unknown topic config name: {name}{hint}")
        try:
            values[name] = setting.parse(text)
        except InvalidSetting as error:
            message = f"Invalid value {error.value} for configuration {name}: Value {error.reason}"
            raise KafkaError(ErrorCode.invalid_config, message) from None
    low, high = values["min.compaction.lag.ms"], values["max.compaction.lag.ms"]
    assert isinstance(low, int)
    assert isinstance(high, int)
    if low > high:
        message = f"conflict topic config setting min.compaction.lag.ms ({low}) > max.compaction.lag.ms ({high})"
        raise KafkaError(ErrorCode.invalid_config, message)
    if values["remote.storage.enable"]:
        message = "Tiered storage is not there yet. Topic cannot be configured with remote log storage."
        raise KafkaError(ErrorCode.invalid_config, message)
