"""Converts the broker's settings into the types that the broker's parts take.

The broker converts the settings anew whenever a dynamic setting has changed.
"""

from __future__ import annotations

import os

from ottla.broker import descriptors
from ottla.broker.log.compactor import CompactionLimits
from ottla.broker.log.upkeep import UpkeepIntervals
from ottla.broker.quota.windows import Windows
from ottla.net.server import Limits
from ottla.settings.config import BrokerConfig

_CHECKPOINT_MS_MIN = 100
_COMPACTION_BACKOFF_MS_MIN = 100
_FLUSH_SCHEDULER_MS_MAX = 1000  # the setting's default is "never", but topics may set flush.ms


def upkeep_intervals(config: BrokerConfig) -> UpkeepIntervals:
    """The intervals of the logs' upkeep."""
    return UpkeepIntervals(
        retention_check_ms=config.get_int("log.retention.check.interval.ms"),
        flush_scheduler_ms=min(config.get_int("log.flush.scheduler.interval.ms"), _FLUSH_SCHEDULER_MS_MAX),
        recovery_point_ms=max(config.get_int("log.flush.offset.checkpoint.interval.ms"), _CHECKPOINT_MS_MIN),
        high_watermark_ms=max(config.get_int("replica.high.watermark.checkpoint.interval.ms"), _CHECKPOINT_MS_MIN),
        producer_expiry_ms=config.get_int("producer.id.expiration.check.interval.ms"),
    )


def compaction_limits(config: BrokerConfig) -> CompactionLimits:
    """The limits on compaction: its I/O rate, its memory and the pause between its rounds."""
    return CompactionLimits(
        bytes_per_second=config.get_float("log.cleaner.io.max.bytes.per.second"),
        dedupe_buffer_bytes=config.get_int("log.cleaner.dedupe.buffer.size"),
        backoff_ms=max(config.get_int("log.cleaner.backoff.ms"), _COMPACTION_BACKOFF_MS_MIN),
    )


def cordoned_paths(config: BrokerConfig) -> frozenset[str]:
    """The paths of the log directories that get no new replicas, absolute as in `LogDirectories`."""
    return frozenset(os.path.abspath(path) for path in config.cordoned_log_dirs)


def connection_limits(config: BrokerConfig) -> Limits:
    """The limits on clients' connections, and on the memory that the connections take in this process."""
    return Limits(
        frame_bytes_max=config.get_int("socket.request.max.bytes"),
        buffered_memory_bytes=config.get_int("ottla.buffered.memory.bytes.max"),
        unanswered_max=config.get_int("ottla.connection.unanswered.requests.max"),
        unanswered_bytes_max=config.get_int("ottla.connection.unanswered.bytes.max"),
        connections_max=min(config.get_int("max.connections"), descriptors.connections_max()),
        listener_connections_max=config.listener_connections,
        inter_broker_listener=config.listeners.inter_broker,
        connections_per_ip_max=config.get_int("max.connections.per.ip"),
        connections_per_ip_overrides=config.connection_overrides,
        idle_seconds_max=config.get_int("connections.max.idle.ms") / 1000,
        send_buffer_bytes=config.get_int("socket.send.buffer.bytes"),
        receive_buffer_bytes=config.get_int("socket.receive.buffer.bytes"),
        backlog=config.get_int("socket.listen.backlog.size"),
    )


def quota_windows(config: BrokerConfig, prefix: str = "") -> Windows:
    """The windows of clients' quotas; with the prefix `controller.`, those of the quotas on changes of topics."""
    seconds = config.get_int("controller.quota.window.size.seconds" if prefix else "quota.window.size.seconds")
    number = config.get_int("controller.quota.window.num" if prefix else "quota.window.num")
    return Windows(number, seconds * 1000)
