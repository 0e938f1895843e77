"""The upkeep of a log with many segments or producers doesn't block the event loop: the work in each iteration of the
loop (turn) is measured."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ottla.broker.log import compactor as compactor_module
from ottla.broker.log.compaction_child import Job, decode_job, encode_job
from ottla.broker.log.compactor import CompactionLimits, Compactor
from ottla.broker.log.config import LogConfig
from ottla.broker.log.directories import LogDirectories
from ottla.broker.log.disk import RealDisk
from ottla.broker.log.log import Log
from ottla.broker.log.producers import FrozenProducers, Producers
from ottla.broker.log.segment import Segment
from ottla.broker.log.upkeep import Upkeep, UpkeepIntervals
from ottla.protocol.batches import BatchHeader
from tests.unit.broker.log.workbench import ALONE, append, batch_of

NOW_MS = 1_000_000_000
CONFIG = LogConfig(segment_bytes=100, retention_ms=-1)


class CountingDisk(RealDisk):
    renames = 0

    def rename(self, source: str, target: str) -> None:
        self.renames += 1
        super().rename(source, target)


@pytest.fixture
def disk() -> CountingDisk:
    return CountingDisk()


@pytest.fixture
def log(tmp_path: Path, disk: CountingDisk) -> Iterator[tuple[LogDirectories, Log]]:
    logs = LogDirectories([str(tmp_path / "data")], lambda: NOW_MS, ALONE, disk=disk)
    logs.open("c", 1, lambda topic: CONFIG)
    log = logs.open_or_create("t", 0, UUID(int=1), CONFIG)
    yield logs, log
    logs.close()


def work_per_turn(
    upkeep: Callable[[], Coroutine[Any, Any, None]],
    work: Callable[[], int],
    meanwhile: Callable[[], None] = lambda: None,
) -> list[int]:
    """The work done in each turn of the event loop."""

    async def scene() -> list[int]:
        duty = asyncio.ensure_future(upkeep())
        done, turns = work(), []
        while not duty.done():
            await asyncio.sleep(0)
            turns.append(work() - done)
            done = work()
            meanwhile()
        await duty
        return turns

    return asyncio.run(scene())


def test_retention_of_many_segments_takes_many_turns(log: tuple[LogDirectories, Log], disk: CountingDisk) -> None:
    logs, many = log
    for number in range(300):
        append(many, batch_of([b"%d" % number * 20]))
    assert len(many.segments) > 250
    many.config = replace(CONFIG, retention_bytes=0)
    turns = work_per_turn(Upkeep(logs, lambda: NOW_MS, UpkeepIntervals()).retain, lambda: disk.renames)
    assert sum(turns) >= 3 * 299
    assert max(turns) <= 4 * 20
    assert len(many.segments) == 1


COMPACTED = replace(CONFIG, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0, segment_bytes=200)


def many_segments(logs: LogDirectories) -> Log:
    """A log that a compaction makes much smaller."""
    many = logs.open_or_create("compacted", 0, UUID(int=2), COMPACTED)
    for number in range(300):
        append(many, batch_of([b"%d" % number * 20]))
    assert len(many.segments) > 250
    many.config = replace(COMPACTED, segment_bytes=1 << 20)
    return many


def compaction(logs: LogDirectories, log: Log) -> Callable[[], Coroutine[None, None, None]]:
    compactor = Compactor(logs, lambda: NOW_MS, CompactionLimits())

    async def compact() -> None:
        await compactor.compact(log, compactor.cleanable(log))

    return compact


def test_a_compaction_of_many_segments_puts_them_in_place_in_many_turns(
    log: tuple[LogDirectories, Log], disk: CountingDisk
) -> None:
    logs, _ = log
    many = many_segments(logs)
    turns = work_per_turn(compaction(logs, many), lambda: disk.renames)
    assert len(many.segments) < 30
    assert sum(turns) >= 3 * 250
    assert max(turns) <= 4 * (20 + 2)


def test_a_compaction_goes_no_further_after_a_truncation_between_two_turns(
    log: tuple[LogDirectories, Log], disk: CountingDisk
) -> None:
    logs, _ = log
    many = many_segments(logs)
    before = disk.renames

    def truncate() -> None:
        if disk.renames > before and many.log_end_offset == 300:
            many.truncate_to(200)

    work_per_turn(compaction(logs, many), lambda: 0, truncate)
    assert many.log_end_offset == 200
    assert many.compacted_to == 0, "the log will be compacted again"
    assert many.segments[0].base_offset == 0
    assert append(many, batch_of([b"x"])) == 200
    assert not list(Path(many.directory).glob("*.cleaned"))
    assert not list(Path(many.directory).glob("*.swap"))


def with_producers(logs: LogDirectories, count: int) -> Log:
    """A log to compact, to which this number of producers has written."""
    log = many_segments(logs)
    for producer in range(count):
        log.producers.update(BatchHeader(0, 49, 0, 2, 0, 0, 0, 0, 0, producer, 0, 0, 1), producer, NOW_MS)
    return log


def test_the_producers_of_a_compacted_log_are_looked_at_in_no_turn(
    log: tuple[LogDirectories, Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the fix, the event loop itself listed and wrote the producers: 100,000 producers blocked it for 385 ms."""
    logs, _ = log
    many = with_producers(logs, 2_000)
    looked_at: dict[int, int] = {}  # thread → the number of producers that it has read
    items = FrozenProducers.items

    def counted(producers: FrozenProducers) -> Iterator[Any]:
        for item in items(producers):
            thread = threading.get_ident()
            looked_at[thread] = looked_at.get(thread, 0) + 1
            yield item

    monkeypatch.setattr(FrozenProducers, "items", counted)
    work_per_turn(compaction(logs, many), lambda: 0)
    assert many.compacted_to > 0
    assert sum(looked_at.values()) == 2_000
    assert threading.get_ident() not in looked_at


