"""The waits for records to be committed, in the order of the records' offsets."""

from __future__ import annotations

import asyncio
from collections import deque

from ottla.protocol.errors import KafkaError


class Commits:
    """The waits of one partition's leader. No wait ends before the waits for lower offsets."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def wait_for(self, offset: int, high_watermark: int) -> asyncio.Future[None]:
        """A future that is done when the record at `offset` is committed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if offset < high_watermark:
            future.set_result(None)
        else:
            at = len(self._waiting)
            while at and self._waiting[at - 1][0] > offset:  # a repeated batch waits for its first copy's offset
                at -= 1
            self._waiting.insert(at, (offset, future))
        return future

    def reached(self, high_watermark: int) -> None:
        """Ends the waits for offsets below `high_watermark`, which are committed."""
        waiting = self._waiting
        while waiting and waiting[0][0] < high_watermark:
            _, future = waiting.popleft()
            if not future.done():
                future.set_result(None)

    def fail(self, error: KafkaError) -> None:
        """Fails all waits with `error`: this broker won't learn whether their records are committed."""
        waiting, self._waiting = self._waiting, deque()
        for _, future in waiting:
            if not future.done():
                _set(future, error)


def failed(error: KafkaError) -> asyncio.Future[None]:
    """A future that has failed with `error` already."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    _set(future, error)
    return future


def _set(future: asyncio.Future[None], error: KafkaError) -> None:
    future.set_exception(error)
    future.exception()  # marks the error as retrieved: the waiting request may be gone, and asyncio would log it
