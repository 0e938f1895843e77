"""A duty of upkeep or compaction that fails for one log leaves no file behind. The duty is repeated if that may help,
and is still done for all other logs.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from ottla.broker.log import compactor as compactor_module
from ottla.broker.log.compaction import Cleanable
from ottla.broker.log.compactor import CompactionLimits, Compactor
from ottla.broker.log.config import LogConfig
from ottla.broker.log.directories import LogDirectories
from ottla.broker.log.disk import RealDisk
from ottla.broker.log.log import Log
from ottla.broker.log.upkeep import Upkeep, UpkeepIntervals
from ottla.broker.metrics.replicas import METRICS
from ottla.protocol.batches import Record, build_batch, read_header, records
from tests.crash.volumes import fill, small_volume
from tests.unit.broker.log.workbench import ALONE

CONFIG = LogConfig(
    segment_bytes=900, index_interval_bytes=150, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0
)
NOW_MS = 1_000_000
TRIED_WITHIN_S = 30.0


@pytest.fixture
def logs(tmp_path: Path) -> LogDirectories:
    logs = LogDirectories([str(tmp_path / "data")], lambda: NOW_MS, ALONE)
    logs.open("c", 1, lambda topic: CONFIG)
    return logs


def log_of(logs: LogDirectories, index: int, config: LogConfig = CONFIG) -> Log:
    """A log with a hundred records of five keys, in many segments."""
    log = logs.open_or_create("t", index, UUID(int=1), config)
    for number in range(100):
        base = log.log_end_offset
        batch = bytearray(build_batch([Record(base, 0, b"%d" % (number % 5), b"v%d" % number)], base_offset=base))
        log.append(batch, read_header(batch), base, 0)
    return log


def compactor_of(logs: LogDirectories) -> Compactor:
    return Compactor(logs, lambda: NOW_MS, CompactionLimits(backoff_ms=50))


def compacting(compactor: Compactor, until: Callable[[], bool]) -> None:
    """Runs the compactor until the condition is true."""

    async def main() -> None:
        running = asyncio.create_task(compactor.run())
        async with asyncio.timeout(TRIED_WITHIN_S):
            while not until():
                assert not running.done(), running
                await asyncio.sleep(0.01)
        running.cancel()

    asyncio.run(main())


def left_behind(log: Log) -> list[str]:
    return [path.name for path in Path(log.directory).iterdir() if ".cleaned" in path.name]


@contextmanager
def a_file_size_limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Limits files that this process and its children write to the size of a batch or two."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def a_killer(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kills each child process as soon as it is started."""
    start = subprocess.Popen

    def killed(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = start(*arguments, **options)
        process.kill()
        return process

    with monkeypatch.context() as patched:
        patched.setattr(compactor_module.subprocess, "Popen", killed)
        yield


@contextmanager
def a_machine_without_processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refused(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    with monkeypatch.context() as patched:
        patched.setattr(compactor_module.subprocess, "Popen", refused)
        yield


@pytest.mark.parametrize("failing", [a_file_size_limit, a_killer, a_machine_without_processes])
def test_a_compaction_that_failed_leaves_no_file_and_is_tried_again(
    logs: LogDirectories, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, failing: Any
) -> None:
    log = log_of(logs, 0)
    compactor = compactor_of(logs)
    stale = Path(log.directory, f"{0:020d}.log.cleaned")
    stale.write_bytes(b"of the child before")
    counts = logs.troubles.counts
    with failing(monkeypatch), caplog.at_level(logging.ERROR):
        compacting(compactor, lambda: counts["compaction"] >= 2 and not left_behind(log))
    assert len(caplog.records) == 1, "it is logged once, not each time"
    assert log.compacted_to == 0
    assert compactor.uncleanable() == []
    compacting(compactor, lambda: log.compacted_to > 0)
    assert left_behind(log) == []


def test_a_compaction_on_a_full_disk_leaves_no_file_and_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_volume(tmp_path / "data", 4 << 20) as volume:
        logs = LogDirectories([str(volume)], lambda: NOW_MS, ALONE)
        logs.open("c", 1, lambda topic: CONFIG)
        log = log_of(logs, 0)
        compactor = compactor_of(logs)
        ballast = volume / "ballast"
        fill(ballast)
        with caplog.at_level(logging.ERROR):
            compacting(compactor, lambda: logs.troubles.counts["compaction"] >= 2 and not left_behind(log))
        (said,) = caplog.messages
        assert "No space left on device" in said
        assert (log.compacted_to, compactor.uncleanable(), logs.failed) == (0, [], {})
        ballast.unlink()
        compacting(compactor, lambda: log.compacted_to > 0)
        assert left_behind(log) == []
        logs.close()


class NoRoomForNames(RealDisk):
    """A disk that renames `left` more files of segments, and then has no room for longer names."""

    left = 10**6

    def rename(self, source: str, target: str) -> None:
        if ".cleaned" in source or ".swap" in source or ".deleted" in target:
            if not self.left:
                raise OSError(errno.ENOSPC, "No space left on device")
            self.left -= 1
        super().rename(source, target)


@pytest.mark.parametrize("renamed", range(8))
def test_a_compacted_segment_that_cant_take_its_place_for_want_of_room_costs_no_record(
    tmp_path: Path, renamed: int
) -> None:
    """Before the fix, the broker continued with this log as if the renamed files still had their old names."""
    disk = NoRoomForNames()
    path = tmp_path / "data"
    logs = LogDirectories([str(path)], lambda: NOW_MS, ALONE, disk=disk)
    logs.open("c", 1, lambda topic: CONFIG)
    log = log_of(logs, 0)
    newest = {record.key: record.value for record in records_of(log)}
    disk.left = renamed
    with pytest.raises(OSError, match="only a part" if renamed else "No space"):
        compact_once(logs, log)
    assert (list(logs.failed), list(logs.full)) == (([str(path)], []) if renamed else ([], [str(path)]))
    logs.close()
    again = LogDirectories([str(path)], lambda: NOW_MS, ALONE)
    again.open("c", 1, lambda topic: CONFIG)
    found = again.logs[UUID(int=1), 0]
    assert found.log_end_offset == 100
    assert {record.key: record.value for record in records_of(found)} == newest
    again.close()


@pytest.mark.parametrize("renamed", range(8))
def test_retention_without_room_for_longer_names_fails_no_directory_and_goes_on_later(
    tmp_path: Path, renamed: int
) -> None:
    """Before the fix, a full disk ended the broker in the very task that would have made room, and did so again after
    each start.
    """
    disk = NoRoomForNames()
    logs = LogDirectories([str(tmp_path / "data")], lambda: NOW_MS, ALONE, disk=disk)
    logs.open("c", 1, lambda topic: CONFIG)
    log = log_of(logs, 0, replace(CONFIG, cleanup_policy=frozenset({"delete"}), retention_bytes=1000))
    upkeep = Upkeep(logs, lambda: NOW_MS, UpkeepIntervals())
    disk.left = renamed
    asyncio.run(upkeep.retain())
    assert (list(logs.full), logs.failed) == ([str(tmp_path / "data")], {})
    assert [record.value for record in records_of(log)][-1] == b"v99"
    disk.left = 10**6
    asyncio.run(upkeep.retain())
    assert (len(log.segments), log.log_start_offset) == (2, log.segments[0].base_offset)
    logs.close()


def records_of(log: Log) -> Iterator[Record]:
    """All records of a log."""
    for segment in log.segments:
        for _, _, batch in segment.batches():
            yield from records(batch)


def compact_once(logs: LogDirectories, log: Log) -> None:
    compactor = compactor_of(logs)
    asyncio.run(compactor.compact(log, compactor.cleanable(log)))


def test_only_damage_is_for_good_and_a_metric_counts_it(logs: LogDirectories, caplog: pytest.LogCaptureFixture) -> None:
    damaged, sound = log_of(logs, 0), log_of(logs, 1)
    damaged.segments[1].file.pwrite(b"?", 70)
    compactor = compactor_of(logs)
    with caplog.at_level(logging.ERROR):
        compacting(compactor, lambda: sound.compacted_to > 0 and bool(compactor.uncleanable()))
        compacting(compactor, lambda: True)
    assert compactor.uncleanable() == [damaged]
    assert [record.message for record in caplog.records if "wrong CRC" in record.message] != []
    assert len(caplog.records) == 1
    assert left_behind(damaged) == []
    (metric,) = [metric for metric in METRICS if "uncleanable" in metric.name]
    broker: Any = SimpleNamespace(logs=logs, compactor=compactor)
    assert list(metric.collect(broker)) == [((("logdirectory", logs.paths[0]),), 1)]
    logs.delete_topic(UUID(int=1))
    assert list(metric.collect(broker)) == [((("logdirectory", logs.paths[0]),), 0)]


def test_a_log_that_breaks_a_rule_of_ours_ends_no_other_logs_compaction(
    logs: LogDirectories, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange, sound = log_of(logs, 0), log_of(logs, 1)
    compactor = compactor_of(logs)
    look = compactor.cleanable

    def cleanable(log: Log) -> Cleanable:
        if log is strange:
            raise ZeroDivisionError
        return look(log)

    monkeypatch.setattr(compactor, "cleanable", cleanable)
    compacting(compactor, lambda: sound.compacted_to > 0)
    monkeypatch.setattr(compactor, "cleanable", look)
    compacting(compactor, lambda: strange.compacted_to > 0)


def test_the_pause_after_failures_in_a_row_grows_and_has_an_end(
    logs: LogDirectories, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = log_of(logs, 0)
    compactor = compactor_of(logs)

    async def main() -> list[float]:
        now = asyncio.get_running_loop().time()
        pauses = []
        for _ in range(9):
            compactor._failed(log, OSError(errno.ENOSPC, "no room"))
            pauses.append(round(compactor._failures[log].again_at - now, 1))
        assert await compactor.choose() == (None, None)
        return pauses

    assert asyncio.run(main()) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 3.2, 3.2, 3.2]


@pytest.mark.parametrize(
    ("duty", "method"), [("retention", "retention"), ("expiry of producers", "expire_producers"), ("sync", "flush_due")]
)
def test_one_unexpected_error_ends_no_other_logs_care(
    logs: LogDirectories,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    duty: str,
    method: str,
) -> None:
    """The error is logged once and counted each time, and the duty continues with the other logs."""
    strange = log_of(logs, 0)
    log_of(logs, 1)
    seen: list[Log] = []

    def failing(log: Log, *arguments: Any) -> tuple[()]:
        """Fails for the strange log; does nothing for the others."""
        if log is strange:
            raise ZeroDivisionError("an impossible index")
        seen.append(log)
        return ()

    upkeep = Upkeep(logs, lambda: NOW_MS, UpkeepIntervals())
    if duty == "sync":
        monkeypatch.setattr(Log, "flush_due", lambda log, now_ms: True)
        monkeypatch.setattr(Log, "begin_flush", failing)
        monkeypatch.setattr(Log, "flushed", failing)
        monkeypatch.setattr("ottla.broker.log.upkeep.PendingFlush.run", lambda pending: None)
    else:
        monkeypatch.setattr(Log, method, failing)
    round_of = {"retention": upkeep.retain, "expiry of producers": upkeep.expire_producers, "sync": upkeep._flush_due}

    async def rounds() -> None:
        for _ in range(3):
            await round_of[duty]()

    with caplog.at_level(logging.ERROR):
        asyncio.run(rounds())
    assert len(seen) >= 3
    assert logs.troubles.counts == {duty: 3}
    assert len(caplog.records) == 1
    (metric,) = [metric for metric in METRICS if metric.name == "ottla_log_duty_failures_total"]
    assert list(metric.collect(SimpleNamespace(logs=logs))) == [((("duty", duty),), 3)]  # type: ignore[arg-type]


def test_one_unexpected_error_ends_no_other_logs_closing(logs: LogDirectories, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the error, the log's directory doesn't count as cleanly stopped."""
    strange, sound = log_of(logs, 0), log_of(logs, 1)
    close = Log.close

    def closed(log: Log) -> None:
        if log is strange:
            raise ZeroDivisionError
        close(log)

    monkeypatch.setattr(Log, "close", closed)
    logs.close(5)
    assert sound.recovery_point == sound.log_end_offset
    assert not Path(logs.paths[0], ".kafka_cleanshutdown").exists()
    monkeypatch.undo()
    again = LogDirectories(logs.paths, lambda: NOW_MS, ALONE)
    again.open("c", 1, lambda topic: CONFIG)
    assert [again.logs[UUID(int=1), index].log_end_offset for index in (0, 1)] == [100, 100]


def test_a_deleted_file_that_cant_be_removed_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Busy(RealDisk):
        busy = True

        def remove(self, path: str) -> None:
            if self.busy and path.endswith(".deleted"):
                raise OSError(errno.EBUSY, "Device or resource busy")
            super().remove(path)

    disk = Busy()
    now_ms = NOW_MS
    logs = LogDirectories([str(tmp_path / "data")], lambda: now_ms, ALONE, disk=disk)
    logs.open("c", 1, lambda topic: CONFIG)
    path = tmp_path / "data" / "0.log.deleted"
    path.touch()
    logs.deletions.add(now_ms, str(path))
    upkeep = Upkeep(logs, lambda: now_ms, UpkeepIntervals())
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            asyncio.run(upkeep.remove_due())
            now_ms += 60_000
    assert path.exists()
    assert len(caplog.records) == 1
    disk.busy = False
    asyncio.run(upkeep.remove_due())
    assert not path.exists()


def test_a_small_file_that_cant_be_replaced_leaves_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The temporary file is removed. Each snapshot has a name of its own, so its temporary file would take room until
    the next start.
    """
    path = tmp_path / f"{7:020d}.snapshot"

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        RealDisk().write_atomically(str(path), b"producers")
    assert list(tmp_path.iterdir()) == []


def test_logs_that_delete_are_retained_beside_one_that_cant_be(
    logs: LogDirectories, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(CONFIG, cleanup_policy=frozenset({"delete"}), retention_bytes=0)
    strange, sound = log_of(logs, 0, config), log_of(logs, 1, config)
    monkeypatch.setattr(type(strange.segments[0]), "largest", _largest_of(strange))
    asyncio.run(Upkeep(logs, lambda: NOW_MS, UpkeepIntervals()).retain())
    assert (strange.log_start_offset, sound.log_start_offset > 0) == (0, True)


def _largest_of(strange: Log) -> Any:
    largest = type(strange.segments[0]).largest

    def raising(segment: Any) -> Any:
        if segment.path.startswith(strange.directory):
            raise ValueError("a time index that makes no sense")
        return largest(segment)

    return raising
