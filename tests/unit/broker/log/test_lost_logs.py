"""A log whose files can't be read or written is never replaced by an empty log, and never deleted."""

from __future__ import annotations

import errno
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from ottla.broker.log.config import LogConfig
from ottla.broker.log.disk import RealDisk
from ottla.protocol.received import Buffer
from tests.unit.broker.log.workbench import append, batch_of, contents, crash, fill, open_directories

CONFIG = LogConfig(segment_bytes=4000, index_interval_bytes=200)
opened = partial(open_directories, config=CONFIG)
IDS = [UUID(int=number) for number in range(1, 5)]


def test_what_may_lie_in_a_failed_directory_is_lost_and_not_new(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    logs = opened(one, two)
    for topic_id in IDS:
        fill(logs.open_or_create("t", topic_id.int, topic_id, CONFIG), 10)
    logs.close()
    two.rename(tmp_path / "aside")
    two.write_text("not a directory")

    logs = opened(one, two)
    expected = [(topic_id, topic_id.int) for topic_id in IDS]
    logs.expect(expected)
    assert len(logs.logs) == 2
    assert logs.logs.keys() | logs.lost.keys() == set(expected)
    for topic_id, index in list(logs.lost):
        with pytest.raises(OSError, match=r"File exists|Not a directory"):
            logs.open_or_create("t", index, topic_id, CONFIG)
    later = logs.open_or_create("later", 0, UUID(int=9), CONFIG)
    assert logs.directory_of(later) == str(one)
    logs.delete_topic(IDS[1])
    assert (IDS[1], 2) not in logs.lost
    crash(logs)

    two.unlink()
    (tmp_path / "aside").rename(two)
    logs = opened(one, two)
    logs.expect(expected)
    assert set(expected) <= logs.logs.keys()
    assert not logs.lost


def test_without_a_failed_directory_everything_missing_is_new(tmp_path: Path) -> None:
    logs = opened(tmp_path)
    logs.expect([(IDS[0], 0)])
    assert not logs.lost
    logs.open_or_create("t", 0, IDS[0], CONFIG)


class Full(RealDisk):
    """A disk without room to replace a file."""

    def write_atomically(self, path: str, data: Buffer, *, fsync: bool = True) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_opened_and_read(tmp_path: Path) -> None:
    logs = opened(tmp_path)
    log = logs.open_or_create("t", 0, IDS[0], CONFIG)
    fill(log, 80)
    append(log, batch_of([b"p"], producer=(7, 0, 0)), epoch=3)
    before = contents(log)
    crash(logs)

    (tmp_path / "t-0" / "leader-epoch-checkpoint").unlink(missing_ok=True)
    again = opened(tmp_path, disk=Full())
    log = again.logs[IDS[0], 0]
    assert contents(log) == before
    assert log.epochs.latest == 3
    assert not again.lost
    assert not again.failed
    log.epochs.assign(4, log.log_end_offset)
    with pytest.raises(OSError, match="No space"):
        log.begin_flush()
    again.close()
    assert not (tmp_path / ".kafka_cleanshutdown").exists(), "the next start recovers the log that couldn't be closed"
    crash(again)

    log = opened(tmp_path).logs[IDS[0], 0]
    assert contents(log) == before
