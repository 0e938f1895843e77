"""The rate of an event over the last minute."""

from __future__ import annotations

import pytest

from ottla.broker.event_rate import EventRate


def test_a_steady_event_has_its_rate_at_any_time_of_the_minute() -> None:
    rate = EventRate(1000.0)
    for tenth in range(3000):
        rate.count(1000.0 + tenth / 10)
    for later in range(0, 60, 7):
        for tenth in range(70):
            rate.count(1300.0 + later + tenth / 10)
        assert rate.per_second(1300.0 + later + 7) == pytest.approx(10, rel=0.02)


def test_the_rate_falls_to_zero_within_two_minutes_of_silence() -> None:
    rate = EventRate(0.0)
    for second in range(60):
        rate.count(float(second))
    rates = [rate.per_second(60.0 + silent) for silent in range(0, 130, 10)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == pytest.approx(1)
    assert rates[-1] == 0


def test_an_event_long_ago_doesnt_count_after_an_idle_hour() -> None:
    rate = EventRate(0.0)
    rate.count(1.0)
    rate.count(3601.0)
    assert rate.per_second(3601.0) == pytest.approx(1 / 60)
