"""The rate of an event over the last minute, from two counters. Pure: times are inputs."""

from __future__ import annotations

_PERIOD_SECONDS = 60.0


class EventRate:
    """Counts an event in the present minute and in the one before. The rate takes the share of the earlier count that
    falls into the last sixty seconds. Times are seconds of a clock that doesn't go back."""

    __slots__ = ("_before", "_began", "_count")

    def __init__(self, now: float) -> None:
        self._began = now
        self._count = self._before = 0

    def count(self, now: float) -> None:
        """Counts one occurrence of the event."""
        self._elapsed(now)
        self._count += 1

    def per_second(self, now: float) -> float:
        """How often a second the event happened, over the last sixty seconds."""
        elapsed = self._elapsed(now)
        return (self._count + self._before * (1 - elapsed / _PERIOD_SECONDS)) / _PERIOD_SECONDS

    def _elapsed(self, now: float) -> float:
        elapsed = now - self._began
        if elapsed >= _PERIOD_SECONDS:
            self._before = self._count if elapsed < 2 * _PERIOD_SECONDS else 0
            self._count = 0
            self._began += elapsed - elapsed % _PERIOD_SECONDS
            elapsed %= _PERIOD_SECONDS
        return elapsed
