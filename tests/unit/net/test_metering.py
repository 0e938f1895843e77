"""The stopwatch of a connection."""

from __future__ import annotations

from ottla.net.metering import Meter


class Clock:
    def __init__(self) -> None:
        self.now = 100

    def __call__(self) -> int:
        return self.now


def test_time_runs_in_the_outermost_context() -> None:
    clock = Clock()
    meter = Meter(clock)
    clock.now += 5
    with meter:
        clock.now += 10
        with meter:
            clock.now += 20
        clock.now += 30
    clock.now += 40
    assert meter.take_ns() == 60
    assert meter.take_ns() == 0


def test_time_that_is_taken_while_it_runs_goes_on_from_0() -> None:
    clock = Clock()
    meter = Meter(clock)
    with meter:
        clock.now += 7
        assert meter.take_ns() == 7
        clock.now += 9
    assert meter.take_ns() == 9
