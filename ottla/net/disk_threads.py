"""Threads that read what isn't in memory, so that the event loop doesn't wait for a disk.

The rule it protects: a volume that doesn't answer takes no thread from the others, and holds up nothing but what is
read from it. Each volume has a few threads of its own. They are daemons: one that the kernel never lets go doesn't keep
the process from ending.

What waits for a volume is no more than what somebody waits for: work that is given up leaves the queue. A connection
waits for one piece of its answers, or for one look-up by time of a ListOffsets, which is given up with it; and
`ottla.broker.cold_reads` bounds what fetches look up.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Protocol

THREADS_PER_VOLUME = 4
IDLE_SECONDS = 10.0  # after which a thread ends


class DiskThreads(Protocol):
    """Where work that waits for a disk is done."""

    def run(self, volume: Hashable, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Does `work`, which waits for that volume, in a thread. The future, which belongs to the running event loop,
        gets its outcome. Work that hasn't begun when the future is cancelled is never done, and forgotten.

        Raises OSError where the process may have no thread. To be called on the event loop."""


class VolumeThreads:
    """`per_volume` threads for each volume, begun when there is work for them."""

    def __init__(self, per_volume: int = THREADS_PER_VOLUME, idle_seconds: float = IDLE_SECONDS) -> None:
        self._per_volume = per_volume
        self._idle_seconds = idle_seconds
        self._volumes: dict[Hashable, _Volume] = {}

    def run(self, volume: Hashable, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """See `DiskThreads.run`."""
        found = self._volumes.get(volume)
        if found is None:
            found = self._volumes[volume] = _Volume(self._per_volume, self._idle_seconds)
        return found.run(work)


class _Volume:
    """The threads of one volume, and what waits for them."""

    def __init__(self, threads_max: int, idle_seconds: float) -> None:
        self._threads_max = threads_max
        self._idle_seconds = idle_seconds
        self._threads = 0
        self._idle = 0
        self._waiting: OrderedDict[asyncio.Future[Any], Callable[[], Any]] = OrderedDict()
        self._changed = threading.Condition()

    def run(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().create_future()
        with self._changed:
            self._waiting[future] = work
            if self._idle >= len(self._waiting):
                self._changed.notify()
            elif self._threads < self._threads_max:
                self._begin_thread()
        future.add_done_callback(self._ended)
        return future

    def _ended(self, future: asyncio.Future[Any]) -> None:
        if future.cancelled():
            with self._changed:
                self._waiting.pop(future, None)

    def _begin_thread(self) -> None:
        try:
            threading.Thread(target=self._work, name="disk", daemon=True).start()
        except RuntimeError as error:
            if not self._threads:  # else one of them will come to it
                self._waiting.clear()
                raise OSError(errno.ENOMEM, "the process may have no more threads") from error
        else:
            self._threads += 1

    # What follows runs in the threads.

    def _work(self) -> None:
        while (item := self._next()) is not None:
            future, work = item
            if future.cancelled():
                continue
            try:
                outcome, error = work(), None
            except Exception as reason:  # whoever waits for the future decides what it means
                outcome, error = None, reason
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                future.get_loop().call_soon_threadsafe(_done, future, outcome, error)
            del item, future, work, outcome, error

    def _next(self) -> tuple[asyncio.Future[Any], Callable[[], Any]] | None:
        with self._changed:
            if not self._waiting:
                self._idle += 1
                self._changed.wait_for(lambda: self._waiting, self._idle_seconds)
                self._idle -= 1
            if self._waiting:
                return self._waiting.popitem(last=False)
            self._threads -= 1
            return None


def _done(future: asyncio.Future[Any], outcome: object, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(outcome)
    else:
        future.set_exception(error)
