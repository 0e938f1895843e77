"""What truncations of a log have changed that isn't known to be on the disk yet. Pure.

Until it is, a loss of power may bring back what the log held before: without the records that a compaction had taken
out of it. So a checkpoint goes on saying that those offsets are compacted until the truncation is synced, whoever
writes the checkpoint. Otherwise the log that came back would count as one that has every record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .segment import Segment


class Unsynced:
    """Of one log. `segments` were shortened; below `compacted_to` the disk may still hold a compacted log."""

    __slots__ = ("_truncated", "compacted_to", "segments")

    def __init__(self) -> None:
        self.segments: dict[Segment, None] = {}
        self.compacted_to = 0
        self._truncated = False

    def __bool__(self) -> bool:
        return self._truncated or bool(self.segments)

    def truncated(self, compacted_to: int) -> None:
        """The log was truncated, and was compacted up to there before."""
        self._truncated = True
        self.compacted_to = max(self.compacted_to, compacted_to)

    def synced(self) -> None:
        """All of it is on the disk."""
        self.segments.clear()
        self.compacted_to = 0
        self._truncated = False
