"""Moves between log directories lose and change nothing, whatever happens to the log, and wherever the move is
stopped."""

from __future__ import annotations

import asyncio
import errno
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast
from uuid import UUID

import pytest

from ottla.broker.log.config import LogConfig
from ottla.broker.log.directories import LogDirectories
from ottla.broker.log.disk import File, RealDisk
from ottla.broker.log.future import FutureLog, Pass
from ottla.broker.log.log import Log
from ottla.broker.log.moves import Moves
from ottla.broker.log.segment import Segment
from ottla.protocol.received import Buffer
from ottla.storage.checkpoints import render_offsets
from ottla.storage.indexes import AbortedTransaction
from tests.unit.broker.log.workbench import ALONE, append, batch_of, contents, crash, fill, transact

TOPIC_ID = UUID(int=77)
KEY = TOPIC_ID, 0
CONFIG = LogConfig(segment_bytes=4000, index_interval_bytes=200, file_delete_delay_ms=1000)
UNLIMITED = 1 << 62


class Directories:
    """Two log directories; the first has one partition."""

    def __init__(self, folder: Path, disk: RealDisk | None = None) -> None:
        self.one, self.two = str(folder / "one"), str(folder / "two")
        self.disk = disk or RealDisk()
        self.logs = self._open()
        self.log = self.logs.open_or_create("t", 0, TOPIC_ID, CONFIG)
        assert self.logs.directory_of(self.log) == self.one
        self.moves = Moves(self.logs, lambda: UNLIMITED)

    def _open(self) -> LogDirectories:
        logs = LogDirectories([self.one, self.two], lambda: 5000, ALONE, disk=self.disk)
        logs.open("c", 1, lambda topic: CONFIG)
        return logs

    def move(self, target: str) -> None:
        assert self.moves.wish(KEY, target)
        asyncio.run(self.moves.run(KEY))

    def after_a_crash(self) -> Log:
        self.release()
        self.logs = self._open()
        return self.logs.logs[KEY]

    def release(self) -> None:
        crash(self.logs)


def state_of(log: Log) -> object:
    """The whole state of a log."""
    segments = [
        (s.base_offset, s.size, s.largest(), list(s.offsets.entries()), list(s.times.entries()), aborted_of(s))
        for s in log.segments
    ]
    ends = log.log_start_offset, log.log_end_offset
    return contents(log), segments, ends, log.epochs.entries, log.producers.snapshot(), list(log.snapshots)


def aborted_of(segment: Segment) -> list[AbortedTransaction]:
    return [] if segment.aborted is None else segment.aborted.entries()


