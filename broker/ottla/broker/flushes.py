"""The flushes of one replica's log that requests ask for: requests that come during a flush share the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ottla.broker.log.log import Log
from ottla.protocol.errors import KafkaError


class Flushes:
    """At most one flush runs and one waits. `failed` turns an error of the disk into the error for clients."""

    __slots__ = ("_failed", "_log", "_next", "_running")

    def __init__(self, log: Log, failed: Callable[[OSError], KafkaError]) -> None:
        self._log = log
        self._failed = failed
        self._running: asyncio.Future[None] | None = None
        self._next: asyncio.Future[None] | None = None

    def flush(self) -> asyncio.Future[None]:
        """A future that is done when all records that were written by now are on the disk; a thread forces them there.
        Fails with KafkaError KAFKA_STORAGE_ERROR."""
        running = self._running
        if running is None or running.done():
            self._running = asyncio.ensure_future(self._flush())
            return self._running
        if self._next is None or self._next.done():
            self._next = asyncio.ensure_future(self._flush_after(running))
        return self._next

    async def _flush(self) -> None:
        log = self._log
        try:
            pending = log.begin_flush()
            await asyncio.to_thread(pending.run)
        except OSError as error:
            raise self._failed(error) from error
        log.flushed(pending)

    async def _flush_after(self, running: asyncio.Future[None]) -> None:
        await asyncio.wait([running])
        self._running, self._next = self._next, None
        await self._flush()
