"""When the loop looks for the next request before it sleeps, and when it doesn't."""

from __future__ import annotations

from collections.abc import Callable

from ottla.net.busy_poll import PASSED_MAX, BusyPoll

WINDOW = 60e-6
ROUND = 10e-6  # of the loop, when it finds nothing


class Loop:
    """Rounds of an event loop with a clock of its own; it would sleep when nothing is due."""

    def __init__(self, window: float = WINDOW) -> None:
        self.now = 0.0
        self.due: list[Callable[[], None]] = []
        self.poll = BusyPoll(self.due.append, window, lambda: self.now)

    def round(self) -> None:
        self.now += ROUND
        due, self.due[:] = list(self.due), []
        for callback in due:
            callback()

    def until_asleep(self) -> float:
        """For how long it looked around."""
        began = self.now
        while self.due:
            self.round()
        return self.now - began

    def answer_after(self, pause: float) -> bool:
        """A client that asks again after a pause; whether the loop was awake by then."""
        self.poll.answered()
        due = self.now + pause
        while self.due and self.now < due:
            self.round()
        awake = bool(self.due)
        self.now = max(self.now, due)
        return awake


def test_an_answer_keeps_the_loop_awake_for_the_window() -> None:
    loop = Loop()
    loop.poll.answered()
    assert WINDOW <= loop.until_asleep() < WINDOW + 2 * ROUND


def test_a_client_that_asks_again_at_once_always_finds_it_awake() -> None:
    loop = Loop()
    assert all(loop.answer_after(WINDOW / 2) for _ in range(1000))


def test_answers_meanwhile_take_no_further_look() -> None:
    loop = Loop()
    for _ in range(50):
        loop.poll.answered()
    assert len(loop.due) == 1


def test_a_client_with_longer_pauses_is_hardly_ever_waited_for() -> None:
    loop = Loop()
    looked = 0.0
    for _ in range(100_000):
        loop.poll.answered()
        looked += loop.until_asleep()
        loop.now += 0.001
    assert looked < 100_000 * WINDOW / (PASSED_MAX / 2)


def test_after_long_pauses_it_learns_anew() -> None:
    loop = Loop()
    for _ in range(5000):
        loop.answer_after(0.001)
    awake = [loop.answer_after(WINDOW / 2) for _ in range(5000)]
    assert not awake[0]
    assert all(awake[-1000:])


def test_a_window_of_nothing_never_looks() -> None:
    loop = Loop(0.0)
    loop.poll.answered()
    assert not loop.due
