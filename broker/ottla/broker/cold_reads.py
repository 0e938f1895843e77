"""What a fetch needs of the disk before it can be answered: an offset's place in a log that isn't in memory.

A log is looked up on the event loop, in its index and its batches' headers, as far as they are in memory. Where they
aren't, a thread of the log directory's looks the same up, and reads what follows; the partition has nothing to read
until then. Who asks meanwhile for the same offset waits for the same thread. A look-up goes on when whoever asked has
hung up, because another may ask for the same: so there are no more of them than UNDER_WAY_MAX.

The rule it protects: each of these reads ends. On a file system that keeps nothing in memory, what a thread has found
isn't there when the fetch asks again. So whoever asks again within a moment may wait for the disk, which has just
answered.

How many threads there are is `ottla.net.disk_threads`' matter, and what is sent `ottla.net.outgoing`'s.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar
from weakref import WeakValueDictionary

from ottla.broker.log.segment import DamagedSegment, Segment
from ottla.net.disk_threads import DiskThreads
from ottla.net.pending import READ_AHEAD_BYTES

if TYPE_CHECKING:
    from ottla.broker.partition import Partition

REMEMBERED_SECONDS = 1.0
UNDER_WAY_MAX = 1000  # of a log directory: who asks for more asks again when it is their turn

T = TypeVar("T")


class ReadLog(Protocol):
    """What is needed of a log."""

    @property
    def directory(self) -> str: ...
    def segments_read(self, offset: int) -> list[Segment]: ...


_Place = tuple[ReadLog, int]


class _Ended(NamedTuple):
    """A look-up: when it ended, of how many bytes it was, and what the disk said."""

    at: float
    size: int
    error: OSError | None


class ColdReads:
    """The cold reads of one broker, on its event loop."""

    def __init__(self, threads: DiskThreads) -> None:
        self._threads = threads
        self._under_way: dict[str, dict[_Place, asyncio.Future[None]]] = defaultdict(dict)  # by log directory
        # Those beyond the bound, in their order, by log directory; who doesn't wait any more leaves by itself.
        self._queued: dict[str, WeakValueDictionary[int, asyncio.Future[None]]] = defaultdict(WeakValueDictionary)
        self._numbers = count()
        self._ended: dict[_Place, _Ended] = {}

    @property
    def under_way(self) -> int:
        """How many haven't ended."""
        return sum(map(len, self._under_way.values()))

    def just_read(self, partition: Partition, offset: int, max_bytes: int) -> bool:
        """Whether a read of `max_bytes` from `offset` was prepared a moment ago, so that it may wait for the disk.
        Raises KafkaError KAFKA_STORAGE_ERROR where the disk failed."""
        if not self._ended:
            return False
        ended = self._ended.pop((partition.log, offset), None)
        if ended is None or asyncio.get_running_loop().time() - ended.at >= REMEMBERED_SECONDS:
            return False
        if ended.error is not None:
            raise partition.failed(ended.error) from ended.error
        return ended.size >= _looked_up(max_bytes)

    def read_ahead(self, log: ReadLog, offset: int, limit_offset: int, max_bytes: int) -> asyncio.Future[None]:
        """Prepares a read of `max_bytes` from `offset` up to `limit_offset`; done when it is time to ask again. Nobody
        may cancel it: others may wait for it, too. Raises OSError where the process may have no thread."""
        place = log, offset
        directory = _log_directory(log)
        under_way = self._under_way[directory]
        ready = under_way.get(place)
        if ready is None:
            loop = asyncio.get_running_loop()
            if len(under_way) >= UNDER_WAY_MAX:
                ready = self._queued[directory][next(self._numbers)] = loop.create_future()
                return ready
            size = _looked_up(max_bytes)
            work = partial(_look_up, log.segments_read(offset), offset, limit_offset, size)
            reading = self._threads.run(directory, work)
            ready = under_way[place] = loop.create_future()
            reading.add_done_callback(partial(self._was_read, directory, place, size, loop))
        return ready

    def run(self, log: ReadLog, work: Callable[[], T]) -> asyncio.Future[T]:
        """Does `work`, which reads that log, in a thread of its log directory, and on the event loop where the process
        may have none. Whoever doesn't wait for it any more cancels it: then it isn't done unless it has begun."""
        try:
            return self._threads.run(_log_directory(log), work)
        except OSError:
            done = asyncio.get_running_loop().create_future()
            try:
                done.set_result(work())
            except Exception as error:  # whoever waits for the future decides what it means
                done.set_exception(error)
            return done

    def _was_read(
        self,
        directory: str,
        place: _Place,
        size: int,
        loop: asyncio.AbstractEventLoop,
        reading: asyncio.Future[None],
    ) -> None:
        now = loop.time()
        self._ended = {key: ended for key, ended in self._ended.items() if now - ended.at < REMEMBERED_SECONDS}
        error = reading.exception()
        # Any other error is met again by who asks again, unless it came of a change that the event loop made meanwhile.
        told = error if isinstance(error, OSError) and not _passing(error) else None
        self._ended[place] = _Ended(now, size, told)
        self._under_way[directory].pop(place).set_result(None)
        for number, queued in self._queued[directory].items():
            del self._queued[directory][number]
            queued.set_result(None)
            break


def _log_directory(log: ReadLog) -> str:
    return log.directory.rpartition("/")[0]


def _looked_up(max_bytes: int) -> int:
    """How much of a read of `max_bytes` is prepared."""
    return max(min(max_bytes, READ_AHEAD_BYTES), 0)


def _passing(error: OSError) -> bool:
    """Whether an error says nothing of the disk: a segment was removed meanwhile, or holds what makes no sense."""
    return isinstance(error, FileNotFoundError | DamagedSegment)


def _look_up(segments: list[Segment], offset: int, limit_offset: int, size: int) -> None:
    for segment in segments:
        segment.read_ahead(offset, limit_offset, size)
        if segment.position_of(offset) is not None:
            return
