"""Turns a topic's configuration into the rules for its logs and for producers' batches. Pure."""

from __future__ import annotations

from ottla.broker.admission import AdmissionRules
from ottla.broker.log.config import LogConfig
from ottla.protocol.codecs import Codec
from ottla.settings.config import BrokerConfig
from ottla.settings.topic_config import TopicConfig

AS_PRODUCED = "producer"
UNCOMPRESSED = "uncompressed"


def log_config(topic: TopicConfig, broker: BrokerConfig) -> LogConfig:
    """The settings of a topic's logs, from the resolved configuration of the topic."""
    segment = "segment.bytes" if topic["internal.segment.bytes"] is None else "internal.segment.bytes"
    return LogConfig(
        segment_bytes=topic.get_int(segment),
        segment_ms=topic.get_int("segment.ms"),
        segment_jitter_ms=topic.get_int("segment.jitter.ms"),
        segment_index_bytes=topic.get_int("segment.index.bytes"),
        index_interval_bytes=topic.get_int("index.interval.bytes"),
        retention_ms=topic.get_int("retention.ms"),
        retention_bytes=topic.get_int("retention.bytes"),
        cleanup_policy=frozenset(topic.get_list("cleanup.policy")),
        flush_messages=topic.get_int("flush.messages"),
        flush_ms=topic.get_int("flush.ms"),
        file_delete_delay_ms=topic.get_int("file.delete.delay.ms"),
        min_cleanable_dirty_ratio=topic.get_float("min.cleanable.dirty.ratio"),
        min_compaction_lag_ms=topic.get_int("min.compaction.lag.ms"),
        max_compaction_lag_ms=topic.get_int("max.compaction.lag.ms"),
        delete_retention_ms=topic.get_int("delete.retention.ms"),
        producer_id_expiration_ms=broker.get_int("producer.id.expiration.ms"),
    )


def admission_rules(topic: TopicConfig, broker: BrokerConfig) -> AdmissionRules:
    """The rules for producers' batches. The records of a compacted topic are always checked, because records without a
    key would be lost in compaction."""
    compacted = "compact" in topic.get_list("cleanup.policy")
    return AdmissionRules(
        message_bytes_max=topic.get_int("max.message.bytes"),
        timestamp_before_max_ms=topic.get_int("message.timestamp.before.max.ms"),
        timestamp_after_max_ms=topic.get_int("message.timestamp.after.max.ms"),
        create_time=topic.get_str("message.timestamp.type") == "CreateTime",
        compacted=compacted,
        validate_records=compacted or broker.get_bool("ottla.validate.records"),
    )


def target_codec(topic: TopicConfig) -> int | None:
    """The codec (`compression.type`) that batches of the topic must have; None: the codec that the producer chose."""
    name = topic.get_str("compression.type")
    if name == AS_PRODUCED:
        return None
    return Codec.none if name == UNCOMPRESSED else Codec[name]
