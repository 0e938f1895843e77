"""New logs: `partition.metadata` is on the disk before any other file, and a log that couldn't be created leaves no
file."""

from __future__ import annotations

import errno
import logging
import os
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ottla.broker.log.config import LogConfig
from ottla.broker.log.creation import NewLog, create, create_all
from ottla.broker.log.directory_services import DirectoryServices
from ottla.broker.log.disk import File, RealDisk, RealFile

from .workbench import Workbench, append, batch_of

SYNCS = 2


class WatchedDisk(RealDisk):
    """Notes the files that are opened and synced. The `failing` files can't be opened; a failing `partition.metadata`
    can be opened, but not synced.
    """

    def __init__(self, *failing: str) -> None:
        self.failing = failing
        self.events: list[tuple[str, str]] = []  # ("open" or "sync", directory/file)

    def open(self, path: str, *, create: bool = False) -> File:
        outer = self
        name = "/".join(path.split("/")[-2:])

        class Watched(RealFile):
            __slots__ = ()

            def fsync(self) -> None:
                if name in outer.failing:
                    raise OSError(errno.EIO, "can't be synced")
                super().fsync()
                outer.events.append(("sync", name))

        if name in outer.failing and not name.endswith("partition.metadata"):
            raise OSError(errno.EIO, "can't be opened")
        file = super().open(path, create=create)
        self.events.append(("open", name))
        return Watched(os.dup(file.fileno()))


class NoThreads(Executor):
    """A pool on a system that can't start any more threads."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        raise RuntimeError("can't start new thread")


def services_in(folder: Path, disk: WatchedDisk) -> DirectoryServices:
    return Workbench(folder, disk=disk).services


def wanted(services: DirectoryServices, folder: Path, count: int) -> list[tuple[DirectoryServices, str, NewLog]]:
    return [(services, f"{folder}/t-{index}", NewLog("t", index, UUID(int=7), LogConfig())) for index in range(count)]


@pytest.mark.parametrize("pool", [ThreadPoolExecutor(SYNCS), NoThreads()], ids=["threads", "no threads"])
def test_whose_a_log_is_is_synced_before_anything_else_is_made(tmp_path: Path, pool: Executor) -> None:
    disk = WatchedDisk()
    with pool:
        created = create_all(wanted(services_in(tmp_path, disk), tmp_path, 20), pool, SYNCS)
    assert [(new.partition, log.directory) for new, log in created] == [(at, f"{tmp_path}/t-{at}") for at in range(20)]
    waiting = most = 0
    for index in range(20):
        of_it = [event for event in disk.events if event[1].startswith(f"t-{index}/")]
        assert of_it[:2] == [("open", f"t-{index}/partition.metadata"), ("sync", f"t-{index}/partition.metadata")]
        assert ("open", f"t-{index}/00000000000000000000.log") in of_it[2:]
    for event, name in disk.events:
        waiting += (event == "open" and name.endswith("partition.metadata")) - (
            event == "open" and name.endswith(".log")
        )
        most = max(most, waiting)
    assert most <= 2 * SYNCS + 1
    append(created[-1][1], batch_of([b"x"]))


def test_after_one_that_fails_those_begun_are_finished_and_no_more_begun(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = WatchedDisk("t-3/partition.metadata")
    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(SYNCS) as pool:
        created = create_all(wanted(services_in(tmp_path, disk), tmp_path, 20), pool, SYNCS)
    made = [new.partition for new, _ in created]
    assert made == [index for index in range(made[-1] + 1) if index != 3]
    assert 3 < made[-1] < 19
    assert {item.name for item in tmp_path.iterdir()} == {f"t-{index}" for index in made}
    assert [record.getMessage() for record in caplog.records] == [
        f"log {tmp_path}/t-3 (and 0 others) can't be created in a thread, so the event loop tries again: "
        "[Errno 5] can't be synced"
    ]


def test_a_directory_that_exists_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "t-1").mkdir()
    (tmp_path / "t-1" / "records").write_bytes(b"somebody's")
    with ThreadPoolExecutor(SYNCS) as pool:
        created = create_all(wanted(services_in(tmp_path, WatchedDisk()), tmp_path, 3), pool, SYNCS)
    assert [new.partition for new, _ in created] == [0, 2]
    assert [item.name for item in (tmp_path / "t-1").iterdir()] == ["records"]


@pytest.mark.parametrize("failing", ["partition.metadata", "00000000000000000000.log"])
def test_what_can_not_be_made_leaves_nothing(tmp_path: Path, failing: str) -> None:
    services = services_in(tmp_path, WatchedDisk(f"t-0/{failing}"))
    with pytest.raises(OSError, match=r"can't be (synced|opened)"):
        create(*wanted(services, tmp_path, 1)[0])
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_can_not_be_made_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The existing directory may belong to a log. If a directory can't be examined, its partition seems to be absent,
    so the broker tries to create the log.
    """
    disk = WatchedDisk()
    (tmp_path / "t-0").mkdir()

    def refused(path: str) -> None:
        raise FileExistsError(errno.EEXIST, "there is something", path)

    monkeypatch.setattr(disk, "make_directory", refused)
    with pytest.raises(FileExistsError):
        create(*wanted(services_in(tmp_path, disk), tmp_path, 1)[0])
    assert (tmp_path / "t-0").is_dir()
