"""One timer for the deadlines of many objects: a heap, and a single call scheduled on the loop.

An object is woken at the earliest time that was asked for; to ask for a later time than the pending one changes
nothing. So the renewal of a session costs one comparison. In return, some wake-ups find that no session has ended; the
object then asks for the next time.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Hashable
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

BURST = 64  # objects that are woken in one turn of the event loop


class Wakeups(Generic[T]):
    """Calls `wake(thing)` at or after the time, in ms by the clock `now_ms`, that was asked for."""

    def __init__(self, now_ms: Callable[[], int], wake: Callable[[T], None]) -> None:
        self._now_ms = now_ms
        self._wake = wake
        self._heap: list[tuple[int, int, T]] = []
        self._pending: dict[T, int] = {}
        self._sequence = count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def __len__(self) -> int:
        return len(self._pending)

    def ask(self, thing: T, at_ms: int) -> None:
        """Asks for a wake-up of `thing` at `at_ms`. Does nothing if an earlier wake-up of `thing` is pending."""
        pending = self._pending.get(thing)
        if pending is not None and pending <= at_ms:
            return
        self._pending[thing] = at_ms
        heapq.heappush(self._heap, (at_ms, next(self._sequence), thing))
        if self._timer is None or at_ms < self._timer_ms:
            self._schedule()

    def forget(self, thing: T) -> None:
        """Drops the pending wake-up of `thing`, if any."""
        self._pending.pop(thing, None)

    def stop(self) -> None:
        """Drops all pending wake-ups."""
        self._heap.clear()
        self._pending.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        heap, pending = self._heap, self._pending
        while heap and pending.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)  # this wake-up was replaced by an earlier one, or dropped
        if heap:
            self._timer_ms = heap[0][0]
            delay_ms = max(self._timer_ms - self._now_ms(), 0)
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now_ms = self._now_ms()
        heap, pending = self._heap, self._pending
        woken = 0
        try:
            while heap and heap[0][0] <= now_ms and woken < BURST:
                at_ms, _, thing = heapq.heappop(heap)
                if pending.get(thing) != at_ms:
                    continue
                del pending[thing]
                woken += 1
                self._wake(thing)
        finally:  # also after an error: the other objects still need the timer
            self._schedule()
