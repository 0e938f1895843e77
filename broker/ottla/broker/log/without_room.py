"""Logs that couldn't be opened for want of room, and are opened when there is some: one after the other, in a thread,
because recovery may read a log from its first byte to its last.

Owned by the event loop, but for what the thread does. The rule it protects: while the thread is at work in a
partition's directory, which it knows by its path, that directory isn't renamed, and nothing else gets its name.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from collections.abc import Callable
from uuid import UUID

from .home import Home
from .recovery import Opened
from .survey import FoundLog

logger = logging.getLogger(__name__)

_ROOM_AGAIN_BYTES = 64 << 20  # or a twentieth of a small volume
_THREAD_AGAIN_S = 1.0


class BeingOpened(OSError):
    """A thread opens what lies in this directory; afterwards it can be had."""


class WithoutRoom:
    """The logs by (topic id, partition)."""

    def __init__(self) -> None:
        self.logs: dict[tuple[UUID, int], tuple[Home, FoundLog]] = {}
        self._under_way: set[str] = set()  # directories
        self._opening = threading.Lock()
        self._ended = False

    def is_opened(self, directory: str) -> bool:
        """Whether the thread is at work there."""
        return directory in self._under_way

    def check_not_opened(self, directory: str) -> None:
        """Raises BeingOpened where the thread is at work in that directory."""
        if directory in self._under_way:
            raise BeingOpened(errno.EBUSY, f"{directory} is being opened: its name can't be given away now")

    def gone(self, directory: str) -> None:
        """What lay there has another name now, and is opened no more."""
        for key in [key for key, (_, found) in self.logs.items() if found.directory == directory]:
            del self.logs[key]

    async def open(self, directory: str, work: Callable[[], Opened]) -> Opened | OSError:
        """Opens the log in that directory in a thread; the error where that didn't work."""
        self._under_way.add(directory)
        try:
            while True:
                try:
                    return await asyncio.to_thread(self._open, work)
                except RuntimeError as error:  # the system gives no thread
                    logger.warning("%s can't be opened just now, and is tried again: %s", directory, error)
                    await asyncio.sleep(_THREAD_AGAIN_S)
        finally:
            self._under_way.discard(directory)

    def _open(self, work: Callable[[], Opened]) -> Opened | OSError:
        with self._opening:
            if self._ended:
                return BeingOpened(errno.ECANCELED, "the broker stops")
            try:
                return work()
            except OSError as error:
                return error

    def end(self) -> None:
        """Nothing is opened any more. Waits for what is under way: who opens these directories next may do it then."""
        self._ended = True
        with self._opening:
            pass


def has_room(total_bytes: int, usable_bytes: int) -> bool:
    """Whether a volume that was full isn't any more."""
    return usable_bytes >= min(_ROOM_AGAIN_BYTES, total_bytes // 20)
