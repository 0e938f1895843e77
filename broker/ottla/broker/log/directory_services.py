"""The services that the logs of one log directory share: the disk, open files, delayed deletions and callbacks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ottla.storage import names

from .deletion import Deletions
from .disk import Disk
from .flush_counters import FlushCounters
from .segment import OpenFiles

if TYPE_CHECKING:
    from .log import Log


class DirectoryServices:
    """The services of one log directory. `now_ms` is the wall clock. `wants_flush` is called with a log that has a
    sealed segment to sync. `failed` is called with a log and each OSError of its files, and decides what the error
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

    def doom(self, directory: str, file_names: Iterable[str], delay_ms: int) -> None:
        """Renames the files that exist among `file_names`, and schedules their removal after `delay_ms`. Raises
        OSError."""
        due_ms = self.now_ms() + delay_ms
        for name in file_names:
            path = f"{directory}/{name}"
            with contextlib.suppress(FileNotFoundError):
                self.disk.rename(path, path + names.DELETED)
                self.deletions.add(due_ms, path + names.DELETED)