def lived(log: Log) -> None:
    """Gives a log several segments, leaders and producers, aborted transactions, and a log start offset above its first
    offset."""
    fill(log, 60)
    for sequence in range(3):
        transact(log, 8, sequence, committed=sequence == 1)
    for sequence in range(20):
        append(log, batch_of([b"p"], producer=(7, 0, sequence)), epoch=1 + sequence // 10)
    log.epochs.assign(5, log.log_end_offset)  # a leader that appended nothing
    fill(log, 40, start=60)
    transact(log, 8, 3, committed=False, epoch=5)
    log.delete_records_before(10)
    assert len(log.segments) > 3


def test_a_log_is_the_same_afterwards(tmp_path: Path) -> None:
    directories = Directories(tmp_path)
    log = directories.log
    lived(log)
    log.compacted_to = log.log_end_offset
    before = state_of(log)
    directories.move(directories.two)
    assert log.directory == f"{directories.two}/t-0"
    assert log is directories.logs.logs[KEY]
    assert state_of(log) == before
    assert log.recovery_point > 0
    assert log.compacted_to == log.recovery_point
    assert [path.name[-7:] for path in Path(directories.one).glob("t-*")] == ["-delete"]
    fill(log, 50, start=100)
    assert not directories.moves.futures
    after = contents(log)
    again = directories.after_a_crash()
    assert again.directory == log.directory
    assert contents(again) == after
    assert again.log_start_offset == 10
    assert again.epochs.entries == log.epochs.entries
    assert again.producers.snapshot() == log.producers.snapshot()


def test_a_transaction_index_that_grows_during_a_move_is_copied_again(tmp_path: Path) -> None:
    directories = Directories(tmp_path)
    log = directories.log
    future = FutureLog(directories.disk, log, TOPIC_ID, f"{directories.two}/copy")
    for sequence in range(4):
        if sequence:
            transact(log, 8, sequence, committed=False)
        log.active.write_out()
        done = future.next_pass()
        done.run(sync=False, bytes_per_second=UNLIMITED, given_up=future.given_up)
        future.copied(done, synced=False)
        copies = {path.name: path.read_bytes() for path in Path(future.directory).glob("*.txnindex")}
        assert copies == {path.name: path.read_bytes() for path in Path(log.directory).glob("*.txnindex")}
        assert len(copies) == (sequence > 0)
    directories.release()


def test_a_move_back_and_forth(tmp_path: Path) -> None:
    directories = Directories(tmp_path)
    lived(directories.log)
    before = state_of(directories.log)
    for target in (directories.two, directories.one, directories.two):
        directories.move(target)
        assert state_of(directories.log) == before
    directories.logs.close()
    assert contents(directories.after_a_crash()) == contents(directories.log)


def test_moving_to_where_it_is_does_nothing(tmp_path: Path) -> None:
    directories = Directories(tmp_path)
    assert not directories.moves.wish(KEY, directories.one)


@pytest.mark.parametrize("seed", range(30))
def test_the_log_changes_while_it_is_copied(tmp_path: Path, seed: int) -> None:
    """The log is changed during each pass of the copy and after it, and the copy still catches up."""
    directories = Directories(tmp_path)
    log = directories.log
    lived(log)
    dice = random.Random(seed)
    changes: list[Callable[[], object]] = [
        lambda: fill(log, dice.randrange(1, 60)),
        lambda: log.roll(),
        lambda: log.truncate_to(dice.randrange(log.log_start_offset, log.log_end_offset + 1)),
        lambda: log.delete_records_before(dice.randrange(log.log_start_offset, log.log_end_offset + 1)),
        lambda: log.retention(5000, log.log_end_offset),
        lambda: log.flush(),
        lambda: append(log, batch_of([b"p"], producer=(8, dice.randrange(9), 0)), epoch=log.last_leader_epoch + 1),
        lambda: log.truncate_fully_and_start_at(log.log_end_offset + 7),
    ]
    weights = [10, 3, 2, 2, 2, 3, 5, 1]
    future = FutureLog(directories.logs.disk, log, TOPIC_ID, f"{directories.two}/t-0.{'0' * 32}-future")
    for _ in range(dice.randrange(1, 6)):
        step = future.next_pass()
        dice.choices(changes, weights)[0]()
        run(step, sync=True)
        dice.choices(changes, weights)[0]()
        future.copied(step, synced=True)
    while (step := future.next_pass()).stretches or step.covered != log.log_end_offset:
        run(step, sync=False)
        future.copied(step, synced=False)
    run(step, sync=False)
    before = state_of(log)
    directories.logs.relocate(log, future.directory, directories.two, future.synced_end)
    assert state_of(log) == before
    expected = contents(log)
    checkpoint = render_offsets([("t", 0, log.log_start_offset)])
    Path(directories.two, "log-start-offset-checkpoint").write_bytes(checkpoint)
    again = directories.after_a_crash()
    assert contents(again) == expected
    assert again.log_start_offset == log.log_start_offset


def run(step: Pass, *, sync: bool) -> None:
    step.run(sync=sync, bytes_per_second=UNLIMITED, given_up=threading.Event())


def test_appends_go_on_meanwhile(tmp_path: Path) -> None:
    directories = Directories(tmp_path)
    log = directories.log
    lived(log)
    expected = contents(log)
    moved = False

    async def write() -> None:
        number = 1000
        while not moved:
            append(log, batch_of([b"%d" % number]))
            expected.append((log.log_end_offset - 1, b"%d" % number))
            number += 1
            await asyncio.sleep(0.0002)

    async def scenario() -> None:
        nonlocal moved
        writer = asyncio.create_task(write())
        for target in (directories.two, directories.one, directories.two):
            assert directories.moves.wish(KEY, target)
            await directories.moves.run(KEY)
            assert directories.logs.directory_of(log) == target
        moved = True
        await writer

    asyncio.run(scenario())
    assert contents(log) == expected
    assert contents(directories.after_a_crash()) == expected


def test_a_stop_in_the_middle_begins_the_move_anew(tmp_path: Path) -> None:
    directories = Directories(tmp_path)
    log = directories.log
    lived(log)
    before = contents(log)
    future = FutureLog(directories.logs.disk, log, TOPIC_ID, f"{directories.two}/t-0.{'0' * 32}-future")
    run(future.next_pass(), sync=False)
    again = directories.after_a_crash()
    assert contents(again, 10) == before
    assert directories.logs.directory_of(again) == directories.one
    assert directories.logs.interrupted_moves == [(TOPIC_ID, 0, directories.two)]


def test_a_stop_between_the_two_renames_leaves_one_log(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    class StopsAtDeletion(RealDisk):
        def rename(self, source: str, target: str) -> None:
            if target.endswith("-delete"):
                raise Stopped
            super().rename(source, target)

    directories = Directories(tmp_path, StopsAtDeletion())
    log = directories.log
    lived(log)
    before = contents(log)
    with pytest.raises(Stopped):
        directories.move(directories.two)
    assert Path(directories.one, "t-0").exists()
    assert Path(directories.two, "t-0").exists()
    directories.disk = RealDisk()
    assert contents(directories.after_a_crash(), 10) == before
    held = [path.name for home in (directories.one, directories.two) for path in Path(home).glob("t-0*")]
    assert sorted(name[-6:] for name in held) == ["-stray", "t-0"]


class FullTarget(RealDisk):
    """A disk on which the second log directory has no room for large files."""

    def open(self, path: str, *, create: bool = False) -> File:
        file = super().open(path, create=create)
        return cast("File", _NoRoom(file)) if "/two/" in path and path.endswith(".log") else file


class _NoRoom:
    def __init__(self, file: File) -> None:
        self._file = file

    def pwrite(self, data: Buffer, position: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def test_a_target_without_room_ends_the_move_and_nothing_else(tmp_path: Path) -> None:
    directories = Directories(tmp_path, FullTarget())
    log = directories.log
    lived(log)
    before = state_of(log)
    directories.move(directories.two)
    assert log.directory == f"{directories.one}/t-0"
    assert state_of(log) == before
    assert set(directories.logs.full) == {directories.two}
    assert not directories.logs.failed
    assert len(directories.logs.deletions) == 1
    fill(log, 10)


def test_a_move_that_couldnt_begin_leaves_nothing_behind(tmp_path: Path) -> None:
    class NoRoomForTheFirstFile(RealDisk):
        def open(self, path: str, *, create: bool = False) -> File:
            file = super().open(path, create=create)
            return cast("File", _NoRoom(file)) if path.endswith("partition.metadata") and "/two/" in path else file

    directories = Directories(tmp_path, NoRoomForTheFirstFile())
    lived(directories.log)
    directories.move(directories.two)
    assert directories.logs.directory_of(directories.log) == directories.one
    left = directories.logs.deletions.due(5000)
    assert [path for path in left if "-future" in path] == [
        str(path) for path in Path(directories.two).iterdir() if "-future" in path.name
    ]
    assert len(left) == 1


def test_a_wish_for_another_place_replaces_the_first(tmp_path: Path) -> None:
    directories = Directories(tmp_path)
    log = directories.log
    lived(log)

    async def scenario() -> None:
        directories.moves._bytes_per_second = lambda: 1000
        assert directories.moves.wish(KEY, directories.two)
        mover = asyncio.create_task(directories.moves.run(KEY))
        await asyncio.sleep(0.05)
        assert len(directories.moves.futures) == 1
        assert not directories.moves.wish(KEY, directories.one)
        await asyncio.wait_for(mover, 20)

    asyncio.run(scenario())
    assert log.directory == f"{directories.one}/t-0"
    assert not directories.moves.futures


def test_a_topic_deleted_meanwhile(tmp_path: Path) -> None:
    directories = Directories(tmp_path)
    lived(directories.log)

    async def scenario() -> None:
        assert directories.moves.wish(KEY, directories.two)
        mover = asyncio.create_task(directories.moves.run(KEY))
        await asyncio.sleep(0)
        directories.logs.delete_topic(TOPIC_ID)
        await mover

    asyncio.run(scenario())
    assert not directories.logs.logs
    assert not directories.logs.failed
    assert len(directories.logs.deletions) == 2
