"""Finds a record of a log by its timestamp, in any thread, while retention and compaction go on.

Source: Kafka's UnifiedLog.fetchOffsetByTimestamp.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from .segment import FoundRecord, Segment

_TRIES_MAX = 5
_AGAIN_SECONDS = 0.02


def first_from(
    segments_now: Callable[[], Iterable[Segment]], timestamp: int, log_start_offset: int
) -> FoundRecord | None:
    """The first record, from the log's start on, whose timestamp is at least `timestamp`. Blocks. Raises OSError."""
    for attempt in range(_TRIES_MAX):
        try:
            return _first_from(segments_now(), timestamp, log_start_offset)
        except FileNotFoundError:  # retention or compaction is just renaming what this thread wants to open
            if attempt + 1 == _TRIES_MAX:
                raise
            time.sleep(_AGAIN_SECONDS)
    raise AssertionError("unreachable")


def _first_from(segments: Iterable[Segment], timestamp: int, log_start_offset: int) -> FoundRecord | None:
    for segment in segments:
        if segment.largest().timestamp >= timestamp:
            found = segment.find_timestamp(timestamp, log_start_offset)
            if found is not None:
                return found
    return None
