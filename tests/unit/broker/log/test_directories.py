"""Log directories: the state that survives a clean stop or a kill, the owner of a directory, and a directory that
fails."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from ottla.broker.log.config import LogConfig
from ottla.broker.log.creation import NewLog
from ottla.broker.log.deletion import Deletions, remove
from ottla.broker.log.directories import LogDirectories
from ottla.broker.log.disk import RealDisk
from ottla.broker.log.home import ForeignDirectory
from ottla.broker.log.identity import read_topic_id
from ottla.broker.log.log import Log
from ottla.broker.log.segment import DamagedSegment
from ottla.broker.log.upkeep import Upkeep, UpkeepIntervals
from ottla.storage.checkpoints import parse_offsets
from tests.unit.broker.log.workbench import ALONE, append, batch_of, contents, crash, fill, open_directories

TOPIC_ID = UUID(int=77)
CONFIG = LogConfig(segment_bytes=1000, file_delete_delay_ms=1000)
opened = partial(open_directories, config=CONFIG)


def test_everything_survives_a_clean_stop(tmp_path: Path) -> None:
    logs = opened(tmp_path)
    log = logs.open_or_create("t", 3, TOPIC_ID, CONFIG)
    fill(log, 100)
    log.delete_records_before(10)
    before = contents(log)
    logs.close(broker_epoch=9)
    assert (tmp_path / ".kafka_cleanshutdown").read_text() == '{"version":0,"brokerEpoch":9}'
    again = opened(tmp_path)
    assert again.stopped_epoch == 9
    log = again.logs[TOPIC_ID, 3]
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert (log.log_start_offset, log.recovery_point) == (10, log.log_end_offset)
    assert contents(log) == before
    assert again.cluster_id == "c"
    assert again.high_watermarks == {("t", 3): log.log_end_offset}
    crash(again)
    log = opened(tmp_path).logs[TOPIC_ID, 3]
    assert contents(log) == before


def test_what_a_truncation_took_is_checkpointed_soon(tmp_path: Path) -> None:
    """Otherwise, after a kill within a minute, the old checkpoints would say that records which were appended after the
    truncation are synced and compacted.
    """
    logs = opened(tmp_path)
    log = logs.open_or_create("t", 0, TOPIC_ID, CONFIG)
    fill(log, 100)
    log.flush()
    log.compacted_to = log.active.base_offset

    async def care() -> None:
        upkeep = Upkeep(logs, lambda: 5000, UpkeepIntervals())
        await upkeep.checkpoint_recovery_points()
        task = asyncio.create_task(upkeep.run())
        log.truncate_fully_and_start_at(0)
        upkeep.shortened(log)
        point = Path(logs.directory_of(log)) / "recovery-point-offset-checkpoint"
        compacted = point.with_name("cleaner-offset-checkpoint")
        while "t 0 0" not in point.read_text() or "t 0" in compacted.read_text():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(asyncio.wait_for(care(), 10))
    fill(log, 100)
    crash(logs)
    again = opened(tmp_path).logs[TOPIC_ID, 0]
    assert again.compacted_to == 0


def compacted_offset(logs: LogDirectories, topic: str) -> int:
    """The compacted offset of a topic's partition 0, in the checkpoint on the disk."""
    return parse_offsets(Path(logs.paths[0], "cleaner-offset-checkpoint").read_bytes()).get((topic, 0), 0)


async def write_as_upkeep(logs: LogDirectories) -> None:
    await Upkeep(logs, lambda: 5000, UpkeepIntervals()).checkpoint_recovery_points()


async def write_as_compactor(logs: LogDirectories) -> None:
    other = logs.open_or_create("other", 0, UUID(int=78), CONFIG)
    other.compacted_to = 5
    logs.offset_files.write(logs.compacted_checkpoint(other))


async def write_as_a_log_is_made(logs: LogDirectories) -> None:
    """Creates a log for a topic whose deleted predecessor of the same name has a line in the checkpoint."""
    await write_as_compactor(logs)
    logs.delete_topic(UUID(int=78))
    logs.open_or_create("other", 0, UUID(int=79), CONFIG)


