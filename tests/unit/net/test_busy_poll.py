"""When the event loop looks for the next request before it sleeps, and when it sleeps immediately."""

from __future__ import annotations

from collections.abc import Callable

from ottla.net.busy_poll import PASSED_MAX, BusyPoll

WINDOW = 60e-6
ROUND = 10e-6  # the time of a round of the loop without a request
REQUEST = 20e-6  # the time to serve one request


class Loop:
    """A stand-in for an event loop, with a clock of its own. A real loop sleeps if no callback is due."""

    def __init__(self, window: float = WINDOW) -> None:
        self.now = 0.0
        self.due: list[Callable[[], None]] = []
        self.poll = BusyPoll(self.due.append, window, lambda: self.now)

    def round(self, requests: int = 0) -> None:
        """Serves `requests` requests, and then calls the callbacks that were due at the beginning of the round."""
        due, self.due[:] = list(self.due), []
        self.now += ROUND
        for _ in range(requests):
            self.now += REQUEST
            self.poll.answered()
        for callback in due:
            callback()

    def idle_for(self, pause: float) -> bool:
        """Lets this time pass without a request. Returns whether the loop is awake at the end."""
        end = self.now + pause
        while self.due and self.now < end:
            self.round()
        self.now = max(self.now, end)
        return bool(self.due)


def ask(loop: Loop, times: int, pause: float, at_once: int = 1) -> list[bool]:
    """Clients send `at_once` requests, `times` times, with pauses. Returns for each pause whether the loop was awake at
    its end."""
    awake = []
    for _ in range(times):
        loop.round(at_once)
        awake.append(loop.idle_for(pause))
    return awake


def test_a_client_that_asks_again_at_once_finds_it_awake() -> None:
    awake = ask(Loop(), 1000, WINDOW / 2)
    assert not awake[0], "a single answer foretells no next request"
    assert all(awake[1:])


def test_it_looks_for_the_window_and_then_sleeps() -> None:
    loop = Loop()
    loop.round(2)
    began = loop.now
    while loop.due:
        loop.round()
    assert WINDOW <= loop.now - began <= WINDOW + 3 * ROUND


def test_a_long_round_of_others_takes_nothing_from_the_window() -> None:
    loop = Loop()
    loop.round(2)
    loop.now += 100 * WINDOW
    loop.round()
    assert loop.due


def test_long_pauses_are_not_waited_for_at_all() -> None:
    loop = Loop()
    assert not any(ask(loop, 10_000, 0.001))
    assert loop.poll.looked_seconds == 0


def test_of_pauses_just_too_long_hardly_any_is_waited_for() -> None:
    loop = Loop()
    ask(loop, 100_000, 2 * WINDOW)
    assert loop.poll.looked_seconds < 100_000 * WINDOW / (PASSED_MAX / 2)


def test_requests_that_come_together_are_no_reason_to_wait_for_more() -> None:
    for at_once in (2, 3, 10, 50):
        loop = Loop()
        ask(loop, 20_000, 0.001, at_once)
        assert loop.poll.looked_seconds < 20_000 * at_once * WINDOW / (PASSED_MAX / 2)


def test_after_long_pauses_it_learns_at_once() -> None:
    loop = Loop()
    ask(loop, 10_000, 0.001)
    assert all(ask(loop, 100, WINDOW / 2)[1:])


def test_after_many_looks_in_vain_it_learns_again() -> None:
    loop = Loop()
    ask(loop, 10_000, 2 * WINDOW)
    assert all(ask(loop, 5_000, WINDOW / 2)[-1000:])


def test_a_window_of_nothing_never_looks() -> None:
    loop = Loop(0.0)
    loop.round(10)
    assert not loop.due
