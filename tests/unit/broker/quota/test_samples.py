"""Kafka's sampled rates, against a table of Apache Kafka's numbers and against a twin that keeps every value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.quota.samples import Samples, throttle_ms
from ottla.broker.quota.windows import Windows

KAFKA = Windows(11, 1000)


class Ring:
    """Kafka's SampledStat and Rate as they are written: a ring of samples, whose expired ones are reset."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self.ring: list[dict[str, float]] = []
        self.at = 0

    @staticmethod
    def _fresh(now: int) -> dict[str, float]:
        return {"start": now, "last": now, "value": 0.0, "events": 0}

    def _current(self, now: int) -> dict[str, float]:
        if not self.ring:
            self.ring.append(self._fresh(now))
        return self.ring[self.at]

    def record(self, value: float, now: int) -> None:
        sample = self._current(now)
        if now - sample["start"] >= self.windows.size_ms:
            self.at = (self.at + 1) % (self.windows.number + 1)
            if self.at >= len(self.ring):
                self.ring.append(self._fresh(now))
            else:
                self.ring[self.at] = self._fresh(now)
            sample = self.ring[self.at]
        sample["value"] += value
        sample["events"] += 1
        sample["last"] = now

    def measure(self, now: int) -> tuple[float, int]:
        for place, sample in enumerate(self.ring):
            if now - sample["last"] >= self.windows.number * self.windows.size_ms:
                self.ring[place] = self._fresh(now)
        if not self.ring:
            self.ring.append(self._fresh(now))
        elapsed = int(now - min(sample["start"] for sample in self.ring))
        full = elapsed // self.windows.size_ms
        if full < self.windows.number - 1:
            elapsed += (self.windows.number - 1 - full) * self.windows.size_ms
        return sum(sample["value"] for sample in self.ring), max(elapsed, 1)


def naive(values: list[tuple[int, int]], windows: Windows, now: int) -> tuple[float, int]:
    """(sum, elapsed ms) of values (time, value), from the definition: no sample is ever dropped."""
    samples: list[list[tuple[int, int]]] = []
    for time, value in values:
        if samples and time - samples[-1][0][0] < windows.size_ms:
            samples[-1].append((time, value))
        else:
            samples.append([(time, value)])
    live = [sample for sample in samples if now - sample[-1][0] < windows.span_ms]
    elapsed = now - live[0][0][0] if live else 0
    whole = elapsed // windows.size_ms
    elapsed += max(windows.number - 1 - whole, 0) * windows.size_ms
    return sum(value for sample in live for _, value in sample), max(elapsed, 1)


STEPS = st.lists(st.tuples(st.integers(0, 5000), st.integers(-50, 1000)), min_size=1, max_size=60)
SOME_WINDOWS = st.builds(Windows, st.integers(1, 6), st.integers(1, 1500))


@given(steps=STEPS, windows=SOME_WINDOWS, later=st.integers(0, 9000))
def test_samples_are_those_of_the_definition(steps: list[tuple[int, int]], windows: Windows, later: int) -> None:
    samples, values, now = Samples(windows), [], 0
    for passed, value in steps:
        now += passed
        samples.record(value, now)
        values.append((now, value))
        assert (samples.total(now), samples.elapsed_ms(now)) == naive(values, windows, now)
    now += later
    assert (samples.total(now), samples.elapsed_ms(now)) == naive(values, windows, now)


@given(steps=STEPS, windows=SOME_WINDOWS)
def test_samples_are_those_of_kafkas_ring(steps: list[tuple[int, int]], windows: Windows) -> None:
    samples, ring, now = Samples(windows), Ring(windows), 0
    for passed, value in steps:
        now += passed
        samples.record(value, now)
        ring.record(value, now)
        assert (samples.total(now), samples.elapsed_ms(now)) == ring.measure(now)


@given(steps=STEPS, windows=SOME_WINDOWS)
def test_the_number_of_samples_is_bounded(steps: list[tuple[int, int]], windows: Windows) -> None:
    samples, now = Samples(windows), 0
    for passed, value in steps:
        now += passed
        samples.record(value, now)
        assert len(samples._samples) <= windows.number + 1


@pytest.mark.parametrize(
    ("sent", "throttled"),
    [
        ([1_000_000], 0),  # 100 kB/s: the first megabyte is free
        ([1_000_000, 50_000], 500),  # and 50 kB more cost half a second
        ([1_000_000, 50_000, 50_000], 1000),
        ([1_050_000], 500),
        ([2_000_000], 10_000),
    ],
)
def test_the_throttle_time_of_a_producer_at_100_kilobytes_per_second(sent: list[int], throttled: int) -> None:
    samples = Samples(KAFKA)
    for size in sent:
        samples.record(size, 1000)
    assert throttle_ms(samples.rate(1000), 100_000, samples.elapsed_ms(1000)) == throttled


def test_a_rate_divides_by_ten_windows_at_least_and_by_the_time_that_has_passed() -> None:
    samples = Samples(KAFKA)
    samples.record(1000, 0)
    assert samples.rate(0) == pytest.approx(100)
    assert samples.rate(500) == pytest.approx(1000 / 10.5)
    samples.record(1000, 10_700)
    assert samples.rate(10_700) == pytest.approx(2000 / 10.7)
    assert samples.rate(11_000) == pytest.approx(1000 / 10.3), "the first sample's last value is eleven windows old"
    assert samples.rate(30_000) == 0


def test_what_is_taken_back_leaves_no_trace() -> None:
    samples = Samples(KAFKA)
    samples.record(500, 0)
    samples.record(7000, 300)
    samples.record(-7000, 300)
    assert samples.total(300) == 500


def test_the_average_is_over_the_values_that_count() -> None:
    samples = Samples(Windows(2, 30_000))
    assert samples.average(0) == 0
    samples.record(100, 0)
    samples.record(300, 10_000)
    assert samples.average(10_000) == 200
    samples.record(500, 65_000)
    assert samples.average(70_000) == 500, "the first sample ended a minute ago"
