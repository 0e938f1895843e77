"""The recurring duties for logs: syncs, retention, checkpoints, removals of deleted files, expiry of producers.

Runs on the event loop as one task per duty. Threads wait for the disk, and long walks over all logs give way to other
tasks. `LogConfig` has the limits of each log, `UpkeepIntervals` the interval of each duty. A duty that fails for one
log goes on with the next log (`Troubles`). Source: Kafka's LogManager.startup.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from .deletion import remove
from .directories import LogDirectories
from .flushing import PendingFlush
from .log import Log
from .offset_files import OffsetFile

logger = logging.getLogger(__name__)

_LOGS_PER_TURN = 50
_SEGMENTS_PER_TURN = 20  # a segment takes three or four renames
_PRODUCERS_PER_TURN = 2_500
_REMOVAL_INTERVAL_MS = 1000
_SHORTENED_SECONDS = 1.0  # how long to wait for more truncations: an election may truncate many logs
_REMOVALS_PER_TURN = 100
_REMOVED_AGAIN_MS = 60_000  # the pause before files that couldn't be removed are tried again

# The names in `Troubles` of the duties that look at one log after the other.
_RETENTION, _SYNC, _EXPIRY = "retention", "sync", "expiry of producers"


@dataclass(frozen=True, slots=True)
class UpkeepIntervals:
    """The intervals of the duties in milliseconds, by Kafka's settings."""

    retention_check_ms: int = 300_000  # log.retention.check.interval.ms
    flush_scheduler_ms: int = 1000  # log.flush.scheduler.interval.ms, where flush.ms is set at all
    recovery_point_ms: int = 60_000  # log.flush.offset.checkpoint.interval.ms
    high_watermark_ms: int = 5000  # replica.high.watermark.checkpoint.interval.ms
    producer_expiry_ms: int = 600_000  # producer.id.expiration.check.interval.ms


