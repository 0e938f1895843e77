"""A checkpoint's line about a deleted log isn't taken for the line of a newer log with the same name."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from ottla.broker.log.config import LogConfig
from ottla.broker.log.creation import NewLog
from ottla.broker.log.directories import LogDirectories
from ottla.broker.log.disk import RealDisk
from ottla.broker.log.offset_files import OffsetFiles
from ottla.storage import names
from tests.unit.broker.log.workbench import contents, crash, fill, open_directories

EARLIER, LATER, KEPT = UUID(int=1), UUID(int=2), UUID(int=3)
CONFIG = LogConfig()
opened = partial(open_directories, config=CONFIG)


def checkpoint(logs: LogDirectories) -> None:
    for file in logs.recovery_points() + logs.high_watermark_checkpoints():
        logs.offset_files.write(file)


@pytest.mark.parametrize("ahead", [False, True], ids=["at once", "ahead"])
@pytest.mark.parametrize("restarted", [False, True], ids=["the same process", "after a restart"])
def test_a_topic_made_anew_begins_at_its_beginning(tmp_path: Path, ahead: bool, restarted: bool) -> None:
    logs = opened(tmp_path)
    log = logs.open_or_create("t", 0, EARLIER, CONFIG)
    kept = logs.open_or_create("kept", 0, KEPT, CONFIG)
    for each in (log, kept):
        fill(each, 100)
        each.delete_records_before(60)
        each.flush()
    checkpoint(logs)
    logs.delete_topic(EARLIER)
    if restarted:
        crash(logs)
        logs = opened(tmp_path)
    if ahead:
        asyncio.run(logs.create_ahead([NewLog("t", 0, LATER, CONFIG)]))
    anew = logs.open_or_create("t", 0, LATER, CONFIG)
    fill(anew, 100)
    before = contents(anew)
    crash(logs)
    logs = opened(tmp_path)
    anew = logs.logs[LATER, 0]
    assert anew.log_start_offset == 0
    assert contents(anew) == before
    assert ("t", 0) not in logs.high_watermarks
    assert logs.logs[KEPT, 0].log_start_offset == 60


def test_an_earlier_rendering_is_not_written_over_a_later_one(tmp_path: Path) -> None:
    files = OffsetFiles(RealDisk())
    directory = str(tmp_path)
    earlier = files.rendered(directory, names.HIGH_WATERMARKS, [("t", 0, 5)])
    assert files.may_name(directory, "t", 0)
    later = files.rendered(directory, names.HIGH_WATERMARKS, [])
    files.write(later)
    assert not files.may_name(directory, "t", 0)
    files.write(earlier)
    assert files.read(directory, names.HIGH_WATERMARKS) == {}


def test_what_could_not_be_written_is_not_there(tmp_path: Path) -> None:
    class Failing(RealDisk):
        def write_atomically(self, path: str, content: bytes) -> None:
            raise OSError("no")

    files = OffsetFiles(Failing())
    file = files.rendered(str(tmp_path), names.LOG_STARTS, [("t", 0, 5)])
    with pytest.raises(OSError, match="no"):
        files.write(file)
    assert not files.may_name(str(tmp_path), "t", 0)
