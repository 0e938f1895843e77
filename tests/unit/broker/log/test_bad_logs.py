"""If a log can't be opened, for whatever reason, only that log is offline: the broker starts, and serves its other
logs.

A checkpoint's lines about such a log are kept until the log is opened. Its log directory isn't marked as cleanly
stopped if a log in it was never recovered.
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from ottla.broker.log.config import LogConfig
from ottla.broker.log.directories import LogDirectories
from ottla.broker.log.disk import Entry, RealDisk
from ottla.broker.log.log import Log
from ottla.broker.log.segment import DamagedSegment
from ottla.storage.checkpoints import parse_offsets
from ottla.uuids import uuid_text
from tests.unit.broker.log.workbench import ALONE, contents, crash, fill, open_directories

CONFIG = LogConfig(segment_bytes=4000, index_interval_bytes=200)
opened = partial(open_directories, config=CONFIG)
END = 79
IDS = [UUID(int=number) for number in range(3)]


class Astonishing(RealDisk):
    """A disk that can't list one directory, because of an unforeseen error."""

    def __init__(self, path: Path, error: Exception) -> None:
        self._path = str(path)
        self._error = error
        self.healed = False

    def list(self, path: str) -> list[Entry]:
        if path == self._path and not self.healed:
            raise self._error
        return super().list(path)


def filled(path: Path) -> LogDirectories:
    """Three logs with the log end offset END, whose first ten records are deleted."""
    logs = opened(path)
    for index, topic_id in enumerate(IDS):
        log = logs.open_or_create("t", index, topic_id, CONFIG)
        fill(log, 40)
        log.delete_records_before(10)
    return logs


@pytest.mark.parametrize(
    "error",
    [ValueError("no number"), AssertionError(), struct.error("4 bytes"), DamagedSegment("no batch at 7")],
    ids=repr,
)
def test_an_unforeseen_error_costs_one_log_and_not_the_start(
    tmp_path: Path, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path).close()
    logs = opened(tmp_path, disk=Astonishing(tmp_path / "t-1", error))
    assert set(logs.logs) == {(IDS[0], 0), (IDS[2], 2)}
    assert set(logs.lost) == {(IDS[1], 1)}
    assert not logs.failed
    assert "t-1 can't be opened" in caplog.text
    with pytest.raises(OSError, match="t-1"):
        logs.open_or_create("t", 1, IDS[1], CONFIG)
    assert logs.stopped_epoch == -1
    fill(logs.logs[IDS[0], 0], 5)
    logs.close(broker_epoch=9)
    assert all(len(contents(log)) for log in opened(tmp_path).logs.values())


def test_a_disk_that_fails_still_costs_the_log_directory(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for path in (one, two):
        crash(filled(path))
    logs = opened(one, two, disk=Astonishing(one / "t-1", OSError(errno.EIO, "Input/output error")))
    assert list(logs.failed) == [str(one)]
    assert {logs.directory_of(log) for log in logs.logs.values()} == {str(two)}


def test_what_checkpoints_say_about_an_unopened_log_is_kept(tmp_path: Path) -> None:
    """Before the fix, the next start had forgotten the log start offset, and deleted records were back."""
    logs = filled(tmp_path)
    logs.close()
    before = {path.name: parse_offsets(path.read_bytes()) for path in tmp_path.glob("*-checkpoint")}
    assert sum(("t", 1) in lines for lines in before.values()) == 3
    logs = opened(tmp_path, disk=Astonishing(tmp_path / "t-1", ValueError()))
    logs.close()
    assert {path.name: parse_offsets(path.read_bytes()) for path in tmp_path.glob("*-checkpoint")} == before
    again = opened(tmp_path)
    assert [log.log_start_offset for log in again.logs.values()] == [10, 10, 10]


def test_what_was_never_recovered_is_not_marked_as_whole(tmp_path: Path) -> None:
    """Before the fix, a torn end of a log that couldn't be opened was taken for a sound one at the next start."""
    crash(filled(tmp_path))
    torn = max((tmp_path / "t-1").glob("*.log"))
    whole = torn.stat().st_size
    with torn.open("ab") as file:
        file.write(bytes(100))
    logs = opened(tmp_path, disk=Astonishing(tmp_path / "t-1", ValueError()))
    logs.close(broker_epoch=9)
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    log = opened(tmp_path).logs[IDS[1], 1]
    assert torn.stat().st_size == whole
    assert log.log_end_offset == END


def test_of_a_log_that_was_whole_and_is_not_opened_the_marker_may_tell(tmp_path: Path) -> None:
    """After a clean stop the unopened log needs no recovery, so its directory is marked as cleanly stopped. Kafka does
    the same (LogManager.shutdown).
    """
    filled(tmp_path).close()
    opened(tmp_path, disk=Astonishing(tmp_path / "t-1", ValueError())).close()
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_an_unopened_log_of_an_earlier_topic_gives_way_with_its_checkpoints(tmp_path: Path) -> None:
    filled(tmp_path).close()
    disk = Astonishing(tmp_path / "t-1", ValueError())
    logs = opened(tmp_path, disk=disk)
    disk.healed = True
    logs.delete_topic(IDS[1])
    log = logs.open_or_create("t", 1, UUID(int=9), CONFIG)
    fill(log, 3)
    crash(logs)
    assert opened(tmp_path).logs[UUID(int=9), 1].log_start_offset == 0


def indexes(logs: LogDirectories) -> list[Path]:
    """The offset indexes of partition 1's log; each has entries for several batches."""
    return [Path(segment.offsets.path) for segment in logs.logs[IDS[1], 1].segments]


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "killed"])
@pytest.mark.parametrize("at", [0, -1], ids=["first", "last"])
@pytest.mark.parametrize("position", [-1, -(1 << 31), (1 << 31) - 1])
def test_an_index_that_names_no_position_is_built_anew(tmp_path: Path, position: int, at: int, clean: bool) -> None:
    """Before the fix, one damaged index took the whole log directory offline, with "Invalid argument"."""
    logs = filled(tmp_path)
    index = indexes(logs)[at]
    expected = contents(logs.logs[IDS[1], 1])
    logs.close()
    if not clean:
        (tmp_path / ".kafka_cleanshutdown").unlink()
    content = index.read_bytes()
    index.write_bytes(content[:-4] + struct.pack(">i", position))
    again = opened(tmp_path)
    assert not again.failed
    assert not again.lost
    assert contents(again.logs[IDS[1], 1]) == expected
    again.close()
    assert index.read_bytes() == content