class Upkeep:
    """The upkeep of one broker's logs. The owner runs `run` as a task."""

    def __init__(self, logs: LogDirectories, now_ms: Callable[[], int], intervals: UpkeepIntervals) -> None:
        self._logs = logs
        self._now_ms = now_ms
        self.intervals = intervals
        self._shortened = asyncio.Event()
        self._lowered: list[Log] = []  # logs whose checkpoints are to be lowered, after a sync
        self._unremoved: set[str] = set()  # deleted files that are still there

    async def run(self) -> None:
        """Does all duties until cancelled."""
        intervals = self.intervals
        async with asyncio.TaskGroup() as duties:
            duties.create_task(self._flush_sealed())
            duties.create_task(self._checkpoint_shortened())
            duties.create_task(self._every(intervals.flush_scheduler_ms, self._flush_due))
            duties.create_task(self._every(intervals.retention_check_ms, self.retain))
            duties.create_task(self._every(intervals.recovery_point_ms, self.checkpoint_recovery_points))
            duties.create_task(self._every(intervals.high_watermark_ms, self.checkpoint_high_watermarks))
            duties.create_task(self._every(intervals.producer_expiry_ms, self.expire_producers))
            duties.create_task(self._every(_REMOVAL_INTERVAL_MS, self.remove_due))

    async def _every(self, interval_ms: int, duty: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            try:
                await duty()
            except Exception:  # a bug that concerns one log must not end the upkeep of all logs
                logger.exception("%s failed; it is tried again in %d ms", duty.__name__, interval_ms)

    # ---- syncs

    async def _flush_sealed(self) -> None:
        while True:
            await self._logs.flush_wanted.wait()
            self._logs.flush_wanted.clear()
            wanting, self._logs.wanting_flush = self._logs.wanting_flush, {}
            for log in wanting:
                await self._sync(log, log.active.base_offset)

    async def _flush_due(self) -> None:
        now_ms = self._now_ms()
        for log in list(self._logs.logs.values()):
            if log.flush_due(now_ms):
                await self._sync(log)

    async def _sync(self, log: Log, end_offset: int | None = None) -> None:
        try:
            await self.flush(log, end_offset)
        except Exception as error:  # a bug that concerns one log must not end the syncs of the others
            self._logs.troubles.met(_SYNC, log, error)
        else:
            self._logs.troubles.over(_SYNC, log)

    async def flush(self, log: Log, end_offset: int | None = None) -> None:
        """Syncs a log up to `end_offset` (default: its end) in a thread. An OSError is reported to the log
        directory."""
        try:
            pending = log.begin_flush(end_offset)
            await asyncio.to_thread(PendingFlush.run, pending)
        except OSError as error:
            log.directory_failed(error)  # does nothing for a log that was deleted meanwhile
        else:
            log.flushed(pending)

    # ---- retention and removals

    async def retain(self) -> None:
        """Applies retention to all logs: deletes the segments that their topics no longer keep."""
        for count, log in enumerate(list(self._logs.logs.values())):
            if count % _LOGS_PER_TURN == 0:
                await asyncio.sleep(0)
            try:
                deleted = await self._retain(log)
            except OSError as error:
                log.directory_failed(error)
                continue
            except Exception as error:  # one log must not end the retention of the others
                self._logs.troubles.met(_RETENTION, log, error)
                continue
            self._logs.troubles.over(_RETENTION, log)
            for reason, segments in deleted.items():
                logger.info(
                    "%r: deleted %d segments, %s; it starts at offset %d now",
                    log, segments, reason, log.log_start_offset,
                )  # fmt: skip

    async def _retain(self, log: Log) -> dict[str, int]:
        """Applies retention to one log. Returns the number of deleted segments by the reason for their deletion, which
        is a phrase for the log line."""
        deleted: dict[str, int] = {}
        while gone := log.retention(self._now_ms(), self._logs.owner.high_watermark_of(log), _SEGMENTS_PER_TURN):
            count, reason = gone
            deleted[reason] = deleted.get(reason, 0) + count
            await asyncio.sleep(0)
        return deleted

    async def remove_due(self) -> None:
        """Removes deleted files whose delay is over. A bounded number is removed each second, so that the disk has time
        for other work; while a log directory is full, all are removed in one go. Then checks whether full log
        directories have room again."""
        now_ms = self._now_ms()
        due = self._logs.deletions.due(now_ms, None if self._logs.full else _REMOVALS_PER_TURN)
        if due:
            left = await asyncio.to_thread(remove, self._logs.disk, due)
            for path, error in left.items():
                if path not in self._unremoved:
                    logger.error("a deleted file can't be removed, and is tried again: %s", error)
                self._logs.deletions.add(now_ms + _REMOVED_AGAIN_MS, path)
            self._unremoved = (self._unremoved - set(due)) | left.keys()
        if self._logs.full:
            self._logs.look_for_room()

    async def expire_producers(self) -> None:
        """Forgets idle producers."""
        now_ms = self._now_ms()
        for count, log in enumerate(list(self._logs.logs.values())):
            if count % _LOGS_PER_TURN == 0:
                await asyncio.sleep(0)
            try:
                for _ in log.expire_producers(now_ms, _PRODUCERS_PER_TURN):
                    await asyncio.sleep(0)
            except Exception as error:  # one log must not end the expiry of the others' producers
                self._logs.troubles.met(_EXPIRY, log, error)
            else:
                self._logs.troubles.over(_EXPIRY, log)

    # ---- checkpoints

    def shortened(self, log: Log) -> None:
        """Notes that a log was truncated below its checkpointed offsets. If a start after a kill found the old
        checkpoints, records written after the truncation would count as synced, and as compacted, so that a deleted key
        would come back when its tombstone is removed. The checkpoints may be lowered only after a sync (`unsynced.py`),
        so the log is synced and the checkpoints are written soon."""
        self._lowered.append(log)
        self._shortened.set()

    async def _checkpoint_shortened(self) -> None:
        while True:
            await self._shortened.wait()
            self._shortened.clear()
            try:
                await self.checkpoint_recovery_points()
            except Exception:  # as in `_every`: a fault of one log must not end the upkeep of all
                logger.exception("the checkpoints couldn't be written after a truncation")
            await asyncio.sleep(_SHORTENED_SECONDS)

    async def checkpoint_recovery_points(self) -> None:
        """Syncs the logs whose checkpoints are to be lowered, then writes recovery points, log start offsets and the
        offsets up to which logs are compacted."""
        lowered, self._lowered = self._lowered, []
        for log in lowered:
            await self._sync(log, log.active.base_offset)
        await self._write(self._logs.recovery_points())

    async def checkpoint_high_watermarks(self) -> None:
        """Writes the checkpoints of the high watermarks."""
        await self._write(self._logs.high_watermark_checkpoints())

    async def _write(self, files: list[OffsetFile]) -> None:
        for file in files:
            try:
                await asyncio.to_thread(self._logs.offset_files.write, file)
            except OSError as error:
                self._logs.directory_failed(file.path.rpartition("/")[0], error)
