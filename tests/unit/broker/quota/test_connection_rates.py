"""How fast clients may connect: in all, through a listener, from an address."""

from __future__ import annotations

import pytest

from ottla.broker.quota.connection_rates import UNLIMITED, ConnectionRates, is_address, normal_address
from ottla.broker.quota.windows import Windows

KAFKA = Windows(11, 1000)


def rates(in_all: int = UNLIMITED, **listeners: int) -> ConnectionRates:
    some = ConnectionRates(KAFKA)
    some.set_limits(in_all, listeners)
    return some


def delays(some: ConnectionRates, listener: str, count: int, *, protected: bool = False) -> list[int]:
    return [some.accepted(listener, protected, 0) for _ in range(count)]


def test_without_a_limit_nobody_waits() -> None:
    assert not any(delays(rates(), "A", 1000))


def test_the_listener_that_is_too_fast_waits_for_one_window_at_most() -> None:
    some = rates(A=1, B=100)
    assert not any(delays(some, "A", 10))
    assert some.accepted("A", False, 0) == 1000
    assert some.accepted("A", False, 0) == 1000
    assert not any(delays(some, "B", 1000))
    assert some.accepted("B", False, 0) == 10
    assert some.accepted("A", False, 21_000) == 0


def test_listeners_share_the_brokers_limit_but_for_the_brokers_own_listener() -> None:
    some = rates(1)
    assert not any(delays(some, "A", 5))
    assert not any(delays(some, "B", 5))
    assert some.accepted("A", False, 0) == 1000
    assert not any(delays(some, "BROKERS", 50, protected=True))
    some.set_limits(1, {"BROKERS": 5})
    assert some.accepted("BROKERS", True, 0) == 0, "connections from before the limit don't count"


def test_a_limit_of_0_is_taken_for_1() -> None:
    assert rates(0).accepted("A", False, 0) == 0


def test_an_address_above_its_limit_is_held_and_doesnt_count() -> None:
    some = rates(100, A=100)
    some.set_host_limits({"10.0.0.1": 1}, 2)
    assert not any(some.hold_ms("A", False, "10.0.0.1", 0) for _ in range(10))
    delays(some, "A", 1000)
    assert some.hold_ms("A", False, "10.0.0.1", 0) == 1000
    assert some.hold_ms("A", False, "::ffff:10.0.0.1", 0) == 1000, "it is the same address"
    assert some.accepted("A", False, 0) == 0, "the two that are held don't count for the listener"
    assert not any(some.hold_ms("A", False, "10.0.0.2", 0) for _ in range(20))
    assert some.hold_ms("A", False, "10.0.0.2", 0) == 500
    assert some.hold_ms("A", False, "10.0.0.1", 12_000) == 0


def test_an_address_without_a_limit_isnt_measured() -> None:
    some = rates()
    some.set_host_limits({"10.0.0.1": 1}, None)
    assert not any(some.hold_ms("A", False, "10.0.0.2", 0) for _ in range(1000))


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("localhost", "localhost"),
    ],
)
def test_addresses_are_compared_in_one_form(text: str, normal: str) -> None:
    assert normal_address(text) == normal
    assert is_address(text) is (text != "localhost")
