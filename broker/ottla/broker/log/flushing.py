"""Brings a log's bytes to the disk: a sync begins on the event loop and runs in a thread.

`Log.begin_flush` lists the files to sync, `PendingFlush.run` syncs them, and `Log.flushed` is called at the end. The
thread uses no state of the log. A clean stop (`Log.close`) blocks instead. Source: Kafka's UnifiedLog.flush and close,
and LocalLog.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple

from ottla.storage import names

from .disk import Disk, File, unless_full
from .flush_counters import FlushCounters
from .pending_snapshot import PendingSnapshot

if TYPE_CHECKING:
    from .log import Log


class PendingFlush(NamedTuple):
    """One sync of a log: the files to sync, and the producer snapshots to write before. After `run` everything below
    `end_offset` is durable. `run` may be called only once, from any thread."""

    disk: Disk
    directories: Sequence[str]
    files: Sequence[File]
    snapshots: Sequence[PendingSnapshot]
    end_offset: int
    generation: int
    counters: FlushCounters

    def run(self) -> None:
        """Writes the snapshots and syncs the files. Raises OSError; then nothing may be assumed durable, and the log
        directory has failed."""
        began = perf_counter_ns()
        for snapshot in self.snapshots:
            # Where there is no room for a snapshot, the sync goes on without the snapshot, and the next sync writes it.
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


def begin_flush(log: Log, end_offset: int) -> PendingFlush:
    """The sync that makes everything of `log` below `end_offset` durable; an empty one for a log that the broker has
    given up. Raises OSError."""
    disk, counters = log.services.disk, log.services.flushes
    if log.retired:
        return PendingFlush(disk, (log.directory,), (), (), log.recovery_point, log.generation, counters)
    among = log.segments.all
    segments = [segment for segment in log.segments_read(log.recovery_point) if segment.base_offset < end_offset]
    shortened = [segment for segment in log.unsynced.segments if segment in among]
    segments += [segment for segment in shortened if segment not in segments]
    log.epochs.write_out()
    for segment in segments:
        segment.write_out()
    files = [file for segment in segments for file in segment.files()]
    directories = [log.directory]
    if log.recovery_point <= among[0].base_offset:  # the file with the log's topic id isn't durable yet either
        with contextlib.suppress(FileNotFoundError):
            files.append(disk.open(f"{log.directory}/{names.PARTITION_METADATA}"))
        directories.append(log.directory.rpartition("/")[0])
    for offset in log.snapshots:
        if log.recovery_point <= offset <= end_offset:
            with contextlib.suppress(FileNotFoundError):  # without a snapshot, recovery replays more
                files.append(disk.open(f"{log.directory}/{names.offset_name(offset, names.PRODUCER_SNAPSHOT)}"))
    log.last_flush_ms = log.services.now_ms()
    snapshots = log.producer_snapshots.pending(end_offset)
    return PendingFlush(disk, directories, files, snapshots, end_offset, log.generation, counters)


def close(log: Log) -> None:
    """Leaves the log's files as a clean stop does: indexes complete, producers in a snapshot, all synced, files closed.
    Raises OSError. Blocks."""
    if log.active.size:
        log.active.seal()
    snapshots = log.producer_snapshots
    if log.log_end_offset > log.log_start_offset:
        snapshots.write_later(log.services.disk, log.directory, log.log_end_offset, log.producers)
    snapshots.write_out()
    log.epochs.close()
    if log.log_end_offset > log.recovery_point or log.unsynced:
        log.flush()
    log.segments.let_go()
