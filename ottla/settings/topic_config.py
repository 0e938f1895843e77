"""A topic's configuration: its own settings over what the broker's settings mean for it.

Pure. It is built once per change of the topic's or the broker's settings.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.settings.catalogue import TOPIC
from ottla.settings.config import BrokerConfig
from ottla.settings.setting import InvalidSetting, Value
from ottla.settings.typed_values import TypedValues


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
