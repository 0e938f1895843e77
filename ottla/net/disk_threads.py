"""Threads that read from disks for the event loop, so that the loop doesn't wait for a disk.

The rule that this module protects: a volume that doesn't answer takes no thread from other volumes, and delays only
reads from itself. So each volume has a few threads of its own. The threads are daemons: one that hangs in a read for
ever doesn't keep the process from ending.

When the future of a piece of work is cancelled, the work leaves the volume's queue. A connection waits for only one
piece of work at a time: for a piece of its answers, or for a ListOffsets' look-up by time. This work is cancelled when
the connection closes. `ottla.broker.cold_reads` bounds the look-ups of fetches.
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
IDLE_SECONDS = 10.0  # a thread without work ends after this time


class DiskThreads(Protocol):
    """Runs work that waits for a disk outside the event loop."""

    def run(self, volume: Hashable, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Runs `work`, which may wait for the disk of `volume`, in a thread, and returns a future for the outcome.

        The future belongs to the running event loop. If it is cancelled before the work has begun, the work is dropped.
        Must be called on the event loop. Raises OSError if the process may have no further thread.
        """


class VolumeThreads:
    """`DiskThreads` with up to `per_volume` threads for each volume. A thread is started when there is work for it."""

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
    """The threads of one volume, and the queue of work for them."""

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
            if not self._threads:  # a thread that the volume has already will do the work later
                self._waiting.clear()
                raise OSError(errno.ENOMEM, "the process may have no more threads") from error
        else:
            self._threads += 1

    # The methods below run in the threads.

    def _work(self) -> None:
        while (item := self._next()) is not None:
            future, work = item
            if future.cancelled():
                continue
            try:
                outcome, error = work(), None
            except Exception as reason:  # the caller gets the error by the future, and handles it
                outcome, error = None, reason
            with contextlib.suppress(RuntimeError):  # the event loop may have ended meanwhile
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
