"""What log directories ask of the broker that they belong to, and tell it.

All of it happens on the event loop and none of it before the directories are open, except that the thread which closes
them asks for high watermarks, too. Source: what Kafka's LogManager and
LogDirFailureChannel tell the ReplicaManager.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .log import Log


@dataclass(frozen=True, slots=True)
class Owner:
    """The broker, as its log directories see it."""

    high_watermark_of: Callable[[Log], int]
    """Below this offset a log's records are committed: checkpoints hold it, retention and compaction end there."""
    went_offline: Callable[[list[Log]], None]
    """The log directory of these logs has failed, or they are damaged."""
    room_again: Callable[[], None]
    """A log directory that was full takes records again."""
    none_left: Callable[[], None]
    """Every log directory has failed."""
