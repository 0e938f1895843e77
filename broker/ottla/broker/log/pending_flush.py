"""A sync that has been decided on the event loop and runs in a thread.

The log says what to sync (`begin_flush`) and hears of the end (`flushed`); in between nothing of the log is touched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from time import perf_counter_ns
from typing import NamedTuple

from .disk import Disk, File, unless_full
from .flush_counters import FlushCounters
from .pending_snapshot import PendingSnapshot


class PendingFlush(NamedTuple):
    """Files to sync, snapshots to write before, and what is durable afterwards. `run` may be called from any thread,
    once."""

    disk: Disk
    directories: Sequence[str]
    files: Sequence[File]
    snapshots: Sequence[PendingSnapshot]
    end_offset: int
    generation: int
    counters: FlushCounters

    def run(self) -> None:
        """Syncs. Raises OSError; then nothing may be assumed durable, and the log directory has failed."""
        began = perf_counter_ns()
        for snapshot in self.snapshots:
            # Where there is no room for one the sync goes on: it is tried again with the next, and may be missing.
            with unless_full(), contextlib.suppress(FileNotFoundError):  # the partition has been deleted or moved
                snapshot.write()
                if snapshot.written:
                    self.disk.open(snapshot.path).fsync()
        for file in self.files:
            file.fsync()
        with contextlib.suppress(FileNotFoundError):  # the partition has been deleted meanwhile
            for directory in self.directories:
                self.disk.fsync_directory(directory)
        self.counters.flushed((perf_counter_ns() - began) // 1000)
