"""Decides which of a log's oldest segments may be deleted. Pure.

A segment wholly below the log start offset is deleted under every cleanup policy. The limits of size and time count
only if the cleanup policy contains `delete`. Segments are deleted from the oldest on, up to the first segment that
stays. A segment that the high watermark hasn't passed is never deleted. Source: Kafka's UnifiedLog.deleteOldSegments.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from .config import LogConfig


class Segment(Protocol):
    """The properties of a segment that retention needs. `age_stamp`, the segment's greatest timestamp in ms, may have
    to be read from the disk; it is read only where the decision depends on it."""

    @property
    def base_offset(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def age_stamp(self) -> int: ...


def deletable(
    segments: Sequence[Segment],
    log_end_offset: int,
    config: LogConfig,
    now_ms: int,
    high_watermark: int,
    log_start_offset: int,
    count_max: int | None = None,
) -> tuple[int, str]:
    """How many of the oldest segments may be deleted, at most `count_max`, and for which reason. An empty last segment
    always stays."""
    candidates: list[tuple[Segment, int]] = []  # with the base offset of the next one
    for at, segment in enumerate(islice(segments, count_max)):
        last = at + 1 == len(segments)
        end_offset = log_end_offset if last else segments[at + 1].base_offset
        if end_offset > high_watermark or (last and not segment.size):
            break
        candidates.append((segment, end_offset))
    counts = {"before the log start offset": _before_start(candidates, log_start_offset)}
    if config.deletes:
        counts["by size"] = _by_size(segments, candidates, config.retention_bytes)
        counts["by time"] = _by_time(candidates, now_ms, config.retention_ms)
    reason = max(counts, key=lambda name: counts[name])
    return counts[reason], reason


def _before_start(candidates: Sequence[tuple[Segment, int]], log_start_offset: int) -> int:
    count = 0
    for _, end_offset in candidates:
        if end_offset > log_start_offset:
            break
        count += 1
    return count


def _by_size(segments: Sequence[Segment], candidates: Sequence[tuple[Segment, int]], retention_bytes: int) -> int:
    if retention_bytes < 0 or not candidates:
        return 0
    excess = sum(segment.size for segment in segments) - retention_bytes
    count = 0
    for segment, _ in candidates:
        if excess < segment.size:
            break
        excess -= segment.size
        count += 1
    return count


def _by_time(candidates: Sequence[tuple[Segment, int]], now_ms: int, retention_ms: int) -> int:
    if retention_ms < 0:
        return 0
    count = 0
    for segment, _ in candidates:
        if now_ms - segment.age_stamp <= retention_ms:
            break
        count += 1
    return count
