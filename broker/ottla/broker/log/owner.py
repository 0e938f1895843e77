"""The callbacks by which log directories ask their broker for high watermarks and report failures to it.

They are called on the event loop, after the directories were opened. Only the thread that closes the directories also
asks for high watermarks. Source: the calls of Kafka's LogManager and LogDirFailureChannel to the ReplicaManager.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .log import Log


@dataclass(frozen=True, slots=True)
class Owner:
    """The broker, as its log directories see it."""

    high_watermark_of: Callable[[Log], int]
    """Returns a log's high watermark: the records below it are committed. The owner writes it into checkpoints;
    retention and compaction end there."""
    went_offline: Callable[[list[Log]], None]
    """Called when the log directory of these logs has failed, or when they are damaged."""
    room_again: Callable[[], None]
    """Called when a log directory that was full has room again."""
    none_left: Callable[[], None]
    """Called when every log directory has failed."""
