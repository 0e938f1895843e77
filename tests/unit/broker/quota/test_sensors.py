"""The number of measurements has a bound, and those that nobody uses expire."""

from __future__ import annotations

from ottla.broker.quota.sensors import EXPIRY_MS, Sensors


def sensors(most: int = 3) -> Sensors[str, list[int]]:
    return Sensors(list, most)


def test_a_key_keeps_its_measurement() -> None:
    some = sensors()
    assert some.of("a", 0) is some.of("a", 5)
    assert some.known("a") is some.of("a", 5)
    assert some.known("b") is None


def test_the_one_used_longest_ago_makes_way() -> None:
    some = sensors()
    first = some.of("a", 0)
    for time, key in enumerate("bcad"):
        some.of(key, time)
    assert [key for key, _ in some.latest()] == ["d", "a", "c"]
    assert some.known("a") is first
    assert len(some) == 3


def test_a_measurement_expires_after_an_hour_without_use() -> None:
    some = sensors()
    some.of("a", 0)
    some.of("b", 10)
    some.of("a", 20)
    some.expire(EXPIRY_MS + 9)
    assert len(some) == 2
    some.expire(EXPIRY_MS + 10)
    assert [key for key, _ in some.latest()] == ["a"]
    some.of("c", EXPIRY_MS + 20)
    assert [key for key, _ in some.latest()] == ["c"], "a new measurement drops the expired ones"
