"""The tasks of a broker: they end when the broker stops, and if a vital one fails, the broker can't go on.

A failure of a task is logged. If a vital task fails, `failed` is set, and the process has to stop the broker. If a
vital task ends with ForeignStore or NodeIdTaken, the metadata store or the node id isn't this broker's any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from ottla.metadata.registration import NodeIdTaken
from ottla.metadata.store import ForeignStore

logger = logging.getLogger(__name__)


class Tasks:
    """The tasks of one broker. `lost` is called if a vital task ends with ForeignStore or NodeIdTaken, before `failed`
    is set."""

    def __init__(self, lost: Callable[[ForeignStore | NodeIdTaken], None]) -> None:
        self.failed = asyncio.Event()
        self._lost = lost
        self._running: set[asyncio.Task[Any]] = set()
        self._vital: set[asyncio.Task[Any]] = set()

    def spawn(
        self, coroutine: Coroutine[Any, Any, Any], name: str | None = None, *, vital: bool = False
    ) -> asyncio.Task[Any]:
        """Runs a coroutine in a task of the broker. The broker can't go on if a `vital` task fails."""
        task = asyncio.create_task(coroutine, name=name)
        self._running.add(task)
        if vital:
            self._vital.add(task)
        task.add_done_callback(self._finished)
        return task

    def fail(self, reason: str) -> None:
        """Sets `failed`, because the broker can't go on for `reason`, and logs the reason."""
        logger.error("%s: the broker stops", reason)
        self.failed.set()

    async def cancel(self, spared: asyncio.Task[Any] | None = None) -> None:
        """Cancels all tasks but `spared`, and waits until they have ended."""
        ended = self._running - {spared}
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)

    def _finished(self, task: asyncio.Task[Any]) -> None:
        vital = task in self._vital
        self._running.discard(task)
        self._vital.discard(task)
        error = None if task.cancelled() else task.exception()
        if vital and isinstance(error, ForeignStore | NodeIdTaken):
            if not self.failed.is_set():
                logger.error("the broker stops: %s", error)
            self._lost(error)
            self.failed.set()
        elif error is not None:
            logger.error("task %s failed%s", task.get_name(), ": the broker stops" if vital else "", exc_info=error)
            if vital:
                self.failed.set()
