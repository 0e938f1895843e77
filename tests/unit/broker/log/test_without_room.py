"""Logs that couldn't be opened for lack of room: once there is room, they are opened one after the other, each in its
state at that time, and an attempt that fails is repeated."""

from __future__ import annotations

import asyncio
import errno
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from ottla.broker.log import without_room
from ottla.broker.log.without_room import Key, WithoutRoom

FIRST, SECOND = (UUID(int=1), 0), (UUID(int=2), 0)


class Scene:
    """Two logs that wait for room. `work` is called with a log's directory in the thread that opens the log."""

    def __init__(self, work: Callable[[str], Any]) -> None:
        self.logs = WithoutRoom()
        self.logs.logs = {key: self._lost(f"/d/{key[0].int}") for key in (FIRST, SECOND)}
        self.work = work
        self.begun: list[str] = []
        self.opened: list[Any] = []
        self.tried: list[Key] = []

    @staticmethod
    def _lost(directory: str) -> Any:
        return SimpleNamespace(path="/d"), SimpleNamespace(directory=directory)

    async def open_each(self) -> None:
        await self.logs.open_each(
            lambda key, home: True,
            lambda home, item: lambda: self._begin(item.directory),
            lambda home, item, result: self.opened.append(result),
            lambda topic_id, index: self.tried.append((topic_id, index)),
        )

    def _begin(self, directory: str) -> Any:
        self.begun.append(directory)
        return self.work(directory)


def test_one_whose_directory_may_be_another_logs_by_now_is_not_opened() -> None:
    """The topic was deleted and created anew while the thread that opens logs worked in another directory. Before the
    fix, recovery removed the files of the new log, which was served by then."""

    def work(directory: str) -> str:
        if directory == "/d/1":
            del scene.logs.logs[SECOND]
        return directory

    scene = Scene(work)
    asyncio.run(scene.open_each())
    assert scene.begun == scene.opened == ["/d/1"]
    assert scene.tried == [FIRST]


def test_whoever_waits_for_the_directory_of_one_that_has_gone_hears_of_it() -> None:
    def work(directory: str) -> str:
        scene.logs.logs.pop(FIRST, None)
        return directory

    scene = Scene(work)
    asyncio.run(scene.open_each())
    assert scene.opened == ["/d/2"]
    assert scene.tried == [FIRST, SECOND]


@pytest.mark.parametrize("error", [OSError(errno.EMFILE, "too many open files"), MemoryError()])
def test_a_moment_without_descriptors_or_memory_passes(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(without_room, "_AGAIN_S", 0.01)

    def work(directory: str) -> str:
        if len(scene.begun) < 3:
            raise error
        return directory

    scene = Scene(work)
    asyncio.run(scene.open_each())
    assert scene.begun == ["/d/1"] * 3 + ["/d/2"]
    assert scene.opened == ["/d/1", "/d/2"]


def test_one_after_the_other_and_nobody_else_waits_in_a_thread() -> None:
    """A volume is full and has room alternately. Before the fix, each time one more of the threads that sync logs was
    blocked.
    """
    may = threading.Event()

    def work(directory: str) -> str:
        assert may.wait(60)
        return directory

    async def main() -> None:
        rounds = [asyncio.ensure_future(scene.open_each()) for _ in range(100)]
        await asyncio.sleep(0.05)
        assert scene.begun == ["/d/1"]
        assert sum(thread.name.startswith("asyncio") for thread in threading.enumerate()) == 1
        may.set()
        await asyncio.gather(*rounds)

    scene = Scene(work)
    scene.logs.logs = {FIRST: scene.logs.logs[FIRST]}
    asyncio.run(main())
