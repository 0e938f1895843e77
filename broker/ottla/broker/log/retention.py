"""Which of a log's oldest segments may go. Pure.

Source: Kafka's UnifiedLog.deleteOldSegments: by log start offset under every policy; by size and time only where the
policy deletes; from the oldest on, stopping at the first that stays; never what the high watermark hasn't passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .config import LogConfig


class SegmentFacts(NamedTuple):
    """One segment. `end_offset` is where the next one begins; `timestamp` is its greatest, ms."""

    base_offset: int
    end_offset: int
    size: int
    timestamp: int


def deletable(
    segments: Sequence[SegmentFacts], config: LogConfig, now_ms: int, high_watermark: int, log_start_offset: int
) -> tuple[int, str]:
    """(how many segments from the front, why). An empty last segment always stays."""
    candidates = 0
    for segment in segments:
        if segment.end_offset > high_watermark or (segment is segments[-1] and not segment.size):
            break
        candidates += 1
    counts = {"before the log start offset": _before_start(segments[:candidates], log_start_offset)}
    if config.deletes:
        counts["by size"] = _by_size(segments, candidates, config.retention_bytes)
        counts["by time"] = _by_time(segments[:candidates], now_ms, config.retention_ms)
    reason = max(counts, key=lambda name: counts[name])
    return counts[reason], reason


def _before_start(candidates: Sequence[SegmentFacts], log_start_offset: int) -> int:
    count = 0
    for segment in candidates:
        if segment.end_offset > log_start_offset:
            break
        count += 1
    return count


def _by_size(segments: Sequence[SegmentFacts], candidates: int, retention_bytes: int) -> int:
    if retention_bytes < 0:
        return 0
    excess = sum(segment.size for segment in segments) - retention_bytes
    count = 0
    for segment in segments[:candidates]:
        if excess < segment.size:
            break
        excess -= segment.size
        count += 1
    return count


def _by_time(candidates: Sequence[SegmentFacts], now_ms: int, retention_ms: int) -> int:
    if retention_ms < 0:
        return 0
    count = 0
    for segment in candidates:
        if now_ms - segment.timestamp <= retention_ms:
            break
        count += 1
    return count
