"""A sync that has been decided on the event loop and runs in a thread.

The log says what to sync (`begin_flush`) and hears of the end (`flushed`); in between nothing of the log is touched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from time import perf_counter_ns
from typing import NamedTuple

from ottla.broker.counters import FlushCounters

from .disk import Disk, File


class PendingFlush(NamedTuple):
    """Files to sync, and what is durable afterwards. `run` may be called from any thread, once."""

    disk: Disk
    directories: Sequence[str]
    files: Sequence[File]
    end_offset: int
    generation: int
    counters: FlushCounters

    def run(self) -> None:
        """Syncs. Raises OSError; then nothing may be assumed durable, and the log directory has failed."""
        began = perf_counter_ns()
        for file in self.files:
            file.fsync()
        with contextlib.suppress(FileNotFoundError):  # the partition has been deleted meanwhile
            for directory in self.directories:
                self.disk.fsync_directory(directory)
        self.counters.flushed((perf_counter_ns() - began) // 1000)
