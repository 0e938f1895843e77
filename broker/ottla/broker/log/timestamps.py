"""Finds a record of a log by its timestamp, in any thread, while retention, compaction and truncations go on.

Source: Kafka's UnifiedLog.fetchOffsetByTimestamp.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from .segment import FoundRecord, Segment

_TRIES_MAX = 5
_AGAIN_SECONDS = 0.02


class ReadLog(Protocol):
    """The properties of a log that a search by timestamp needs."""

    @property
    def segments(self) -> Sequence[Segment]: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def generation(self) -> int: ...


def first_from(log: ReadLog, timestamp: int) -> FoundRecord | None:
    """The first record, from the log start offset on, whose timestamp is at least `timestamp`. Blocks. Raises
    OSError."""
    return _despite_changes(log, lambda: _first_from(list(log.segments), timestamp, log.log_start_offset))


def first_of_greatest(log: ReadLog) -> FoundRecord | None:
    """The first of the records with the greatest timestamp, from the log start offset on. Blocks. Raises OSError."""
    return _despite_changes(log, lambda: _first_of_greatest(list(log.segments), log.log_start_offset))


def _despite_changes(log: ReadLog, look_up: Callable[[], FoundRecord | None]) -> FoundRecord | None:
    """Repeats a look-up during which the log was truncated: then neither the result nor an error of the look-up
    counts."""
    for attempt in range(_TRIES_MAX):
        last = attempt + 1 == _TRIES_MAX
        generation = log.generation
        try:
            found = look_up()
            if last or log.generation == generation:
                return found
        except FileNotFoundError:  # retention or compaction is just renaming the file that is opened
            if last:
                raise
            time.sleep(_AGAIN_SECONDS)
        except Exception:  # such as half an index entry or a position behind the end: the log was cut, or is damaged
            time.sleep(_AGAIN_SECONDS)  # a truncation in progress is counted at its end
            if last or log.generation == generation:
                raise
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