def test_a_compaction_of_many_producers_log_has_no_turn_of_much_work(log: tuple[LogDirectories, Log]) -> None:
    """The work is measured by the CPU time of the event loop's thread, to which other processes add nothing."""
    logs, _ = log
    many = with_producers(logs, 50_000)
    began = time.thread_time()
    many.producers.snapshot()
    snapshot_s = time.thread_time() - began
    turns: list[float] = []
    ended = time.thread_time()

    def turned() -> None:
        nonlocal ended
        now = time.thread_time()
        turns.append(now - ended)
        ended = now

    work_per_turn(compaction(logs, many), lambda: 0, turned)
    assert many.compacted_to > 0
    assert max(turns) < snapshot_s


def test_a_job_of_many_producers_is_written_down_while_the_loop_turns(
    log: tuple[LogDirectories, Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread lets the event loop run after each piece of the JSON. Encoding the JSON of all producers in one call
    would hold the interpreter lock until the call's end.
    """
    logs, _ = log
    many = with_producers(logs, 20_000)
    sizes: list[int] = []
    turns_at: list[int] = []
    turns = 0

    def noted(job: Job) -> Iterator[bytes]:
        for line in encode_job(job):
            sizes.append(len(line))
            turns_at.append(turns)
            yield line

    def turned() -> None:
        nonlocal turns
        turns += 1

    monkeypatch.setattr(compactor_module, "encode_job", noted)
    work_per_turn(compaction(logs, many), lambda: 0, turned)
    assert max(sizes[1:]) < 25_000
    assert len(set(turns_at)) > 10


def test_a_child_is_told_of_the_producers_as_they_were(log: tuple[LogDirectories, Log]) -> None:
    logs, _ = log
    many = with_producers(logs, 2_500)
    compactor = Compactor(logs, lambda: NOW_MS, CompactionLimits())
    job = compactor._job(many, compactor.cleanable(many))
    many.producers.update(BatchHeader(0, 49, 0, 2, 0, 0, 0, 0, 0, 7, 3, 0, 1), 9_000, NOW_MS)
    many.producers.update(BatchHeader(0, 49, 0, 2, 0, 0, 0, 0, 0, 2_500, 0, 0, 1), 9_001, NOW_MS)
    told = decode_job(b"".join(encode_job(job)))
    assert list(told.producers) == [[producer, producer, 0] for producer in range(2_500)]
    assert told.segments == job.segments
    assert (told.directory, told.end_offset, told.bytes_per_second) == (
        many.directory,
        many.active.base_offset,
        float("inf"),
    )


def test_retention_goes_on_after_a_truncation_between_two_turns(log: tuple[LogDirectories, Log]) -> None:
    logs, many = log
    for number in range(200):
        append(many, batch_of([b"%d" % number * 20]))
    many.config = replace(CONFIG, retention_bytes=0)
    cuts = iter([150, 120])

    def truncate() -> None:
        offset = next(cuts, None)
        if offset is not None:
            many.truncate_to(offset)

    work_per_turn(Upkeep(logs, lambda: NOW_MS, UpkeepIntervals()).retain, lambda: 0, truncate)
    assert many.log_end_offset == 120
    assert many.log_start_offset == 120
    assert append(many, batch_of([b"x"])) == 120


def test_retention_asks_no_segment_that_stays_for_its_age(
    log: tuple[LogDirectories, Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart a segment's age is read from its time index, which is a read from the disk for each segment."""
    logs, many = log
    for number in range(200):
        append(many, batch_of([b"%d" % number * 20], timestamp=NOW_MS))
    many.config = replace(CONFIG, retention_ms=1_000)
    asked: list[int] = []
    largest = Segment.largest

    def counted(segment: Segment) -> Any:
        asked.append(segment.base_offset)
        return largest(segment)

    monkeypatch.setattr(Segment, "largest", counted)
    asyncio.run(Upkeep(logs, lambda: NOW_MS, UpkeepIntervals()).retain())
    assert len(asked) <= 1


def test_many_producers_expire_in_many_turns(log: tuple[LogDirectories, Log], monkeypatch: pytest.MonkeyPatch) -> None:
    logs, many = log
    for producer in range(30_000):
        many.producers.update(BatchHeader(0, 49, 0, 2, 0, 0, 0, 0, 0, producer, 0, 0, 1), producer, 1_000)
    sizes: list[int] = []
    expire = Producers.expire

    def counted(self: Producers, now_ms: int, expiration_ms: int, among: Iterable[int] | None = None) -> int:
        assert among is not None
        sizes.append(len(list(among)))
        return expire(self, now_ms, expiration_ms, among)

    monkeypatch.setattr(Producers, "expire", counted)
    turns = work_per_turn(
        Upkeep(logs, lambda: NOW_MS, UpkeepIntervals()).expire_producers, lambda: 30_000 - len(many.producers)
    )
    assert len(many.producers) == 0
    assert max(turns) <= 5_000
    assert sum(sizes) == 30_000
