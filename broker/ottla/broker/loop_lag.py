"""How long the event loop keeps others waiting, and how much of the time it is idle.

A timer that should fire every `PERIOD_SECONDS` tells by how much it is late: that long, something held the loop. Idle
is the part of the time in which the loop's thread used no CPU, or only looked whether there is something to do, over
the last `WINDOW` periods.
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
    """Watches the running loop from `start` to `stop`. `looked` tells for how many seconds it only looked around."""

    def __init__(self, looked: Callable[[], float] = lambda: 0.0) -> None:
        self._looked = looked
        self.buckets = [0] * LAG_BUCKETS
        self.lag_microseconds = 0
        self.longest_seconds = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._seen: deque[tuple[float, float]] = deque(maxlen=WINDOW)  # (wall, busy CPU seconds of the loop's thread)

    def start(self) -> None:
        """Begins to watch; to be called on the loop."""
        loop = asyncio.get_running_loop()
        self._seen.append((time.perf_counter(), self._busy_seconds()))
        self._due = loop.time() + PERIOD_SECONDS
        self._timer = loop.call_at(self._due, self._sample, loop)

    def stop(self) -> None:
        """Ends it."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def idle_ratio(self) -> float:
        """1 for a loop that only waits, 0 for one that never does; over the last minute."""
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
                logger.warning("the event loop was held for %.1f s, longer than ever before", lag)
        self._seen.append((time.perf_counter(), self._busy_seconds()))
        # From now, not from when it was due: what held the loop once is one lag, not many.
        self._due = now + PERIOD_SECONDS
        self._timer = loop.call_at(self._due, self._sample, loop)