@pytest.mark.parametrize("position", [7, 61, 1000])
def test_where_a_log_ends_is_not_read_from_between_batches(tmp_path: Path, position: int) -> None:
    """The last entry of an index may be damaged, and name a position at which no batch begins. Before the fix, the log
    then ended at the last segment's base offset or at a random one.
    """
    logs = filled(tmp_path)
    index = indexes(logs)[-1]
    logs.close()
    index.write_bytes(index.read_bytes()[:-4] + struct.pack(">i", position))
    log = opened(tmp_path).logs[IDS[1], 1]
    assert log.log_end_offset == END


def test_entries_of_an_empty_segment_name_nothing(tmp_path: Path) -> None:
    logs = filled(tmp_path)
    index = indexes(logs)[-1]
    logs.close()
    index.write_bytes(struct.pack(">ii", 5, -7))
    index.with_suffix(".log").write_bytes(b"")
    again = opened(tmp_path)
    assert not again.failed
    assert again.logs[IDS[1], 1].log_end_offset == int(index.stem)


def test_what_an_index_misleads_is_one_log(tmp_path: Path) -> None:
    """A read on a running broker reports that the log is damaged, and the log directory doesn't count as failed."""
    logs = filled(tmp_path)
    log = logs.logs[IDS[1], 1]
    logs.close()
    index = indexes(logs)[0]
    content = bytearray(index.read_bytes())
    content[4:8] = struct.pack(">i", -7)  # the position of the first of several entries
    index.write_bytes(content)
    logs = opened(tmp_path)
    log = logs.logs[IDS[1], 1]
    first = struct.unpack_from(">i", content)[0]
    with pytest.raises(DamagedSegment, match="names position -7") as caught:
        log.read_bytes(first + 1, 100, log.log_end_offset)
    log.directory_failed(caught.value)
    assert not logs.failed
    assert log.read_bytes(log.segments[-1].base_offset, 100, log.log_end_offset)


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[LogDirectories, Log, list[Log]]:
    """A log in whose index a truncation has just found a bad position: the directories, the log, which is offline, and
    the logs reported to `went_offline`."""
    logs = filled(tmp_path)
    index = indexes(logs)[0]
    logs.close()
    content = bytearray(index.read_bytes())
    content[4:8] = struct.pack(">i", -7)  # the position of the first of several entries
    index.write_bytes(content)
    gone: list[Log] = []
    logs = opened(tmp_path, owner=replace(ALONE, went_offline=gone.extend))
    log = logs.logs[IDS[1], 1]
    with pytest.raises(DamagedSegment) as caught:
        log.truncate_to(struct.unpack_from(">i", content)[0] + 1)
    log.directory_failed(caught.value)
    log.directory_failed(caught.value)
    return logs, log, gone


def test_a_log_that_is_damaged_while_the_broker_runs_is_offline_alone(
    tmp_path: Path, damaged: tuple[LogDirectories, Log, list[Log]], caplog: pytest.LogCaptureFixture
) -> None:
    """Before the fix, the damage was only logged: the follower tried to truncate the log again for ever, and no metric
    counted it."""
    logs, log, gone = damaged
    assert gone == [log]
    assert set(logs.logs) == {(IDS[0], 0), (IDS[2], 2)}
    assert set(logs.lost) == {(IDS[1], 1)}
    assert not logs.failed
    [said] = [record.getMessage() for record in caplog.get_records("setup") if record.levelname == "ERROR"]
    assert "its partition is offline here" in said
    with pytest.raises(DamagedSegment):
        logs.open_or_create("t", 1, IDS[1], CONFIG)
    logs.close(broker_epoch=9)
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    again = opened(tmp_path)
    assert {key: held.log_start_offset for key, held in again.logs.items()} == {
        (topic_id, index): 10 for index, topic_id in enumerate(IDS)
    }
    assert {held.log_end_offset for held in again.logs.values()} == {END}