@pytest.mark.parametrize("write", [write_as_upkeep, write_as_compactor, write_as_a_log_is_made])
def test_a_log_is_synced_before_a_checkpoint_says_that_it_is_no_longer_compacted(
    tmp_path: Path, write: Callable[[LogDirectories], Awaitable[None]]
) -> None:
    """This holds for every writer of the checkpoint. Otherwise, after a loss of power, the log's old content could be
    back without the superseded records, and no checkpoint would say so."""
    logs = opened(tmp_path)
    log = logs.open_or_create("t", 0, TOPIC_ID, CONFIG)
    fill(log, 100)
    log.flush()
    log.compacted_to = before = log.active.base_offset

    async def scene() -> None:
        await write_as_upkeep(logs)
        pending = log.begin_flush(0)
        log.truncate_fully_and_start_at(0)
        log.flushed(pending)  # this sync began before the truncation, so it proves nothing
        await write(logs)
        assert compacted_offset(logs, "t") == before
        upkeep = Upkeep(logs, lambda: 5000, UpkeepIntervals())
        upkeep.shortened(log)
        await upkeep.checkpoint_recovery_points()
        assert compacted_offset(logs, "t") == 0

    asyncio.run(scene())


def test_a_clean_stop_syncs_a_log_that_started_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, after a loss of power, the log's old content could be back, although the stop counts as clean."""
    logs = opened(tmp_path)
    log = logs.open_or_create("t", 0, TOPIC_ID, CONFIG)
    fill(log, 100)
    log.flush()
    log.compacted_to = log.active.base_offset
    log.truncate_fully_and_start_at(0)
    synced: list[str] = []
    fsync_directory = logs.disk.fsync_directory

    def fsynced(path: str) -> None:
        fsync_directory(path)
        synced.append(path)

    monkeypatch.setattr(logs.disk, "fsync_directory", fsynced)
    logs.close()
    assert synced[0] == log.directory
    assert compacted_offset(logs, "t") == 0


def test_the_recovery_point_is_what_was_synced(tmp_path: Path) -> None:
    logs = opened(tmp_path)
    log = logs.open_or_create("t", 0, TOPIC_ID, CONFIG)
    fill(log, 100)
    assert log in logs.wanting_flush

    async def care() -> None:
        upkeep = Upkeep(logs, lambda: 5000, UpkeepIntervals())
        task = asyncio.create_task(upkeep.run())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        logs.flush_wanted.set()
        while log.recovery_point < log.active.base_offset:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await upkeep.checkpoint_recovery_points()
        task.cancel()

    asyncio.run(asyncio.wait_for(care(), 10))
    crash(logs)
    again = opened(tmp_path).logs[TOPIC_ID, 0]
    assert again.recovery_point == log.recovery_point > 0
    assert contents(again) == contents(log)


def test_a_stop_is_clean_if_every_directory_was_marked_under_the_same_epoch(tmp_path: Path) -> None:
    both = tmp_path / "a", tmp_path / "b"
    for epochs, found in (((None, None), -1), ((5, 5), 5), ((5, 6), -1), ((5, None), -1)):
        for path, epoch in zip(both, epochs, strict=True):
            path.mkdir(exist_ok=True)
            marker = path / ".kafka_cleanshutdown"
            if epoch is not None:
                marker.write_text(f'{{"version":0,"brokerEpoch":{epoch}}}')
        logs = opened(*both)
        assert logs.stopped_epoch == found
        crash(logs)
    (both[0] / ".kafka_cleanshutdown").touch()  # Kafka 3 leaves an empty marker
    assert opened(both[0]).stopped_epoch == -1


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), DamagedSegment("no batch at 7")], ids=repr)
def test_what_fails_before_the_registration_is_no_clean_stop(tmp_path: Path, error: OSError) -> None:
    """Otherwise the registration would say that every log is whole, and no report would name the log that can't be
    read."""
    logs = opened(tmp_path / "a", tmp_path / "b")
    for index in range(2):
        fill(logs.open_or_create("t", index, TOPIC_ID, CONFIG), 10)
    logs.close(broker_epoch=9)
    again = opened(tmp_path / "a", tmp_path / "b")
    assert again.stopped_epoch == 9
    again.logs[TOPIC_ID, 0].directory_failed(error)
    assert set(again.lost) == {(TOPIC_ID, 0)}
    assert again.stopped_epoch == -1
    again.close()


