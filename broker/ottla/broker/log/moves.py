"""Moves logs from one log directory of this broker to another while they are read and written.

A future log grows beside the log, batch by batch, in a directory of its own name; once it has all, it takes the log's
place within one turn of the event loop. Order of the swap: (1) everything but the last batches of the future log is
synced beforehand; (2) the future directory gets the partition's name; (3) the old directory is renamed for deletion. A
stop before (2) costs the copy, which the next start drops; one between (2) and (3) leaves the partition twice, which
the next start refuses with both paths, so that no record is lost.

Source: Kafka's ReplicaAlterLogDirsThread and LogManager.replaceCurrentWithFutureLog (KIP-113).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from uuid import UUID

from ottla.protocol.batches import iterate_headers

from .directories import LogDirectories
from .log import Log

logger = logging.getLogger(__name__)

_BYTES_PER_TURN = 256 * 1024
_BYTES_BETWEEN_SYNCS = 64 * 1024 * 1024

Moved = Callable[[UUID, int, Log], None]


class Moves:
    """The moves of one broker, by (topic id, partition). `moved` hears of each log that took another's place."""

    def __init__(self, logs: LogDirectories, moved: Moved) -> None:
        self.futures: dict[tuple[UUID, int], Log] = {}
        self._logs = logs
        self._moved = moved
        self._targets: dict[tuple[UUID, int], str] = {}

    def target(self, topic_id: UUID, index: int) -> str | None:
        """The log directory that a log is on its way to."""
        return self._targets.get((topic_id, index))

    def wish(self, topic_id: UUID, index: int, target: str) -> bool:
        """Notes where a log shall go; whether `run` has to be called for that. A wish for where it is ends a move."""
        key = topic_id, index
        at_work = key in self._targets
        if self._logs.directory_of(self._logs.logs[key]) == target:
            self._targets.pop(key, None)
            return False
        self._targets[key] = target
        return not at_work

    async def run(self, topic_id: UUID, index: int) -> None:
        """Moves one log to where the last wish said; returns when it is there, or nobody wants it any more."""
        key = topic_id, index
        while (target := self._targets.get(key)) is not None:
            source = self._logs.logs.get(key)
            if source is None:
                del self._targets[key]
                return
            try:
                future = self._logs.open_future(topic_id, source, target)
                self.futures[key] = future
                await self._copy(key, source, future, target)
            except OSError as error:
                logger.error("%r isn't moved to %s: %s", source, target, error)
                self._targets.pop(key, None)
                self._logs.directory_failed(target, error)
            finally:
                self.futures.pop(key, None)

    async def _copy(self, key: tuple[UUID, int], source: Log, future: Log, target: str) -> None:
        unsynced = 0
        generation = source.generation
        future.truncate_fully_and_start_at(source.log_start_offset)
        while self._logs.logs.get(key) is source and self._targets.get(key) == target:
            if source.generation != generation or future.log_end_offset < source.log_start_offset:
                generation = source.generation
                future.truncate_fully_and_start_at(source.log_start_offset)
            copied = _copy_some(source, future)
            unsynced += copied
            if unsynced >= _BYTES_BETWEEN_SYNCS or (unsynced and not copied):
                unsynced = 0
                flush = future.begin_flush()
                await asyncio.to_thread(flush.run)
                future.flushed(flush)
            elif not copied:
                del self._targets[key]
                future.delete_records_before(source.log_start_offset)
                log = self._logs.replace_with_future(key, source, future)
                logger.info("%r: moved from %s to %s", log, source.directory, log.directory)
                self._moved(*key, log)
                return
            await asyncio.sleep(0)
        self._logs.drop_future(future)


def _copy_some(source: Log, future: Log) -> int:
    """Appends to `future` what `source` has more, at most a turn's worth; the bytes."""
    start = future.log_end_offset
    data = source.read_bytes(start, _BYTES_PER_TURN, source.log_end_offset)
    headers = [(position, header) for position, header in iterate_headers(data) if header.base_offset >= start]
    if not headers:
        return 0
    first = headers[0][0]
    last, header = headers[-1]
    whole = data[first : last + header.size]
    future.append_replicated(whole, [(position - first, header) for position, header in headers])
    return len(whole)
