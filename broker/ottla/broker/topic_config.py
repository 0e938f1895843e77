"""A topic's configuration: its own settings over what the broker's settings mean for it.

Pure. It is built once per change of the topic's or the broker's settings.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.broker.admission import AdmissionRules
from ottla.broker.config import BrokerConfig
from ottla.broker.log.config import LogConfig
from ottla.broker.settings.catalogue import TOPIC, nearest_name
from ottla.broker.settings.setting import InvalidSetting, Value
from ottla.broker.settings.typed_values import TypedValues

from ottla.protocol.errors import ErrorCode, KafkaError


class TopicConfig(TypedValues):
    """All settings of one topic; `overrides` is the topic's own part, as text by name.

    `log` and `rules` are what appending and reading need, so that the hot path looks nothing up by name.
    """

    __slots__ = ("log", "overrides", "rules")

    overrides: Mapping[str, str]
    log: LogConfig
    rules: AdmissionRules

    def __init__(self, broker: BrokerConfig, values: Mapping[str, Value], overrides: Mapping[str, str]) -> None:
        super().__init__(values)
        self.overrides = overrides
        self.log = self._log_config(broker)
        self.rules = AdmissionRules(
            message_bytes_max=self.get_int("max.message.bytes"),
            timestamp_before_max_ms=self.get_int("message.timestamp.before.max.ms"),
            timestamp_after_max_ms=self.get_int("message.timestamp.after.max.ms"),
            create_time=self.get_str("message.timestamp.type") == "CreateTime",
            compacted=self.log.compacts,
            validate_records=broker.get_bool("ottla.validate.records"),
        )

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
        return cls(broker, values, dict(overrides))

    def _log_config(self, broker: BrokerConfig) -> LogConfig:
        segment = "segment.bytes" if self["internal.segment.bytes"] is None else "internal.segment.bytes"
        return LogConfig(
            segment_bytes=self.get_int(segment),
            segment_ms=self.get_int("segment.ms"),
            segment_jitter_ms=self.get_int("segment.jitter.ms"),
            segment_index_bytes=self.get_int("segment.index.bytes"),
            index_interval_bytes=self.get_int("index.interval.bytes"),
            retention_ms=self.get_int("retention.ms"),
            retention_bytes=self.get_int("retention.bytes"),
            cleanup_policy=frozenset(self.get_list("cleanup.policy")),
            flush_messages=self.get_int("flush.messages"),
            flush_ms=self.get_int("flush.ms"),
            file_delete_delay_ms=self.get_int("file.delete.delay.ms"),
            preallocate=self.get_bool("preallocate"),
            min_cleanable_dirty_ratio=self.get_float("min.cleanable.dirty.ratio"),
            min_compaction_lag_ms=self.get_int("min.compaction.lag.ms"),
            max_compaction_lag_ms=self.get_int("max.compaction.lag.ms"),
            delete_retention_ms=self.get_int("delete.retention.ms"),
            producer_id_expiration_ms=broker.get_int("producer.id.expiration.ms"),
        )


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
        message = f"conflict with topic config setting min.compaction.lag.ms ({low}) > max.compaction.lag.ms ({high})"
        raise KafkaError(ErrorCode.invalid_config, message)
    if values["remote.storage.enable"]:
        message = "There is no tiered storage: remote.storage.enable can't be true."
        raise KafkaError(ErrorCode.invalid_config, message)
