"""The broker deletes or replaces a log or a segment while readers still use it: they may read on, and harm nothing
else.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ottla.broker.log.compactor import CompactionLimits, Compactor
from ottla.broker.log.config import LogConfig
from ottla.broker.log.directories import LogDirectories
from ottla.broker.log.log import Log
from ottla.broker.log.segment import Segment
from ottla.broker.log.upkeep import Upkeep, UpkeepIntervals
from tests.unit.broker.log.workbench import Workbench, contents, fill, open_directories

OLD, NEW = UUID(int=1), UUID(int=2)
CONFIG = LogConfig(segment_bytes=1000, retention_bytes=0, file_delete_delay_ms=1000)
opened = partial(open_directories, config=CONFIG)


def forget_descriptors(log: Log) -> None:
    for segment in log.segments:
        segment.let_go()


@pytest.fixture
def replaced(tmp_path: Path) -> tuple[LogDirectories, Log, Log]:
    """The log of a deleted topic, and the log of the new topic of the same name."""
    logs = opened(tmp_path)
    old = logs.open_or_create("t", 0, OLD, CONFIG)
    fill(old, 60)
    logs.delete_topic(OLD)
    new = logs.open_or_create("t", 0, NEW, CONFIG)
    fill(new, 60, start=100)
    forget_descriptors(old)
    return logs, old, new


def test_care_for_a_deleted_log_harms_nobody(replaced: tuple[LogDirectories, Log, Log]) -> None:
    logs, old, new = replaced
    before, files = contents(new), sorted(item.name for item in Path(new.directory).iterdir())
    upkeep = Upkeep(logs, lambda: 5000, UpkeepIntervals())
    asyncio.run(upkeep.flush(old))
    assert old.retention(5000, old.log_end_offset) is None
    old.directory_failed(FileNotFoundError(errno.ENOENT, "gone"))
    assert logs.failed == {}
    assert sorted(item.name for item in Path(new.directory).iterdir()) == files
    logs.close()
    assert contents(opened(Path(new.directory).parent).logs[NEW, 0]) == before


def test_who_looks_something_up_in_a_deleted_log_reads_that_one(replaced: tuple[LogDirectories, Log, Log]) -> None:
    _, old, _ = replaced
    found = old.offset_for_timestamp(1000 + 59 * 10)
    assert found is not None
    assert found.timestamp == 1000 + 59 * 10


def test_a_log_whose_directory_is_taken_over_is_given_up(tmp_path: Path) -> None:
    logs = opened(tmp_path)
    old = logs.open_or_create("t", 0, OLD, CONFIG)
    new = logs.open_or_create("t", 0, NEW, CONFIG)
    assert (old.retired, new.retired) == (True, False)
    assert old.directory != new.directory
    kept = logs.open_or_create("u", 0, OLD, CONFIG)
    logs.set_aside_unknown(lambda topic_id, index: topic_id == NEW)
    assert (kept.retired, new.retired) == (True, False)


def test_readers_of_a_deleted_segment_find_it_while_it_waits_and_make_no_file_later(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, config=replace(CONFIG, file_delete_delay_ms=1000))
    log = bench.log()
    fill(log, 60)
    segments = list(log.segments)
    assert log.retention(bench.now_ms, log.log_end_offset)
    forget_descriptors(log)
    assert segments[0].header_at(0) is not None
    assert segments[0].find_timestamp(1010, 0) is not None
    bench.now_ms += 2000
    bench.sweep()
    for segment in segments[:-1]:
        segment.let_go()
        with pytest.raises(FileNotFoundError):
            segment.header_at(0)
    assert bench.log(clean=False).log_start_offset == log.log_start_offset


def test_a_look_up_that_meets_a_rename_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Workbench(tmp_path).log()
    fill(log, 30)
    real = Segment.find_timestamp
    fails = [FileNotFoundError(errno.ENOENT, "just renamed")]

    def find(self: Segment, timestamp: int, start_offset: int):
        if fails:
            raise fails.pop()
        return real(self, timestamp, start_offset)

    monkeypatch.setattr(Segment, "find_timestamp", find)
    found = log.offset_for_timestamp(1100)
    assert found is not None
    assert found.timestamp == 1100


def test_a_look_up_of_the_greatest_timestamp_that_meets_a_rename_is_made_again(tmp_path: Path) -> None:
    """After a restart the lookup opens each time index. Before the fix, if retention was just renaming one, the ENOENT
    counted as a failure of the log directory, which went offline."""
    bench = Workbench(tmp_path, config=CONFIG)
    fill(bench.log(), 60)
    log = bench.log()
    expected = bench.log().offset_of_max_timestamp()
    assert expected is not None
    first = log.segments[0]
    real = first.disk.open
    met: list[str] = []

    def opens(path: str, *, create: bool = False) -> Any:
        if path == first.times.path and not met:
            met.append(path)
            raise FileNotFoundError(errno.ENOENT, "just renamed")
        return real(path, create=create)

    bench.disk.open = opens  # type: ignore[method-assign]
    assert log.offset_of_max_timestamp() == expected
    assert met


def test_a_duty_that_breaks_is_done_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def care() -> int:
        upkeep = Upkeep(opened(tmp_path), lambda: 5000, UpkeepIntervals())
        done = []

        async def duty() -> None:
            done.append(1)
            if len(done) == 1:
                raise AssertionError("broken")

        task = asyncio.create_task(upkeep._every(1, duty))
        while len(done) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        task.cancel()
        return len(done)

    with caplog.at_level(logging.ERROR):
        assert asyncio.run(asyncio.wait_for(care(), 10)) >= 3
    assert "duty failed" in caplog.text


def test_a_log_that_breaks_compaction_leaves_the_others_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logs = opened(tmp_path)
    config = replace(CONFIG, retention_bytes=-1, cleanup_policy=frozenset({"compact"}))
    for index in (0, 1):
        fill(logs.open_or_create("t", index, OLD, config), 60)
    compactor = Compactor(logs, lambda: 1_000_000, CompactionLimits(backoff_ms=1))
    seen: list[Log] = []

    async def compact(log: Log, what: object) -> None:
        seen.append(log)
        raise AssertionError("segments changed")

    monkeypatch.setattr(compactor, "compact", compact)

    async def run() -> None:
        task = asyncio.create_task(compactor.run())
        while len(seen) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        task.cancel()

    asyncio.run(asyncio.wait_for(run(), 10))
    assert len(set(map(id, seen))) == 2
