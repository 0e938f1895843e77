"""Finds an offset's place in a log for a fetch. Where the log's part that has the place isn't in memory, a thread finds
it.

The event loop looks an offset up in the log's indexes and in its batches' headers, as far as they are in memory. Where
they aren't in memory, a thread of the log directory looks the offset up and reads the bytes that follow it; until then
a fetch finds nothing to read in the partition. A second fetch for the same offset waits for the same look-up. If the
client that asked for a look-up disconnects, the look-up goes on, because another client may ask for the same offset.
Therefore the look-ups of a log directory have a limit, UNDER_WAY_MAX.

The rule that this module protects: each fetch whose offset a thread has looked up gets its answer. On a file system
without a page cache, the bytes that a thread has read aren't in memory when the fetch asks again. So a fetch that asks
again within REMEMBERED_SECONDS may block the event loop for the disk, which has just answered.

`ottla.net.disk_threads` decides how many threads there are, and `ottla.net.outgoing` sends the bytes.
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
UNDER_WAY_MAX = 1000  # look-ups in one log directory; a fetch that needs a further one asks again when its turn comes

T = TypeVar("T")


class ReadLog(Protocol):
    """The part of a log's interface that cold reads use."""

    @property
    def directory(self) -> str: ...
    def segments_read(self, offset: int) -> list[Segment]: ...


_Place = tuple[ReadLog, int]


class _Ended(NamedTuple):
    """A look-up that has ended: the time of its end, the size of the read in bytes, and the disk's error or None."""

    at: float
    size: int
    error: OSError | None


class ColdReads:
    """One broker's reads of data that isn't in the page cache. Threads read, and the event loop alone uses this
    object."""

    def __init__(self, threads: DiskThreads) -> None:
        self._threads = threads
        self._under_way: dict[str, dict[_Place, asyncio.Future[None]]] = defaultdict(dict)  # by log directory
        # By log directory: the waits of fetches that came while UNDER_WAY_MAX look-ups were under way, in the order of
        # the fetches. A future that no fetch waits for any more is dropped.
        self._queued: dict[str, WeakValueDictionary[int, asyncio.Future[None]]] = defaultdict(WeakValueDictionary)
        self._numbers = count()
        self._ended: dict[_Place, _Ended] = {}

    @property
    def under_way(self) -> int:
        """How many look-ups haven't ended."""
        return sum(map(len, self._under_way.values()))

    def just_read(self, partition: Partition, offset: int, max_bytes: int) -> bool:
        """Whether a look-up for a read of `max_bytes` from `offset` ended within the last REMEMBERED_SECONDS, so that
        the read may wait for the disk. Raises KafkaError KAFKA_STORAGE_ERROR where the disk failed."""
        if not self._ended:
            return False
        ended = self._ended.pop((partition.log, offset), None)
        if ended is None or asyncio.get_running_loop().time() - ended.at >= REMEMBERED_SECONDS:
            return False
        if ended.error is not None:
            raise partition.failed(ended.error) from ended.error
        return ended.size >= _looked_up(max_bytes)

    def read_ahead(self, log: ReadLog, offset: int, limit_offset: int, max_bytes: int) -> asyncio.Future[None]:
        """Prepares a read of `max_bytes` from `offset` up to `limit_offset`. The future is done when the fetch can ask
        again. No caller may cancel the future, because other fetches may wait for it. Raises OSError where the system
        gives the process no thread."""
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
        """Does `work`, which reads `log`, in a thread of the log directory, or on the event loop where the system gives
        the process no thread. A caller that no longer waits cancels the future: then `work` isn't done unless it has
        begun."""
        try:
            return self._threads.run(_log_directory(log), work)
        except OSError:
            done = asyncio.get_running_loop().create_future()
            try:
                done.set_result(work())
            except Exception as error:  # the future's awaiter handles it
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
        # Any other error is dropped: a fetch that asks again gets it again, unless a change of the log caused it.
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
    """How many bytes a look-up for a read of `max_bytes` reads ahead."""
    return max(min(max_bytes, READ_AHEAD_BYTES), 0)


def _passing(error: OSError) -> bool:
    """Whether an error comes from a segment that was removed meanwhile or is damaged, and not from a disk that
    fails."""
    return isinstance(error, FileNotFoundError | DamagedSegment)


def _look_up(segments: list[Segment], offset: int, limit_offset: int, size: int) -> None:
    for at, segment in enumerate(segments):
        segment.read_ahead(offset, limit_offset, size)
        if segment.position_of(offset) is not None:
            end_offset = segments[at + 1].base_offset if at + 1 < len(segments) else limit_offset
            _load_aborted(segments, offset, end_offset)
            return


def _load_aborted(segments: list[Segment], offset: int, end_offset: int) -> None:
    """Reads the transaction indexes that a reader of the records from `offset` up to `end_offset` needs."""
    for segment in segments:
        if (aborted := segment.aborted) is not None and aborted.find(offset, end_offset, []):
            return