@pytest.mark.parametrize("whole_topic", [True, False])
def test_a_damaged_log_that_is_deleted_gives_way_to_a_new_one(
    tmp_path: Path, damaged: tuple[LogDirectories, Log, list[Log]], whole_topic: bool
) -> None:
    """Reassigning a replica away and back restores it in this way."""
    logs, log, _ = damaged
    if whole_topic:
        logs.delete_topic(IDS[1])
    else:
        logs.delete(IDS[1], 1)
    assert log.retired
    assert not logs.lost
    assert logs.open_or_create("t", 1, IDS[1], CONFIG).log_end_offset == 0
    logs.close(broker_epoch=9)
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_a_damaged_log_in_a_directory_that_fails_later_is_lost_with_it(
    damaged: tuple[LogDirectories, Log, list[Log]],
) -> None:
    logs, log, _ = damaged
    logs.directory_failed(logs.directory_of(log), OSError(errno.EIO, "broken"))
    logs.delete(IDS[1], 1)
    assert set(logs.lost) == {(topic_id, index) for index, topic_id in enumerate(IDS)}
    assert Path(log.directory).exists()


def test_an_unopened_log_gives_way_when_its_partition_was_moved_to_others_and_comes_back(tmp_path: Path) -> None:
    """Before the fix, the log was offline until the broker's next start, although the replica could have been copied
    from another broker."""
    crash(filled(tmp_path))
    stored = {path.name: path.read_bytes() for path in (tmp_path / "t-1").glob("*.log")}
    disk = Astonishing(tmp_path / "t-1", ValueError())
    logs = opened(tmp_path, disk=disk)
    logs.moved_to_others(IDS[1], 0)
    logs.moved_to_others(IDS[0], 0)
    assert set(logs.lost) == {(IDS[1], 1)}, "the other partition is still lost"
    logs.moved_to_others(IDS[1], 1)
    logs.moved_to_others(IDS[1], 1)
    assert not logs.lost
    disk.healed = True  # the damage is in the directory that was set aside
    [aside] = tmp_path.glob("t-1.*-stray")
    assert {path.name: path.read_bytes() for path in aside.glob("*.log")} == stored, "no file is deleted"
    log = logs.open_or_create("t", 1, IDS[1], CONFIG)
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    fill(log, 3)
    end = log.log_end_offset
    logs.close(broker_epoch=9)
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    again = opened(tmp_path).logs[IDS[1], 1]
    assert again.log_start_offset == 0, "the checkpoints' lines about the old log are forgotten"
    assert again.log_end_offset == end > 0


def test_a_log_in_a_failed_directory_stays_lost_when_its_partition_was_moved_to_others(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for path in (one, two):
        crash(filled(path))
    logs = opened(one, two, disk=Astonishing(one / "t-1", OSError(errno.EIO, "Input/output error")))
    lost = dict(logs.lost)
    logs.moved_to_others(IDS[1], 1)
    assert logs.lost == lost
    assert (one / "t-1").exists()


def test_an_unopened_log_of_a_deleted_topic_leaves_its_directory_to_be_marked(tmp_path: Path) -> None:
    """Before the fix, every later start recovered all logs of that directory."""
    crash(filled(tmp_path))
    logs = opened(tmp_path, disk=Astonishing(tmp_path / "t-1", ValueError()))
    logs.delete_topic(IDS[1])
    logs.close(broker_epoch=9)
    assert (tmp_path / ".kafka_cleanshutdown").exists()


def test_a_directory_of_no_topics_name_breaks_no_checkpoint(tmp_path: Path) -> None:
    """A directory may have a name that no topic can have. Before the fix, this directory's line couldn't be written to
    the checkpoint, or made the whole checkpoint unreadable, and deleted records were back.
    """
    filled(tmp_path).close()
    for name in ("a b-0", os.fsdecode(b"\xff-0"), "t-\u0663"):
        shutil.copytree(tmp_path / "t-0", tmp_path / name)
        identity = f"version: 0\ntopic_id: {uuid_text(UUID(int=7))}"
        (tmp_path / name / "partition.metadata").write_text(identity)
    opened(tmp_path).close()
    again = opened(tmp_path)
    assert [log.log_start_offset for log in again.logs.values()] == [10, 10, 10]


def test_properties_that_are_no_text_cost_one_log_directory(tmp_path: Path) -> None:
    """Before the fix, the broker's start ended in a traceback."""
    one, two = tmp_path / "one", tmp_path / "two"
    opened(one, two).close()
    (one / "meta.properties").write_bytes(b"\xff\xfe=1\n")
    logs = opened(one, two)
    assert list(logs.failed) == [str(one)]
    assert (one / "meta.properties").read_bytes() == b"\xff\xfe=1\n"
