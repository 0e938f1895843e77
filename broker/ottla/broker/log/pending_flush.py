"""A sync that begins on the event loop and runs in a thread.

`Log.begin_flush` lists the files to sync, and `Log.flushed` is called at the end. The thread itself uses no state of
the log.
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
    """The files to sync and the snapshots to write before. Afterwards everything below `end_offset` is durable. `run`
    may be called once, from any thread."""

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
            # Where there is no room for a snapshot, the sync goes on without it, and the next sync tries it again.
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
