"""One timer wakes many groups (here: letters). Each is woken once, at the earliest time that was asked for."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.coordination.wakeups import BURST, Wakeups
from tests.unit.broker.test_group_service import virtually


async def _woken(asks: list[tuple[str, int]], forgotten: frozenset[str] = frozenset()) -> dict[str, int]:
    """The time of each letter's wake-up, in ms after the start. Fails if a letter is woken twice."""
    loop = asyncio.get_running_loop()
    start = int(loop.time() * 1000)
    woken: dict[str, int] = {}

    def wake(thing: str) -> None:
        assert thing not in woken
        woken[thing] = int(loop.time() * 1000) - start

    wakeups = Wakeups(lambda: int(loop.time() * 1000), wake)
    for thing, at_ms in asks:
        wakeups.ask(thing, start + at_ms)
    for thing in forgotten:
        wakeups.forget(thing)
    await asyncio.sleep(10)
    assert len(wakeups) == 0
    wakeups.stop()
    return woken


asks = st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 5_000)), max_size=20)


@given(asks, st.frozensets(st.sampled_from("abcde"), max_size=2))
def test_woken_at_the_earliest_time_asked_for(asks: list[tuple[str, int]], forgotten: frozenset[str]) -> None:
    earliest: dict[str, int] = {}
    for thing, at_ms in asks:
        if thing not in forgotten:
            earliest[thing] = min(at_ms, earliest.get(thing, at_ms))
    woken = virtually(lambda: _woken(asks, forgotten))
    assert woken.keys() == earliest.keys()
    for thing, at_ms in earliest.items():
        assert at_ms <= woken[thing] <= at_ms + 2


def test_a_crowd_lets_others_have_their_turn() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        woken = 0

        def wake(_: int) -> None:
            nonlocal woken
            woken += 1

        wakeups = Wakeups(lambda: int(loop.time() * 1000), wake)
        now_ms = int(loop.time() * 1000)
        for thing in range(10 * BURST):
            wakeups.ask(thing, now_ms)
        turns = 0
        while woken < 10 * BURST:
            before = woken
            await asyncio.sleep(0)
            assert woken - before <= BURST
            turns += 1
        assert turns >= 10

    virtually(scene)


def test_an_error_of_one_leaves_the_timer_to_the_others() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
        errors: list[BaseException] = []
        woken: list[str] = []

        def wake(thing: str) -> None:
            woken.append(thing)
            if thing == "bad":
                raise RuntimeError(thing)

        wakeups = Wakeups(lambda: int(loop.time() * 1000), wake)
        now_ms = int(loop.time() * 1000)
        for at_ms, thing in ((1, "bad"), (1, "good"), (500, "later")):
            wakeups.ask(thing, now_ms + at_ms)
        await asyncio.sleep(1)
        assert woken == ["bad", "good", "later"]
        assert len(errors) == 1

    virtually(scene)


def test_asking_again_when_woken() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        times: list[int] = []

        def wake(thing: str) -> None:
            times.append(int(loop.time() * 1000))
            if len(times) < 3:
                wakeups.ask(thing, times[-1] + 100)

        wakeups = Wakeups(lambda: int(loop.time() * 1000), wake)
        wakeups.ask("a", int(loop.time() * 1000))
        await asyncio.sleep(1)
        assert len(times) == 3
        wakeups.ask("a", 0)
        wakeups.stop()
        await asyncio.sleep(1)
        assert len(times) == 3

    virtually(scene)
