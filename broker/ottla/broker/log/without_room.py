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

from .disk import OUT_OF_RESOURCES
from .home import Home
from .recovery import Opened
from .survey import FoundLog

logger = logging.getLogger(__name__)

_ROOM_AGAIN_BYTES = 64 << 20  # or a twentieth of a small volume
_AGAIN_S = 1.0


Key = tuple[UUID, int]  # topic id, partition


class BeingOpened(OSError):
    """A thread opens what lies in this directory; afterwards it can be had."""


class _Attempt:
    """One try to open a log."""

    def __init__(self, work: Callable[[], Opened]) -> None:
        self.work = work
        self.given_up = False


class WithoutRoom:
    """The logs."""

    def __init__(self) -> None:
        self.logs: dict[Key, tuple[Home, FoundLog]] = {}
        self._under_way: set[str] = set()  # directories
        self._one_at_a_time = asyncio.Lock()  # `open_each`: others would wait in threads that the broker needs
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

    async def open_each(
        self,
        is_due: Callable[[Key, Home], bool],
        work: Callable[[Home, FoundLog], Callable[[], Opened]],
        opened: Callable[[Home, FoundLog, Opened | OSError], None],
        tried: Callable[[UUID, int], None],
    ) -> None:
        """Opens those that are due, each by `work` in a thread. `opened` is told what came of it, unless the log has
        gone meanwhile; then, in any case, `tried`."""
        async with self._one_at_a_time:
            for key, waiting in list(self.logs.items()):
                home, item = waiting
                if self.logs.get(key) is not waiting or not is_due(key, home):
                    continue  # one that has gone while another was opened: its directory may be another log's by now
                result = await self._opened(item.directory, work(home, item))
                if isinstance(result, BeingOpened):
                    return  # the broker stops
                if self.logs.get(key) is waiting:
                    opened(home, item, result)
                tried(*key)

    async def _opened(self, directory: str, work: Callable[[], Opened]) -> Opened | OSError:
        """What came of opening the log in that directory, in a thread."""
        self._under_way.add(directory)
        try:
            while True:
                attempt = _Attempt(work)
                try:
                    result = await asyncio.to_thread(self._open, attempt)
                except (
                    RuntimeError
                ) as error:  # the system gives no thread; one that is there may still find the attempt
                    attempt.given_up = True
                    reason: BaseException = error
                else:
                    if not isinstance(result, OSError) or result.errno not in OUT_OF_RESOURCES:
                        return result
                    reason = result
                logger.warning("%s can't be opened just now, and is tried again: %s", directory, reason)
                await asyncio.sleep(_AGAIN_S)
        finally:
            self._under_way.discard(directory)

    def _open(self, attempt: _Attempt) -> Opened | OSError:
        with self._opening:
            if self._ended or attempt.given_up:
                return BeingOpened(errno.ECANCELED, "the broker stops")
            try:
                return attempt.work()
            except OSError as error:
                return error
            except MemoryError:
                return OSError(errno.ENOMEM, "there is no memory for it")

    def end(self) -> None:
        """Nothing is opened any more, but for what is under way."""
        self._ended = True

    def wait(self) -> None:
        """Until that is done, too: whoever opens these directories next may do it then. Blocks."""
        with self._opening:
            pass


def has_room(total_bytes: int, usable_bytes: int) -> bool:
    """Whether a volume that was full isn't any more."""
    return usable_bytes >= min(_ROOM_AGAIN_BYTES, total_bytes // 20)
