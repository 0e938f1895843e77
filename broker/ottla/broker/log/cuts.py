"""The data that the opening of logs cut off, kept for the broker's reports. Pure.

A log that was cut may soon be complete again, by copies from its leader. If a partition has one replica only, the
records are lost. Either way, administrators have to learn of the loss, even if they don't read the broker's own log.
The totals cover all cuts, the list only the first KEPT_MAX.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

KEPT_MAX = 200


class Cut(NamedTuple):
    """A log that ends at `offset`, because its bytes and whole segments behind that offset were dropped. `missing` is
    how many committed records this replica lacks, by the high watermark that was checkpointed last."""

    topic: str
    partition: int
    offset: int
    bytes_dropped: int
    segments_dropped: int
    missing: int
    reason: str


@dataclass(slots=True)
class Cuts:
    """All cuts that one start of the broker made."""

    logs: int = 0
    bytes_dropped: int = 0
    kept: list[Cut] = field(default_factory=list)

    def add(self, cut: Cut) -> None:
        """Adds the cut of one log, or the note that a log lacks committed records."""
        self.logs += 1
        self.bytes_dropped += cut.bytes_dropped
        if len(self.kept) < KEPT_MAX:
            self.kept.append(cut)
