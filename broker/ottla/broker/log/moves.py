"""Moves logs from one log directory of this broker to another while they are read and written (KIP-113).

A copy catches up with the log (`future`), in a thread and at most at `replica.alter.log.dirs.io.max.bytes.per.second`.
Once little is missing, the event loop copies the rest and swaps, all in one turn: (1) the copy's directory gets the
partition's name; (2) the log, which remains the same object, takes over the new paths; (3) the old directory is renamed
for deletion. Everything below the log's new recovery point was synced before.

If the broker stops before (1), the next start drops the copy and begins the move anew. If it stops between (1) and (3),
there are two directories of the partition; the next start keeps one and sets the other aside.

Source: Kafka's ReplicaAlterLogDirsThread and LogManager.replaceCurrentWithFutureLog.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from uuid import uuid4

from ottla.storage import names

from .directories import LogDirectories
from .future import FutureLog, TargetFailed
from .held_logs import LogKey
from .log import Log
from .offset_files import OffsetFile

logger = logging.getLogger(__name__)

_SYNCED_BYTES_MIN = 16 << 20  # smaller passes aren't synced, so that they end before the log grows much
_LAST_BYTES = 256 * 1024  # the event loop copies the last bytes, at most so many
_UNSYNCED_PASSES_MAX = 50  # after so many passes the event loop copies more at the end, because the log grows too fast


class Moves:
    """The moves of one broker, by (topic id, partition). `bytes_per_second` returns the limit of the rate at which each
    move copies."""

    def __init__(self, logs: LogDirectories, bytes_per_second: Callable[[], int]) -> None:
        self.futures: dict[LogKey, FutureLog] = {}
        self._logs = logs
        self._bytes_per_second = bytes_per_second
        self._targets: dict[LogKey, str] = {}

    def wish(self, key: LogKey, target: str) -> bool:
        """Notes that a log is to move to log directory `target`, and returns whether the caller has to call `run` for
        it. If the log is in `target` already, a move of it to another log directory is given up."""
        at_work = key in self._targets
        if self._logs.directory_of(self._logs.logs[key]) == target:
            target = ""
        if key in self.futures and self._targets.get(key) != target:
            self.futures[key].given_up.set()
        if not target:
            self._targets.pop(key, None)
            return False
        self._targets[key] = target
        return not at_work

    def stop(self) -> None:
        """Gives up all moves; the next start begins them anew."""
        self._targets.clear()
        for future in self.futures.values():
            future.given_up.set()

    async def run(self, key: LogKey) -> None:
        """Moves one log to the log directory that was given to `wish` last; returns when the log is there, or the move
        is given up."""
        while (target := self._targets.get(key)) is not None:
            log = self._logs.logs.get(key)
            if log is None:
                del self._targets[key]
                return
            try:
                await self._move(key, log, target)
            except (TargetFailed, OSError) as error:
                reason = error.__cause__ if isinstance(error, TargetFailed) else error
                assert isinstance(reason, OSError)
                logger.error("%r isn't moved to %s: %s", log, target, reason)
                self._targets.pop(key, None)
                self._logs.directory_failed(self._logs.directory_of(log) if reason is error else target, reason)
            except Exception:  # a bug; another wish may still move the log
                self._targets.pop(key, None)
                raise

    async def _move(self, key: LogKey, log: Log, target: str) -> None:
        name = names.renamed_partition_name(log.topic, log.index, names.FUTURE_DIRECTORY, uuid4())
        directory = f"{target}/{name}"
        try:
            future = FutureLog(self._logs.disk, log, key[0], directory)
        except TargetFailed:
            self._logs.deletions.add(0, directory)  # removes the part of the copy that was made
            raise
        self.futures[key] = future
        source = self._logs.directory_of(log)
        try:
            if not await self._catch_up(key, future, target):
                return
            del self._targets[key]
            try:
                self._logs.relocate(log, future.directory, target, future.synced_end)
            except OSError as error:
                raise TargetFailed from error
        finally:
            del self.futures[key]
            if self._logs.disk.exists(future.directory):
                self._logs.deletions.add(0, future.directory)
        logger.info("%r: moved from %s to %s", log, source, target)
        await asyncio.to_thread(self._make_durable, self._logs.recovery_points(), target)

    def _make_durable(self, checkpoints: list[OffsetFile], target: str) -> None:
        """Writes the logs' recovery points and start offsets, and syncs the directories' names. An error is only
        logged, because the next access to that log directory will report it, too."""
        try:
            self._logs.offset_files.write_all(checkpoints)
            self._logs.disk.fsync_directory(target)
        except OSError as error:
            logger.error("a move to %s can't be made durable: %s", target, error)

    async def _catch_up(self, key: LogKey, future: FutureLog, target: str) -> bool:
        """Copies until the copy lacks nothing, then returns True; False where the move is given up or the log is
        gone."""
        begun = False
        unsynced = 0
        while self._logs.logs.get(key) is future.log and self._targets.get(key) == target:
            step = future.next_pass()
            complete = step.covered == future.log.log_end_offset
            if complete and (step.size <= _LAST_BYTES or unsynced > _UNSYNCED_PASSES_MAX) and unsynced:
                step.run(sync=False, bytes_per_second=1 << 62, given_up=future.given_up)
                future.copied(step, synced=False)
                return True
            sync = not unsynced and (not begun or step.size > _SYNCED_BYTES_MIN)
            begun = True
            unsynced += not sync
            try:
                limit = self._bytes_per_second()
                await asyncio.to_thread(step.run, sync=sync, bytes_per_second=limit, given_up=future.given_up)
            except asyncio.CancelledError:
                future.given_up.set()
                raise
            if future.given_up.is_set():
                return False
            future.copied(step, synced=sync)
        return False
