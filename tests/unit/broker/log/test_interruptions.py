"""The process stops at any step of a change of files: the next start finds all records, and cleans up."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.broker.log.compaction_child import Job, compact
from ottla.broker.log.compactor import _ending_later
from ottla.broker.log.config import LogConfig
from ottla.broker.log.disk import RealDisk
from ottla.broker.log.log import Log
from ottla.broker.log.segment import Sizes
from ottla.protocol.batches import Record, records
from tests.unit.broker.log.workbench import Workbench, append, batch_of, contents, fill, transact

CONFIG = LogConfig(segment_bytes=800, index_interval_bytes=150, cleanup_policy=frozenset({"compact"}))


class Stopped(BaseException):
    """Raised where the simulated process stops."""


class StoppingDisk(RealDisk):
    """Lets the process rename, remove or replace a file `after` times, and stops it before it does so once more."""

    def __init__(self, after: int) -> None:
        self.left = after

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Stopped

    def rename(self, source: str, target: str) -> None:
        self._count()
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)

    def write_atomically(self, path: str, data: bytes, *, fsync: bool = True) -> None:
        self._count()
        super().write_atomically(path, data, fsync=fsync)


def everything(log: Log) -> list[Record]:
    return [record for segment in log.segments for _, _, batch in segment.batches() for record in records(batch)]


def committed(log: Log) -> dict[bytes | None, bytes | None]:
    """The last value of each key, for a consumer that reads committed records only."""
    aborted = log.aborted_between(0, log.log_end_offset)
    found = {}
    for segment in log.segments:
        for _, header, batch in segment.batches():
            if header.is_control or any(
                each.producer_id == header.producer_id and each.first_offset <= header.base_offset <= each.last_offset
                for each in aborted
            ):
                continue
            found.update({record.key: record.value for record in records(batch)})
    return found


def table(found: list[Record]) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in found}


def compacted(bench: Workbench) -> tuple[Log, Callable[[], None]]:
    """A log whose compaction has been written, and a function that puts the result in place."""
    log = bench.log(clean=False)
    ends = [segment.base_offset for segment in log.segments[1:]]
    job = Job(
        directory=log.directory,
        segments=[
            [segment.base_offset, end, segment.size, segment.offsets.size_bytes]
            for segment, end in zip(log.segments, ends, strict=False)
        ],
        first_dirty=0,
        end_offset=ends[-1],
        now_ms=bench.now_ms,
        delete_retention_ms=1000,
        segment_bytes=CONFIG.segment_bytes * 2,
        segment_index_bytes=10_000,
        index_interval_bytes=CONFIG.index_interval_bytes,
        aborted=_ending_later(log, ends[-1]),
        producers=[],
        keys_max=1000,
        bytes_per_second=float("inf"),
    )
    result = compact(job, RealDisk(), lambda count: None)

    def swap() -> None:
        for segment in result.segments:
            log.swap_in(segment.old_bases, Sizes(*segment.sizes))

    return log, swap


def source(path: Path) -> Workbench:
    bench = Workbench(path, config=CONFIG)
    log = bench.log()
    for index in range(60):
        append(log, batch_of([b"%d" % index * 9], key=b"%d" % (index * 7 % 25)), epoch=index // 20)
    log.active.write_out()
    return bench


def test_a_compaction_stopped_at_any_step(tmp_path: Path) -> None:
    original = source(tmp_path / "source")
    before = table(everything(original.log(clean=False)))
    end = original.log(clean=False).log_end_offset
    for after in range(200):
        target = tmp_path / "t-0"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(original.path, target)
        bench = Workbench(target, config=CONFIG)
        bench.disk = disk = StoppingDisk(10**9)
        bench.services.disk = disk
        _, swap = compacted(bench)
        disk.left = after
        try:
            swap()
        except Stopped:
            stopped = True
        else:
            stopped = False
        for again in range(3):  # the first two restarts are stopped as well
            restarted = Workbench(target, config=CONFIG)
            if again < 2:
                restarted.services.disk = StoppingDisk(again * 3)
            try:
                opened = restarted.open(clean=False, recovery_point=end)
            except Stopped:
                continue
            break
        assert opened.damage is None
        assert opened.log.log_end_offset == end
        assert table(everything(opened.log)) == before
        assert contents(opened.log)[-1][0] == end - 1
        assert not restarted.files(".swap", ".cleaned", ".deleted")
        for segment in opened.log.segments:
            for entry in segment.offsets.entries():
                header = segment.header_at(entry.position)
                assert header is not None
                assert header.last_offset == entry.offset
        if not stopped:
            assert after > 20
            return
    pytest.fail("the swap never ended")


def test_a_compaction_of_aborted_transactions_stopped_at_any_step(tmp_path: Path) -> None:
    """Where the new segment came without its transaction index, or with the index of a segment that it replaces, a
    consumer would see aborted records."""
    original = Workbench(tmp_path / "source", config=CONFIG)
    log = original.log()
    for index in range(30):
        transact(log, 7 + index % 2, index // 2, committed=index % 3 == 0, key=b"%d" % (index % 5))
    log.active.write_out()
    before = committed(log)
    assert set(before.values()) == {b"committed"}
    end = log.log_end_offset
    for after in range(200):
        target = tmp_path / "t-0"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(original.path, target)
        bench = Workbench(target, config=CONFIG)
        bench.services.disk = disk = StoppingDisk(10**9)
        bench.disk = disk
        held, swap = compacted(bench)
        disk.left = after
        try:
            swap()
        except Stopped:
            opened = Workbench(target, config=CONFIG).open(clean=False, recovery_point=end)
            assert opened.damage is None
            assert committed(opened.log) == before
            assert not bench.files(".swap", ".cleaned", ".deleted")
            continue
        assert committed(held) == before
        assert after > 20
        return
    pytest.fail("the swap never ended")


def test_a_roll_or_truncation_stopped_at_any_step(tmp_path: Path) -> None:
    original = source(tmp_path / "source")
    before = contents(original.log(clean=False))
    changes: list[Callable[[Log], object]] = [
        lambda log: log.roll(),
        lambda log: log.truncate_to(20),
        lambda log: fill(log, 30),
    ]
    for change in changes:
        for after in range(40):
            target = tmp_path / "t-0"
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(original.path, target)
            bench = Workbench(target, config=CONFIG)
            log = bench.log(clean=False)
            bench.services.disk = StoppingDisk(after)
            try:
                change(log)
            except Stopped:
                stopped = True
            else:
                stopped = False
            opened = Workbench(target, config=CONFIG).open(clean=False)
            assert opened.damage is None or opened.log.log_end_offset >= 20
            found = contents(opened.log)
            assert found[: min(len(found), len(before))] == before[: len(found)]
            assert [offset for offset, _ in found] == list(range(opened.log.log_end_offset))
            assert len(found) >= 20
            if not stopped:
                break
        else:
            pytest.fail("the change never ended")
