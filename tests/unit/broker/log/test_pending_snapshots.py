"""Snapshots of the producers: the sync after a roll writes them, with the producers' state at the time of the roll. A
snapshot that is outdated by then is never written.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
import threading
import time
from pathlib import Path

import pytest

from ottla.broker.log.config import LogConfig
from ottla.broker.log.disk import RealDisk
from ottla.broker.log.log import Log
from ottla.broker.log.producers import Producers
from ottla.protocol.batches import BatchHeader
from ottla.protocol.markers import Marker
from ottla.storage.producer_snapshot import read_snapshot, snapshot_pieces
from tests.unit.broker.log.workbench import Workbench, append, batch_of

SMALL = LogConfig(segment_bytes=4096, index_interval_bytes=256, file_delete_delay_ms=0)


def header(producer: int, sequence: int, epoch: int = 0) -> BatchHeader:
    return BatchHeader(0, 49, 0, 2, 0, 0, 0, 0, 0, producer, epoch, sequence, 1)


def produce(log: Log, producer: int, sequence: int) -> None:
    append(log, batch_of([b"x" * 50], producer=(producer, 0, sequence)))


def snapshot_files(bench: Workbench) -> list[int]:
    return [int(name[:20]) for name in bench.files(".snapshot")]


def known(bench: Workbench, offset: int) -> dict[int, int]:
    """The last sequence of each producer in a snapshot file."""
    data = (bench.path / f"{offset:020d}.snapshot").read_bytes()
    return {entry.producer_id: entry.last_sequence for entry in read_snapshot(data)}


class GatedDisk(RealDisk):
    """Blocks each thread that has written a snapshot until the test lets the thread continue."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.may_go_on = threading.Event()

    def write_atomically(self, path: str, data: bytes, *, fsync: bool = True) -> None:
        super().write_atomically(path, data, fsync=fsync)
        if ".snapshot" in path:
            self.reached.set()
            assert self.may_go_on.wait(60)


def test_a_roll_writes_no_snapshot_itself(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, config=SMALL)
    log = bench.log()
    for sequence in range(3):
        produce(log, 1, sequence)
    log.roll()
    assert (snapshot_files(bench), log.snapshots) == ([], [])
    for sequence in range(3, 6):
        produce(log, 1, sequence)
    pending = log.begin_flush(log.active.base_offset)
    pending.run()
    log.flushed(pending)
    assert (snapshot_files(bench), log.snapshots) == ([3], [3])
    assert known(bench, 3) == {1: 2}  # the state at the roll, not at the sync
    assert log.producers.get(1).last_sequence == 5  # type: ignore[union-attr]


def test_what_is_frozen_stays_as_it_was() -> None:
    producers = Producers()
    for producer in range(3):
        producers.update(header(producer, 0), producer, 1000)
    frozen = producers.freeze()
    producers.update(header(0, 1), 10, 2000)
    producers.update(header(1, 0, epoch=1), 11, 2000)
    producers.transaction_ended(2, 0, Marker(True, 5, 3000), 12)
    producers.update(header(3, 0), 13, 2000)
    producers.expire(10**9, 1)
    assert len(producers) == 0
    assert {
        producer: (entry.epoch, entry.last_sequence, entry.last_timestamp) for producer, entry in frozen.items()
    } == dict.fromkeys(range(3), (0, 0, 1000))
    assert dict(frozen.items())[2].coordinator_epoch == -1


def test_what_is_frozen_stays_as_it_was_also_after_a_truncation() -> None:
    producers = Producers()
    producers.update(header(0, 0), 0, 1000)
    frozen = producers.freeze()
    producers.update(header(0, 1), 1, 2000)
    of_both = producers.freeze()
    assert producers.truncate_to(1)
    producers.update(header(0, 1), 1, 3000)
    assert dict(frozen.items())[0].last_sequence == 0
    assert dict(of_both.items())[0].last_timestamp == 2000
    assert producers.get(0).last_timestamp == 3000  # type: ignore[union-attr]


