"""The settings of a topic that its logs use. Pure.

Names and defaults are Kafka's (`segment.bytes` → `segment_bytes`); −1 means unlimited where Kafka says so.
`ottla.broker.topic_rules` makes a LogConfig from a topic's resolved configuration. Most topics have no settings of
their own; their logs share one LogConfig.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_LONG = (1 << 63) - 1
DELETE = "delete"
COMPACT = "compact"


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The settings of a log; times in ms, sizes in bytes."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 86_400_000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * 86_400_000
    retention_bytes: int = -1
    cleanup_policy: frozenset[str] = field(default_factory=lambda: frozenset({DELETE}))
    flush_messages: int = MAX_LONG
    flush_ms: int = MAX_LONG
    file_delete_delay_ms: int = 60_000
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = MAX_LONG
    delete_retention_ms: int = 86_400_000
    producer_id_expiration_ms: int = 86_400_000
    roll_ms: int = field(init=False)  # the age at which a segment is rolled

    def __post_init__(self) -> None:
        # A compacted topic with a maximum lag rolls segments earlier, since the active segment isn't compacted.
        wanted = min(self.segment_ms, self.max_compaction_lag_ms) if self.compacts else self.segment_ms
        object.__setattr__(self, "roll_ms", wanted - min(self.segment_jitter_ms, wanted))

    @property
    def compacts(self) -> bool:
        return COMPACT in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        return DELETE in self.cleanup_policy
