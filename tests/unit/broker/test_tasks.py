"""The consequences of a task's end for the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ottla.broker.tasks import Tasks
from ottla.metadata.registration import NodeIdTaken
from ottla.metadata.store import ForeignStore


def play(scene: Callable[[Tasks], Awaitable[None]]) -> list[BaseException]:
    """Runs the coroutine function `scene` with a broker's tasks. Returns the errors that end the broker, because its
    store or its node id was lost."""
    lost: list[BaseException] = []

    async def main() -> None:
        async with asyncio.timeout(10):
            await scene(Tasks(lost.append))

    asyncio.run(main())
    return lost


async def fails(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("vital", [True, False])
def test_the_broker_ends_with_a_vital_task_alone(caplog: pytest.LogCaptureFixture, vital: bool) -> None:
    async def scene(tasks: Tasks) -> None:
        await asyncio.wait([tasks.spawn(fails(ValueError("a bug")), "care", vital=vital)])
        await asyncio.sleep(0)
        assert tasks.failed.is_set() == vital

    assert play(scene) == []
    assert ("task care failed: the broker stops" in caplog.text) == vital
    assert "ValueError: a bug" in caplog.text


@pytest.mark.parametrize("error", [ForeignStore("another store"), NodeIdTaken("another process")])
def test_a_store_or_an_id_of_others_is_told_before_the_broker_fails(
    caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    async def scene(tasks: Tasks) -> None:
        for _ in range(2):
            await asyncio.wait([tasks.spawn(fails(error), vital=True)])
        await asyncio.sleep(0)
        assert tasks.failed.is_set()

    assert play(scene) == [error, error]
    assert caplog.text.count(f"the broker stops: {error}") == 1, "one sentence is enough"
    assert "Traceback" not in caplog.text


def test_a_task_that_is_not_vital_loses_nothing() -> None:
    async def scene(tasks: Tasks) -> None:
        await asyncio.wait([tasks.spawn(fails(ForeignStore("another store")))])
        await asyncio.sleep(0)
        assert not tasks.failed.is_set()

    assert play(scene) == []


def test_all_tasks_end_with_the_broker_but_the_spared_one() -> None:
    async def scene(tasks: Tasks) -> None:
        spared, other = (tasks.spawn(asyncio.Event().wait(), vital=True) for _ in range(2))
        await tasks.cancel(spared)
        assert (spared.done(), other.cancelled()) == (False, True)
        await tasks.cancel()
        assert spared.cancelled()
        assert not tasks.failed.is_set(), "a cancelled task hasn't failed"

    play(scene)