def test_a_start_that_fails_before_the_logs_are_open_leaves_them_as_they_were(tmp_path: Path) -> None:
    logs = opened(tmp_path)
    fill(logs.open_or_create("t", 0, TOPIC_ID, CONFIG), 10)
    crash(logs)
    # as a broker that couldn't read the metadata store
    LogDirectories([str(tmp_path)], lambda: 5000, ALONE).close(broker_epoch=-1)
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    opened(tmp_path).close(broker_epoch=7)
    before = (tmp_path / "replication-offset-checkpoint").read_text()
    LogDirectories([str(tmp_path)], lambda: 5000, ALONE).close(broker_epoch=-1)
    assert (tmp_path / "replication-offset-checkpoint").read_text() == before
    opened(tmp_path).close(broker_epoch=-1)  # as a broker that never registered
    assert opened(tmp_path).stopped_epoch == 7


def test_foreign_directories_are_refused(tmp_path: Path) -> None:
    for name, cluster_id in (("a", "c"), ("b", "d"), ("e", "c")):
        opened(tmp_path / name, cluster_id=cluster_id).close()
    with pytest.raises(ForeignDirectory, match="cluster"):
        opened(tmp_path / "a", tmp_path / "b")
    with pytest.raises(ForeignDirectory, match=r"node\.id=1, this broker node\.id=2"):
        opened(tmp_path / "e", node_id=2)


def test_a_directory_has_one_process(tmp_path: Path) -> None:
    held = opened(tmp_path)
    with pytest.raises(ForeignDirectory, match="another process"):
        opened(tmp_path)
    held.close()
    opened(tmp_path).close()


def test_a_deleted_topic_goes_after_its_delay(tmp_path: Path) -> None:
    logs = opened(tmp_path)
    fill(logs.open_or_create("t", 0, TOPIC_ID, CONFIG), 3)
    logs.delete_topic(TOPIC_ID)
    [renamed] = tmp_path.glob("t-0.*-delete")
    assert logs.deletions.due(5999) == []
    assert logs.deletions.due(6000) == [str(renamed)]
    fresh = logs.open_or_create("t", 0, UUID(int=78), CONFIG)
    assert fresh.log_end_offset == 0
    logs.close()
    again = opened(tmp_path)
    assert list(again.logs) == [(UUID(int=78), 0)]
    assert again.deletions.due(0) == [str(renamed)]


def test_a_directory_of_another_topic_id_is_set_aside_not_removed(tmp_path: Path) -> None:
    logs = opened(tmp_path)
    fill(logs.open_or_create("t", 0, TOPIC_ID, CONFIG), 3)
    log = logs.open_or_create("t", 0, UUID(int=78), CONFIG)
    assert log.log_end_offset == 0
    [stray] = tmp_path.glob("t-0.*-stray")
    assert read_topic_id(RealDisk(), str(stray)) == TOPIC_ID
    assert logs.set_aside_unknown(lambda topic_id, index: False)
    assert logs.logs == {}
    assert len(list(tmp_path.glob("*-stray"))) == 2


def test_partitions_spread_over_directories_and_one_may_fail(tmp_path: Path) -> None:
    gone: list[Log] = []
    logs = opened(tmp_path / "a", tmp_path / "b", owner=replace(ALONE, went_offline=gone.extend))
    for index in range(6):
        append(logs.open_or_create("t", index, TOPIC_ID, CONFIG), batch_of([b"x"]))
    homes = [logs.directory_of(log) for log in logs.logs.values()]
    assert homes.count(str(tmp_path / "a")) == homes.count(str(tmp_path / "b")) == 3
    next(iter(logs.logs.values())).directory_failed(OSError(errno.ENOSPC, "full"))
    assert (len(logs.full), len(logs.failed), gone) == (1, 0, [])
    next(iter(logs.logs.values())).directory_failed(OSError(errno.EIO, "broken"))
    assert (len(logs.failed), len(gone), len(logs.logs)) == (1, 3, 3)
    logs.open_or_create("u", 0, UUID(int=99), CONFIG)
    logs.close()
    assert sorted(path.parent.name for path in tmp_path.glob("*/.kafka_cleanshutdown")) == ["b"]


def test_who_has_no_log_directory_left_is_told_once_they_were_open(tmp_path: Path) -> None:
    """The start checks `failed` itself: until it has ended, `none_left` and `went_offline` aren't called."""
    told: list[bool] = []
    owner = replace(ALONE, none_left=lambda: told.append(True))
    (tmp_path / "file").touch()
    assert LogDirectories([str(tmp_path / "file")], lambda: 5000, owner).failed
    assert told == []
    logs = opened(tmp_path, owner=owner)
    logs.directory_failed(str(tmp_path), OSError(errno.EIO, "broken"))
    assert told == [True]