def test_many_producers_dont_hold_a_roll(tmp_path: Path) -> None:
    """The roll copies no producer's state. Its time is compared with the time of writing the snapshot."""
    bench = Workbench(tmp_path, config=SMALL)
    log = bench.log()
    for producer in range(20_000):
        log.producers.update(header(producer, 0), 0, 1000)
    produce(log, 1, 1)
    began = time.thread_time()
    log.roll()
    rolled = time.thread_time() - began
    began = time.thread_time()
    log.producers.snapshot()
    assert rolled < (time.thread_time() - began) / 4
    log.flush()
    assert len(known(bench, 1)) == 20_000


def test_many_producers_are_written_while_the_loop_turns(tmp_path: Path) -> None:
    """The thread lets the event loop run after each piece of the snapshot that it writes."""
    bench = Workbench(tmp_path, config=SMALL)
    log = bench.log()
    for producer in range(20_000):
        log.producers.update(header(producer, 0), 0, 1000)
    produce(log, 1, 1)
    log.roll()

    async def scene() -> int:
        pending = log.begin_flush(log.active.base_offset)
        writing = asyncio.ensure_future(asyncio.to_thread(pending.run))
        turns = 0
        while not writing.done():
            await asyncio.sleep(0)
            turns += 1
        await writing
        log.flushed(pending)
        return turns

    assert asyncio.run(scene()) > 100
    assert log.snapshots == [1]


@pytest.mark.parametrize("end", [4, 6, 7])
def test_a_truncation_while_a_snapshot_is_written_leaves_no_stale_one(tmp_path: Path, end: int) -> None:
    disk = GatedDisk()
    bench = Workbench(tmp_path, config=SMALL, disk=disk)
    log = bench.log()
    for sequence in range(6):
        produce(log, 1, sequence)
    log.roll()
    produce(log, 1, 6)
    pending = log.begin_flush(log.active.base_offset)
    thread = threading.Thread(target=pending.run)
    thread.start()
    assert disk.reached.wait(60)
    log.truncate_to(end)
    disk.may_go_on.set()
    thread.join()
    log.flushed(pending)
    wanted = [6] if end >= 6 else []
    assert (snapshot_files(bench), log.snapshots) == (wanted, wanted)
    for sequence in range(end, 20):
        produce(log, 1, sequence)
    assert [name for name in bench.files() if name.endswith(".tmp")] == []
    again = bench.open(clean=False).log  # as after a kill
    assert again.producers.get(1).last_sequence == 19  # type: ignore[union-attr]


def test_a_truncation_after_a_snapshot_was_written_removes_it(tmp_path: Path) -> None:
    """The thread has written the file, but the event loop doesn't know it yet."""
    bench = Workbench(tmp_path, config=SMALL)
    log = bench.log()
    for sequence in range(6):
        produce(log, 1, sequence)
    log.roll()
    pending = log.begin_flush(log.active.base_offset)
    pending.run()
    assert snapshot_files(bench) == [6]
    log.truncate_to(3)
    log.flushed(pending)
    assert (snapshot_files(bench), log.snapshots) == ([], [])


def test_a_roll_at_the_same_offset_after_a_truncation_has_its_own_snapshot(tmp_path: Path) -> None:
    disk = GatedDisk()
    bench = Workbench(tmp_path, config=SMALL, disk=disk)
    log = bench.log()
    for sequence in range(6):
        produce(log, 1, sequence)
    log.roll()
    old = log.begin_flush(log.active.base_offset)
    thread = threading.Thread(target=old.run)
    thread.start()
    assert disk.reached.wait(60)
    log.truncate_to(3)
    for sequence in range(3):
        produce(log, 2, sequence)  # another history, up to the same offset
    log.roll()
    disk.may_go_on.set()
    log.flush()
    thread.join()
    log.flushed(old)
    assert log.snapshots == [6]
    assert known(bench, 6) == {1: 2, 2: 2}


def test_a_log_that_is_given_up_writes_into_no_other(tmp_path: Path) -> None:
    disk = GatedDisk()
    bench = Workbench(tmp_path / "t-0", config=SMALL, disk=disk)
    log = bench.log()
    produce(log, 1, 0)
    log.roll()
    pending = log.begin_flush(log.active.base_offset)
    thread = threading.Thread(target=pending.run)
    thread.start()
    assert disk.reached.wait(60)
    (tmp_path / "t-0").rename(tmp_path / "t-0-delete")
    log.retire(str(tmp_path / "t-0-delete"))
    fresh = Workbench(tmp_path / "t-0", config=SMALL)
    fresh.log()
    disk.may_go_on.set()
    thread.join()
    assert snapshot_files(fresh) == []


