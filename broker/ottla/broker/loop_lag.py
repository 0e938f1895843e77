"""Measures how late the event loop runs work that is due, and how much of the time the loop is idle.

A timer is due every `PERIOD_SECONDS`: if the timer fires late, some callback blocked the loop for that long. The loop
is idle while its thread uses no CPU, or only polls for events; the idle ratio covers the last `WINDOW` periods.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable

logger = logging.getLogger(__name__)

PERIOD_SECONDS = 0.1
WINDOW = 600
LAG_BUCKETS = 32  # bucket i counts lags below 2**i µs
WARN_SECONDS = 1.0


class LoopLag:
    """Measures the running event loop from `start` to `stop`. `looked` returns how many CPU seconds the loop has spent
    on polling only."""

    def __init__(self, looked: Callable[[], float] = lambda: 0.0) -> None:
        self._looked = looked
        self.buckets = [0] * LAG_BUCKETS
        self.lag_microseconds = 0
        self.longest_seconds = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._seen: deque[tuple[float, float]] = deque(maxlen=WINDOW)  # (wall, busy CPU seconds of the loop's thread)

    def start(self) -> None:
        """Begins to measure. Must be called on the loop."""
        loop = asyncio.get_running_loop()
        self._seen.append((time.perf_counter(), self._busy_seconds()))
        self._due = loop.time() + PERIOD_SECONDS
        self._timer = loop.call_at(self._due, self._sample, loop)

    def stop(self) -> None:
        """Ends the measuring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def idle_ratio(self) -> float:
        """The part of the last minute in which the loop was idle, from 0 to 1."""
        wall, cpu = self._seen[0] if self._seen else (0.0, 0.0)
        passed = time.perf_counter() - wall
        if not self._seen or passed <= 0:
            return 1.0
        return min(max(1.0 - (self._busy_seconds() - cpu) / passed, 0.0), 1.0)

    def _busy_seconds(self) -> float:
        return time.thread_time() - self._looked()

    def _sample(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        lag = max(now - self._due, 0.0)
        microseconds = int(lag * 1e6)
        self.buckets[min(microseconds.bit_length(), LAG_BUCKETS - 1)] += 1
        self.lag_microseconds += microseconds
        if lag > self.longest_seconds:
            self.longest_seconds = lag
            if lag > WARN_SECONDS:
                logger.warning("the event loop was blocked for %.1f s, longer than ever since the start", lag)
        self._seen.append((time.perf_counter(), self._busy_seconds()))
        # The next time is counted from now, not from the due time, so that one blocked loop counts as one lag, not as
        # many.
        self._due = now + PERIOD_SECONDS
        self._timer = loop.call_at(self._due, self._sample, loop)