def test_a_cordoned_directory_gets_no_new_logs_while_there_is_another(tmp_path: Path) -> None:
    logs = opened(tmp_path / "a", tmp_path / "b")
    old = logs.open_or_create("t", 0, TOPIC_ID, CONFIG)
    logs.cordoned = frozenset({str(tmp_path / "a")})
    asyncio.run(logs.create_ahead([NewLog("t", index, TOPIC_ID, CONFIG) for index in range(1, 5)]))
    for index in range(1, 7):
        assert logs.directory_of(logs.open_or_create("t", index, TOPIC_ID, CONFIG)) == str(tmp_path / "b")
    assert logs.open_or_create("t", 0, TOPIC_ID, CONFIG) is old, "the existing log stays"
    logs.cordoned = frozenset({str(tmp_path / "a"), str(tmp_path / "b")})
    logs.open_or_create("t", 7, TOPIC_ID, CONFIG)


def test_a_directory_without_a_topic_id_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mystery-0").mkdir()
    logs = opened(tmp_path)
    assert logs.logs == {}
    assert (tmp_path / "mystery-0").exists()


@pytest.mark.parametrize("metadata", ["", "version: 0\ntopic_id: nonsense", None])
def test_records_without_a_topic_id_are_never_hidden_by_an_empty_log(tmp_path: Path, metadata: str | None) -> None:
    directory = tmp_path / "orders-0"
    directory.mkdir()
    (directory / "00000000000000000000.log").write_bytes(b"records")
    if metadata is not None:
        (directory / "partition.metadata").write_text(metadata)
    logs = opened(tmp_path)
    topic_id = uuid4()
    with pytest.raises(OSError, match=r"partition\.metadata"):
        logs.open_or_create("orders", 0, topic_id, LogConfig())
    assert (topic_id, 0) in logs.lost
    asyncio.run(logs.create_ahead([NewLog("orders", 0, topic_id, LogConfig())]))
    assert (directory / "00000000000000000000.log").read_bytes() == b"records"
    assert logs.logs == {}


def test_logs_created_ahead_are_found_and_spread_over_the_directories(tmp_path: Path) -> None:
    logs = opened(tmp_path / "a", tmp_path / "b")
    there = logs.open_or_create("t", 0, TOPIC_ID, CONFIG)
    wanted = [NewLog("t", index, TOPIC_ID, CONFIG) for index in range(8)]
    (tmp_path / "a" / "t-5").mkdir()  # of an unknown topic: open_or_create decides about it
    (tmp_path / "b" / "t-5").mkdir()
    asyncio.run(logs.create_ahead(wanted))
    assert logs.get(TOPIC_ID, 0) is there
    created = {index: logs.get(TOPIC_ID, index) for index in range(1, 8)}
    assert created.pop(5) is None
    for index, log in created.items():
        assert logs.open_or_create("t", index, TOPIC_ID, CONFIG) is log
    late = logs.open_or_create("t", 5, TOPIC_ID, CONFIG)
    fill(late, 10)
    assert late.log_end_offset > 0
    homes = [logs.directory_of(log) for log in logs.logs.values()]
    assert abs(homes.count(str(tmp_path / "a")) - homes.count(str(tmp_path / "b"))) <= 1


def test_a_log_that_can_not_be_created_ahead_is_left_for_its_turn(tmp_path: Path) -> None:
    logs = opened(tmp_path)
    (tmp_path / "t-1").write_text("in the way")
    asyncio.run(logs.create_ahead([NewLog("t", index, TOPIC_ID, CONFIG) for index in range(3)]))
    assert sorted(index for _, index in logs.logs) == [0, 2]
    assert not logs.failed


def test_removals_take_turns_and_one_that_fails_stops_no_other(tmp_path: Path) -> None:
    deletions = Deletions()
    for number in range(5):
        (tmp_path / f"{number}.deleted").touch()
        deletions.add(10 + number, str(tmp_path / f"{number}.deleted"))
    first = deletions.due(100, 2)
    assert first == [str(tmp_path / "0.deleted"), str(tmp_path / "1.deleted")]
    assert len(deletions) == 3

    class Stubborn(RealDisk):
        def remove(self, path: str) -> None:
            if path == first[0]:
                raise OSError(errno.EIO, "no")
            super().remove(path)

    ((path, error),) = remove(Stubborn(), first).items()
    assert (path, error.errno) == (first[0], errno.EIO)
    assert remove(RealDisk(), [*deletions.due(100), str(tmp_path / "never there")]) == {}
    assert [path.name for path in tmp_path.iterdir()] == ["0.deleted"]
