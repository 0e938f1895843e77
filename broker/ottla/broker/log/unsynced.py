"""A log's truncations that aren't known to be on the disk yet. Pure.

Until a truncation is synced, a loss of power may bring back the former log, without the records that compaction had
removed from it. So until then every checkpoint says that the former offsets are compacted. Otherwise the former log, if
it came back, would count as a log that lacks no record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .segment import Segment


class Unsynced:
    """The unsynced truncations of one log. `segments` has the segments that were shortened; below `compacted_to`, the
    log on the disk may still have the compacted segments from before a truncation."""

    __slots__ = ("_truncated", "compacted_to", "segments")

    def __init__(self) -> None:
        self.segments: dict[Segment, None] = {}
        self.compacted_to = 0
        self._truncated = False

    def __bool__(self) -> bool:
        return self._truncated or bool(self.segments)

    def truncated(self, compacted_to: int) -> None:
        """Notes that the log was truncated, and that it had been compacted up to `compacted_to`."""
        self._truncated = True
        self.compacted_to = max(self.compacted_to, compacted_to)

    def synced(self) -> None:
        """Notes that all truncations are on the disk."""
        self.segments.clear()
        self.compacted_to = 0
        self._truncated = False
