"""A topic's configuration: the topic's own settings, and for all others the defaults from the broker's settings.

Pure. A configuration is built once for each change of the topic's or the broker's settings.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.settings.catalogue import TOPIC
from ottla.settings.config import BrokerConfig
from ottla.settings.setting import InvalidSetting, Value
from ottla.settings.typed_values import TypedValues


class TopicConfig(TypedValues):
    """All settings of one topic. `overrides` are the topic's own settings, as texts by name."""

    __slots__ = ("overrides",)

    overrides: Mapping[str, str]

    def __init__(self, values: Mapping[str, Value], overrides: Mapping[str, str]) -> None:
        super().__init__(values)
        self.overrides = overrides

    @classmethod
    def resolve(cls, broker: BrokerConfig, overrides: Mapping[str, str]) -> TopicConfig:
        """The settings of a topic on this broker.

        Overrides were checked when they were written, perhaps by another version of Ottla. If this broker doesn't know
        an override, or finds it invalid, it ignores the override and serves the topic's partitions.
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
