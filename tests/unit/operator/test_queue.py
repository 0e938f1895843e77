"""The operator's queue: a key is queued once, handled once at a time, queued again after a failure, and dropped when
its object is gone."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ottla.operator import queue as module
from ottla.operator.objects import Ref
from ottla.operator.queue import Queue, Result, Retry

A, B = Ref("default", "a"), Ref("default", "b")


class Scripted:
    def __init__(self, act: Callable[[Ref], Awaitable[Result]]) -> None:
        self.seen: list[Ref] = []
        self.act = act

    async def reconcile(self, key: Ref) -> Result:
        self.seen.append(key)
        return await self.act(key)


async def _run(queue: Queue, until: Callable[[], bool]) -> None:
    task = asyncio.ensure_future(queue.run())
    async with asyncio.timeout(5):
        while not until():  # noqa: ASYNC110 — the awaited condition has no event
            await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_failure_is_logged_with_what_its_key_names(caplog: pytest.LogCaptureFixture) -> None:
    async def act(key: Ref) -> Result:
        raise Retry("no broker answers")

    async def run(queue: Queue) -> None:
        queue.add(A)
        await _run(queue, lambda: bool(queue.counters.failing))

    asyncio.run(run(Queue("Cluster", Scripted(act))))
    asyncio.run(run(Queue("Topic", Scripted(act), of="Topics of the Cluster")))
    assert [record.getMessage() for record in caplog.records] == [
        "Cluster default/a: no broker answers; again in 0.5 s",
        "Topics of the Cluster default/a: no broker answers; again in 0.5 s",
    ]


def test_several_events_are_one_reconcile() -> None:
    async def act(key: Ref) -> Result:
        return Result()

    async def run() -> list[Ref]:
        work = Scripted(act)
        queue = Queue("test", work)
        for _ in range(100):
            queue.add(A)
        queue.add(B)
        assert queue.depth == 2
        await _run(queue, lambda: len(work.seen) >= 2 and queue.depth == 0)
        return work.seen

    assert asyncio.run(run()) == [A, B]


def test_an_event_during_a_reconcile_is_another_one_after_it() -> None:
    async def run() -> None:
        at_once = most = 0

        async def act(key: Ref) -> Result:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            if len(work.seen) == 1:
                queue.add(A)
                queue.add(A)
            await asyncio.sleep(0.01)
            at_once -= 1
            return Result()

        work = Scripted(act)
        queue = Queue("test", work)
        queue.add(A)
        await _run(queue, lambda: len(work.seen) == 2 and queue.depth == 0)
        assert most == 1

    asyncio.run(run())


def test_a_failure_comes_again_after_a_growing_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S_MIN", 0.001)

    async def run() -> None:
        async def act(key: Ref) -> Result:
            if len(work.seen) == 1:
                raise Retry("not there yet")
            if len(work.seen) == 2:
                raise ValueError("a mistake")
            return Result()

        work = Scripted(act)
        queue = Queue("test", work)
        queue.add(A)
        await _run(queue, lambda: len(work.seen) == 3 and queue.depth == 0)
        assert queue.counters.errors == 2
        assert queue.counters.reconciles == 3
        assert queue.counters.failing == {}

    asyncio.run(run())


def test_what_is_gone_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RESYNC_S", 0.001)

    async def run() -> list[Ref]:
        async def act(key: Ref) -> Result:
            return Result(gone=key == A)

        work = Scripted(act)
        queue = Queue("test", work)
        queue.add(A)
        queue.add(B)
        await _run(queue, lambda: len(work.seen) >= 5)
        return work.seen

    seen = asyncio.run(run())
    assert seen.count(A) == 1
    assert seen.count(B) >= 4


def test_a_slow_one_does_not_hold_up_the_others() -> None:
    async def run() -> None:
        async def act(key: Ref) -> Result:
            if key == A:
                await asyncio.sleep(60)
            return Result()

        work = Scripted(act)
        queue = Queue("test", work, workers=2)
        queue.add(A)
        for number in range(20):
            queue.add(Ref("default", f"other-{number}"))
        await _run(queue, lambda: len(work.seen) == 21)

    asyncio.run(run())


def test_a_failure_of_a_part_is_counted_and_comes_again_soon_then_at_the_usual_pace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PAUSE_S_MIN", 0.001)
    answers = [Result(60.0, failure="refused"), Result(60.0, failure="refused"), Result(60.0)]

    async def act(key: Ref) -> Result:
        return answers[len(work.seen) - 1]

    work = Scripted(act)

    async def run() -> Queue:
        queue = Queue("test", work)
        queue.add(A)
        await _run(queue, lambda: len(work.seen) == 3 and not queue.depth)
        return queue

    queue = asyncio.run(run())
    assert queue.counters.failing == {}
    assert queue.counters.errors == 2
    queue.counters.failing[A] = 20
    assert queue._pause(A) == min(0.001 * 2**16, module.PAUSE_S_MAX)
