"""Finds a record of a log by its timestamp, in any thread, while retention and compaction go on.

Source: Kafka's UnifiedLog.fetchOffsetByTimestamp.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from .segment import FoundRecord, Segment

_TRIES_MAX = 5
_AGAIN_SECONDS = 0.02


def first_from(
    segments_now: Callable[[], Iterable[Segment]], timestamp: int, log_start_offset: int
) -> FoundRecord | None:
    """The first record, from the log's start on, whose timestamp is at least `timestamp`. Blocks. Raises OSError."""
    return _despite_renames(lambda: _first_from(segments_now(), timestamp, log_start_offset))


def first_of_greatest(segments_now: Callable[[], Sequence[Segment]], log_start_offset: int) -> FoundRecord | None:
    """The first record, from the log's start on, with the greatest timestamp of all. Blocks. Raises OSError."""
    return _despite_renames(lambda: _first_of_greatest(segments_now(), log_start_offset))


def _despite_renames(look_up: Callable[[], FoundRecord | None]) -> FoundRecord | None:
    for attempt in range(_TRIES_MAX):
        try:
            return look_up()
        except FileNotFoundError:  # retention or compaction is just renaming what this thread wants to open
            if attempt + 1 == _TRIES_MAX:
                raise
            time.sleep(_AGAIN_SECONDS)
    raise AssertionError("unreachable")


def _first_of_greatest(segments: Sequence[Segment], log_start_offset: int) -> FoundRecord | None:
    greatest = max((segment.largest().timestamp for segment in segments), default=-1)
    return _first_from(segments, greatest, log_start_offset) if greatest >= 0 else None


def _first_from(segments: Iterable[Segment], timestamp: int, log_start_offset: int) -> FoundRecord | None:
    for segment in segments:
        if segment.largest().timestamp >= timestamp:
            found = segment.find_timestamp(timestamp, log_start_offset)
            if found is not None:
                return found
    return None