def test_a_move_while_a_snapshot_is_written_leaves_it_behind(tmp_path: Path) -> None:
    """Before the fix, the next sync looked for the snapshot in the new directory, and took its absence for a
    failure."""
    bench = Workbench(tmp_path, config=SMALL)
    log = bench.log()
    for sequence in range(60):
        produce(log, 1, sequence)
    flush = log.begin_flush()
    flush.run()  # has written a snapshot that the log doesn't know yet
    written = set(snapshot_files(bench))
    assert written - set(log.snapshots)
    there = tmp_path / "elsewhere" / bench.path.name
    shutil.copytree(bench.path, there, ignore=shutil.ignore_patterns("*.snapshot"))
    log.moved(log.services, str(there), log.recovery_point)
    assert not written & set(log.snapshots)
    log.flushed(flush)
    produce(log, 1, 60)
    log.flush()
    assert log.recovery_point == log.log_end_offset


def test_a_segment_that_retention_takes_takes_its_pending_snapshot_along(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, config=LogConfig(segment_bytes=4096, retention_bytes=0, file_delete_delay_ms=0))
    log = bench.log()
    for sequence in range(6):
        produce(log, 1, sequence)
        log.roll()
    assert log.retention(bench.now_ms, log.log_end_offset)
    log.flush()
    assert all(offset >= log.segments[0].base_offset for offset in snapshot_files(bench))


def test_rolls_that_are_faster_than_the_disk_keep_few_states(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, config=SMALL)
    log = bench.log()
    for sequence in range(20):
        produce(log, 1, sequence)
        log.roll()
    assert len(log.begin_flush().snapshots) == 4
    log.flush()
    assert log.snapshots == [17, 18, 19, 20]


def test_a_clean_stop_writes_what_is_pending(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, config=SMALL)
    log = bench.log()
    produce(log, 1, 0)
    log.roll()
    produce(log, 1, 1)
    log.close()
    assert snapshot_files(bench) == [1, 2]
    assert known(bench, 2) == {1: 1}


def test_a_full_disk_costs_the_snapshot_and_not_the_sync(tmp_path: Path) -> None:
    class FullForSnapshots(RealDisk):
        def write_atomically(self, path: str, data: bytes, *, fsync: bool = True) -> None:
            if full and ".snapshot" in path:
                raise OSError(errno.ENOSPC, "no space left on device")
            super().write_atomically(path, data, fsync=fsync)

    full = True
    bench = Workbench(tmp_path, config=SMALL, disk=FullForSnapshots())
    log = bench.log()
    produce(log, 1, 0)
    log.roll()
    log.flush()
    assert (log.recovery_point, log.snapshots) == (1, [])
    full = False
    produce(log, 1, 1)
    log.flush()
    assert (log.recovery_point, log.snapshots) == (2, [1])


def test_two_syncs_at_once_write_one_snapshot(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, config=SMALL)
    log = bench.log()
    produce(log, 1, 0)
    log.roll()
    first, second = log.begin_flush(), log.begin_flush()
    threads = [threading.Thread(target=flush.run) for flush in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.flushed(second)
    log.flushed(first)
    assert (snapshot_files(bench), log.snapshots) == ([1], [1])


def test_pieces_are_small() -> None:
    producers = Producers()
    for producer in range(1_000):
        for sequence in range(6):
            producers.update(header(producer, sequence), sequence, 1000)
    pieces = list(snapshot_pieces(producers.freeze().items()))
    assert [piece.producer_count for piece in pieces] == [100] * 10
    assert max(len(piece.entries) + len(piece.earlier) for piece in pieces) < 25_000
    restored = Producers()
    restored.restore(list(read_snapshot(producers.snapshot())), 6, 1000, 10**9)
    assert restored.snapshot() == producers.snapshot()
