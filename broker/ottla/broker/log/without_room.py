"""Opens the logs that couldn't be opened on a full disk, once there is room: one after the other, in a thread, because
recovery may read a log from its first byte to its last.

Owned by the event loop, except the thread's work. The rule that this protects: while the thread works in a partition's
directory, which it knows by its path, that directory isn't renamed, and no other directory gets its name.
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

_ROOM_AGAIN_BYTES = 64 << 20  # or a twentieth of the volume if that is less
_AGAIN_S = 1.0


Key = tuple[UUID, int]  # topic id, partition


class BeingOpened(OSError):
    """A thread is opening the log in this directory; the directory can be renamed, or its name be used for another one,
    only afterwards."""


class _Attempt:
    """One attempt to open a log."""

    def __init__(self, work: Callable[[], Opened]) -> None:
        self.work = work
        self.given_up = False


class WithoutRoom:
    """The logs that are to be opened when there is room, by topic id and partition."""

    def __init__(self) -> None:
        self.logs: dict[Key, tuple[Home, FoundLog]] = {}
        self._under_way: set[str] = set()  # directories in which the thread opens a log
        self._one_at_a_time = asyncio.Lock()  # a second `open_each` would wait in a thread that the broker needs
        self._opening = threading.Lock()
        self._ended = False

    def is_opened(self, directory: str) -> bool:
        """Whether the thread is opening the log in that directory now."""
        return directory in self._under_way

    def check_not_opened(self, directory: str) -> None:
        """Raises BeingOpened if the thread is opening the log in that directory now."""
        if directory in self._under_way:
            raise BeingOpened(
                errno.EBUSY, f"the log in {directory} is being opened: until that ends, no other log can get its name"
            )

    def gone(self, directory: str) -> None:
        """Notes that the directory was renamed: its log won't be opened any more."""
        for key in [key for key, (_, found) in self.logs.items() if found.directory == directory]:
            del self.logs[key]

    async def open_each(
        self,
        is_due: Callable[[Key, Home], bool],
        work: Callable[[Home, FoundLog], Callable[[], Opened]],
        opened: Callable[[Home, FoundLog, Opened | OSError], None],
        tried: Callable[[UUID, int], None],
    ) -> None:
        """Opens the logs that are due, each by `work` in a thread. After each attempt calls `opened` with the result,
        unless the log was dropped from `logs` meanwhile, and `tried` in any case."""
        async with self._one_at_a_time:
            for key, waiting in list(self.logs.items()):
                home, item = waiting
                if self.logs.get(key) is not waiting or not is_due(key, home):
                    continue  # dropped while another log was opened: the directory may belong to another log by now
                result = await self._opened(item.directory, work(home, item))
                if isinstance(result, BeingOpened):
                    return  # the broker stops
                if self.logs.get(key) is waiting:
                    opened(home, item, result)
                tried(*key)

    async def _opened(self, directory: str, work: Callable[[], Opened]) -> Opened | OSError:
        """Opens the log in that directory in a thread, and tries again as long as threads, descriptors or memory are
        lacking. Returns the opened log or the error."""
        self._under_way.add(directory)
        try:
            while True:
                attempt = _Attempt(work)
                try:
                    result = await asyncio.to_thread(self._open, attempt)
                except (
                    RuntimeError
                ) as error:  # the system gives no new thread, but a thread of the pool may still take the attempt
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
                return OSError(errno.ENOMEM, "the process has too little memory to open the log")

    def end(self) -> None:
        """Ensures that no further log is opened; an attempt in progress goes on."""
        self._ended = True

    def wait(self) -> None:
        """Waits until the opening of a log that is in progress has ended. Only then may the log directories be
        released, and be opened anew. Blocks."""
        with self._opening:
            pass


def has_room(total_bytes: int, usable_bytes: int) -> bool:
    """Whether a volume that was full has room again."""
    return usable_bytes >= min(_ROOM_AGAIN_BYTES, total_bytes // 20)
