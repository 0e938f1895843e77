"""Bounds the work of one turn of the event loop, so that many connections at once don't hold the loop.

When a broker starts anew, or a network comes back, thousands of clients connect, and send their first requests, at the
same time; when a client's process dies, thousands of its connections end at once. The event loop calls every socket
that is ready before it looks at its timers again: a thousand of them would hold it for a twentieth of a second.

`Turns` is a queue of steps. In each turn of the event loop, steps are taken for `TURN_SECONDS`; then the other
connections are served, before the next turn. `Reads` decides which connections are read at once, and which wait in such
a queue because this turn's time is used up. The event loop doesn't say when a turn begins, so reads that follow one
another closely count as one turn: after `TURN_SECONDS` of them, one read goes through the queue, which begins a turn. A
read after a pause of `PAUSE_SECONDS` never waits, because the loop has looked at its timers since the last one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import perf_counter

logger = logging.getLogger(__name__)

TURN_SECONDS = 0.003
PAUSE_SECONDS = 0.001

Clock = Callable[[], float]


class Turns:
    """Steps that wait, in the order in which they came. `until` is the time at which the present turn is used up."""

    __slots__ = ("_seconds", "_waiting", "clock", "until")

    def __init__(self, clock: Clock = perf_counter, seconds: float = TURN_SECONDS) -> None:
        self.clock = clock
        self.until = 0.0
        self._seconds = seconds
        self._waiting: deque[Callable[[], None]] = deque()

    def wait(self, step: Callable[[], None]) -> None:
        """Calls `step` when its turn has come."""
        self._waiting.append(step)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        waiting = self._waiting
        self.until = until = self.clock() + self._seconds
        while waiting:
            step = waiting[0]
            try:
                step()
            except Exception:  # a bug that one connection meets mustn't end the turns of others
                logger.exception("a step of a connection failed")
            waiting.popleft()
            if self.clock() >= until:
                break
        if waiting:
            asyncio.get_running_loop().call_soon(self._turn)


class Reads(Turns):
    """The connections of one server that have something to read. A connection compares `clock()` with `until`, sets
    `last` to the time of its read, and asks `used_up` if the time has passed."""

    __slots__ = ("last",)

    def __init__(self, clock: Clock = perf_counter, seconds: float = TURN_SECONDS) -> None:
        super().__init__(clock, seconds)
        self.last = 0.0

    def used_up(self, now: float) -> bool:
        """Whether a connection that is readable at the time `now`, which isn't before `until`, has to wait. If it
        hasn't, a turn begins."""
        if self._waiting or now - self.last < PAUSE_SECONDS:
            return True
        self.until = now + self._seconds
        return False
