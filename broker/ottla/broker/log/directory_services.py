"""What a log directory does for its logs: its disk, the files they have open or delete later, and whom they tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .deletion import Deletions
from .disk import Disk
from .flush_counters import FlushCounters
from .segment import OpenFiles

if TYPE_CHECKING:
    from .log import Log


class DirectoryServices:
    """What the logs of one log directory share. `now_ms` is the wall clock; `wants_flush` is told of a log that has
    something to sync (a sealed segment); `failed` hears of every OSError, and of which log, and decides what it
    means."""

    __slots__ = ("deletions", "disk", "failed", "flushes", "now_ms", "open_files", "wants_flush")

    def __init__(
        self,
        disk: Disk,
        deletions: Deletions,
        open_files: OpenFiles,
        now_ms: Callable[[], int],
        wants_flush: Callable[[Log], None],
        failed: Callable[[Log, OSError], None],
        flushes: FlushCounters | None = None,
    ) -> None:
        self.disk = disk
        self.deletions = deletions
        self.open_files = open_files
        self.now_ms = now_ms
        self.wants_flush = wants_flush
        self.failed = failed
        self.flushes = flushes or FlushCounters()
