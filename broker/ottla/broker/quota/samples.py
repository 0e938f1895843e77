"""Values summed up in samples of time, and rates over the last samples. Pure.

A sample begins with the first value after the sample before it was one window old, so that idle time makes no samples.
A sample counts until its last value is as old as all windows together. A rate divides by the time since the oldest
sample began, and at least by all windows but one: so a client's first burst isn't taken for its rate.

Source: Kafka's SampledStat, WindowedSum, Avg and Rate. Kafka keeps the samples in a ring whose expired slots are reset.
The samples that count are the same, and a test compares both.
"""

from __future__ import annotations

from collections import deque

from .windows import Windows

_START, _LAST, _SUM, _VALUES = range(4)


class Samples:
    """The samples of one client. Times are in ms, by a clock that never goes back."""

    __slots__ = ("_samples", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: deque[list[float]] = deque()  # start, time of the last value, sum, number of values

    def record(self, value: float, now_ms: int) -> None:
        """Adds a value. A negative value takes back a value that was recorded at the same time."""
        samples = self._samples
        if samples and now_ms - samples[-1][_START] < self._windows.size_ms:
            sample = samples[-1]
            sample[_LAST] = now_ms
            sample[_SUM] += value
            sample[_VALUES] += 1
        else:
            samples.append([now_ms, now_ms, value, 1])
            self._expire(now_ms)

    def total(self, now_ms: int) -> float:
        """The sum of the values that count."""
        self._expire(now_ms)
        return sum(sample[_SUM] for sample in self._samples)

    def average(self, now_ms: int) -> float:
        """The mean of the values that count; 0 if there are none."""
        total = self.total(now_ms)
        values = sum(sample[_VALUES] for sample in self._samples)
        return total / values if values else 0.0

    def elapsed_ms(self, now_ms: int) -> int:
        """The time by which a rate divides, in ms."""
        self._expire(now_ms)
        number, size_ms = self._windows
        elapsed = int(now_ms - self._samples[0][_START]) if self._samples else 0
        missing = number - 1 - elapsed // size_ms
        if missing > 0:
            elapsed += missing * size_ms
        return max(elapsed, 1)

    def rate(self, now_ms: int) -> float:
        """The sum of the values that count, per second."""
        return self.total(now_ms) * 1000 / self.elapsed_ms(now_ms)

    def _expire(self, now_ms: int) -> None:
        samples, before = self._samples, now_ms - self._windows.span_ms
        while samples and samples[0][_LAST] <= before:
            samples.popleft()


def throttle_ms(rate: float, bound: float, elapsed_ms: int) -> int:
    """The ms that a client has to pause until its rate, measured over `elapsed_ms`, is the bound again; 0 if the rate
    isn't above the bound. Source: Kafka's QuotaUtils.throttleTime."""
    return int((rate - bound) / bound * elapsed_ms + 0.5) if rate > bound else 0
