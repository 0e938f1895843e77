"""What the opening of logs cut off, kept for those who ask the broker afterwards. Pure.

A log that was cut may be whole again soon, by its leader; what a partition of one replica lost stays lost. Either way
somebody has to be told who doesn't read the broker's own log. The totals are of all logs, the cuts of the first ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

KEPT_MAX = 200


class Cut(NamedTuple):
    """A log that ends at `offset` now: so many bytes and later segments were dropped behind it. `missing` are committed
    records that this replica lacks since then, by the high watermark that was checkpointed last."""

    topic: str
    partition: int
    offset: int
    bytes_dropped: int
    segments_dropped: int
    missing: int
    reason: str


@dataclass(slots=True)
class Cuts:
    """All of one start."""

    logs: int = 0
    bytes_dropped: int = 0
    kept: list[Cut] = field(default_factory=list)

    def add(self, cut: Cut) -> None:
        """One more log was cut, or lacks committed records."""
        self.logs += 1
        self.bytes_dropped += cut.bytes_dropped
        if len(self.kept) < KEPT_MAX:
            self.kept.append(cut)
