"""Compaction, compared with a dictionary: the last value of each key never changes, and few other records stay."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.broker.log import compaction
from ottla.broker.log import compactor as compactor_module
from ottla.broker.log.compaction import (
    Cleaning,
    SegmentSizes,
    Throttle,
    cleanable,
    filtered,
    grouped,
    note_keys,
)
from ottla.broker.log.compaction_child import Damaged, Job, compact
from ottla.broker.log.compactor import CompactionFailed, CompactionLimits, Compactor
from ottla.broker.log.config import MAX_LONG, LogConfig
from ottla.broker.log.directories import LogDirectories
from ottla.broker.log.disk import RealDisk
from ottla.broker.log.log import Log
from ottla.broker.log.segment import Sizes
from ottla.protocol.batches import Record, assign, build_batch, iterate_headers, read_header, records
from ottla.protocol.codecs import Codec
from tests.unit.broker.log.workbench import ALONE, Workbench
from tests.unit.examples import examples

HORIZON = 1000
CONFIG = LogConfig(
    segment_bytes=900,
    index_interval_bytes=150,
    cleanup_policy=frozenset({"compact"}),
    delete_retention_ms=HORIZON,
    min_cleanable_dirty_ratio=0.0,
    file_delete_delay_ms=0,
    producer_id_expiration_ms=MAX_LONG,
)
Content = list[tuple[bytes, bytes | None, int]]  # key, value, time
Batch = tuple[Content, int, int | None]  # content, codec, producer
Rounds = list[tuple[list[Batch], int, int, bool]]  # batches, pause, keys in the map, restart
items = st.tuples(
    st.sampled_from([b"a", b"b", b"c", b"long key " * 9]), st.none() | st.binary(max_size=40), st.integers(0, 50)
)
batches = st.tuples(st.lists(items, min_size=1, max_size=5), st.sampled_from(Codec), st.sampled_from([None, 7, 8]))


def everything(log: Log) -> list[Record]:
    found: list[Record] = []
    for segment in log.segments:
        for _, _, batch in segment.batches():
            found.extend(records(batch))
    return found


def table(found: list[Record]) -> dict[bytes | None, bytes]:
    """The last value of each key, as for a reader of the whole log."""
    state: dict[bytes | None, bytes] = {}
    for record in found:
        if record.value is None:
            state.pop(record.key, None)
        else:
            state[record.key] = record.value
    return state


class Compacted:
    """A log that is appended to and compacted by turns, without a child process."""

    def __init__(self, path: Path) -> None:
        self.bench = Workbench(path, config=CONFIG, now_ms=1_000_000)
        self.log = self.bench.log()
        self.first_dirty = 0
        self.sequences: dict[int, int] = {}

    def append(self, content: Content, codec: int, producer: int | None) -> None:
        base = self.log.log_end_offset
        made = [
            Record(base + index, 5000 + time, key, value, [("h", b"x")])
            for index, (key, value, time) in enumerate(content)
        ]
        sequence = self.sequences.get(producer, 0) if producer is not None else -1
        batch = bytearray(
            build_batch(
                made,
                base_offset=base,
                codec=codec,
                producer_id=-1 if producer is None else producer,
                producer_epoch=0 if producer is not None else -1,
                base_sequence=sequence,
            )
        )
        if producer is not None:
            self.sequences[producer] = sequence + len(made)
        assign(batch, 0, base, 0)
        self.log.append(batch, read_header(batch), base, 0)

    def compact(self, keys_max: int = 1000) -> None:
        ends = [segment.base_offset for segment in self.log.segments[1:]]
        if not ends or ends[-1] <= self.first_dirty:
            return
        job = Job(
            directory=self.log.directory,
            segments=[
                [segment.base_offset, end, segment.size, segment.offsets.size_bytes]
                for segment, end in zip(self.log.segments, ends, strict=False)
            ],
            first_dirty=self.first_dirty,
            end_offset=ends[-1],
            now_ms=self.bench.now_ms,
            delete_retention_ms=HORIZON,
            segment_bytes=CONFIG.segment_bytes,
            segment_index_bytes=CONFIG.segment_index_bytes,
            index_interval_bytes=CONFIG.index_interval_bytes,
            aborted=[],
            producers=[[key, entry.last_offset, entry.epoch] for key, entry in self.log.producers.items()],
            keys_max=keys_max,
            bytes_per_second=float("inf"),
        )
        result = compact(job, RealDisk(), lambda count: None)
        for segment in result.segments:
            self.log.swap_in(segment.old_bases, Sizes(*segment.sizes))
        self.first_dirty = result.end_offset
        self.bench.sweep()


@given(
    rounds=st.lists(
        st.tuples(st.lists(batches, max_size=25), st.integers(0, 2 * HORIZON), st.integers(1, 6), st.booleans()),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=examples(60), deadline=None)
def test_a_reader_ends_up_with_the_same(
    rounds: Rounds,
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        check(Path(directory) / "t-0", rounds)


def check(
    path: Path,
    rounds: Rounds,
) -> None:
    it = Compacted(path)
    written: dict[int, Record] = {}
    for content, pause, keys_max, restart in rounds:
        for batch in content:
            before = it.log.log_end_offset
            it.append(*batch)
            for record in everything(it.log):
                if record.offset >= before:
                    written[record.offset] = record
        end = it.log.log_end_offset
        it.compact(keys_max)
        if restart:
            it.log = it.bench.log(clean=False)
        left = everything(it.log)
        assert it.log.log_end_offset == end
        assert [record.offset for record in left] == sorted(record.offset for record in left)
        for record in left:
            assert record == written[record.offset]
        assert table(left) == table(list(written.values()))
        keys = [record.key for record in left if record.offset < it.first_dirty]
        assert len(keys) == len(set(keys))
        assert [record.offset for record in left if record.offset >= it.first_dirty] == [
            offset for offset in written if offset >= it.first_dirty
        ]
        for producer, sequence in it.sequences.items():
            entry = it.log.producers.get(producer)
            assert entry is not None
            assert entry.last_sequence == sequence - 1
        it.bench.now_ms += pause
    assert it.bench.open(clean=False).damage is None


def test_the_oracle_notices_a_compaction_that_keeps_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def first_only(cleaning: Cleaning, batch: bytes, header: object) -> None:
        known = dict(cleaning.latest)
        note_keys(cleaning, batch, read_header(batch))
        cleaning.latest.update(known)

    monkeypatch.setattr("ottla.broker.log.compaction_child.note_keys", first_only)
    content: list[Batch] = [([(b"a", b"%d" % index * 50, 0)], 0, None) for index in range(40)]
    with pytest.raises(AssertionError):
        check(tmp_path / "t-0", [(content, 0, 100, False)])


def test_the_oracle_notices_lost_sequences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "_header_stays", lambda cleaning, header: False)
    content: list[Batch] = [([(b"a", b"x" * 300, 0)], 0, 7)]
    content += [([(b"a", b"%d" % index * 50, 0)], 0, None) for index in range(40)]
    with pytest.raises(AssertionError):
        check(tmp_path / "t-0", [(content, 0, 100, True)])


# ---- single batches


def batch_of(values: list[bytes | None], **more: int) -> bytes:
    made = [Record(10 + index, 500 + index, b"k%d" % index, value) for index, value in enumerate(values)]
    return build_batch(made, base_offset=10, **more)  # type: ignore[arg-type]


def cleaned(cleaning: Cleaning, batch: bytes) -> bytes | None:
    kept = filtered(cleaning, batch, read_header(batch))
    return None if kept is None else bytes(kept)


def test_a_tombstone_is_stamped_kept_and_then_dropped() -> None:
    batch = batch_of([b"v", None], codec=Codec.lz4)
    cleaning = Cleaning(now_ms=9000, delete_retention_ms=HORIZON, end_offset=50)
    stamped = cleaned(cleaning, batch)
    assert stamped is not None
    assert read_header(stamped).delete_horizon == 10_000
    assert list(records(stamped)) == list(records(batch))
    later = Cleaning(now_ms=9999, delete_retention_ms=HORIZON, end_offset=50)
    assert cleaned(later, stamped) == stamped
    after = cleaned(Cleaning(now_ms=10_000, delete_retention_ms=HORIZON, end_offset=50), stamped)
    assert after is not None
    assert [record.value for record in records(after)] == [b"v"]
    assert read_header(after).last_offset == 11


def test_a_batch_that_unpacks_too_large_stays_and_takes_nothing_away() -> None:
    batch = batch_of([b"v" * 4000, b"w"], codec=Codec.zstd)
    cleaning = Cleaning(0, HORIZON, unpacked_bytes_max=2000)
    note_keys(cleaning, batch, read_header(batch))
    assert cleaning.end_offset == 12
    assert cleaning.latest == {}, "the batch's records supersede no others"
    cleaning.latest[b"k0"] = 40
    cleaning.end_offset = 50
    assert cleaned(cleaning, batch) == batch
    assert cleaning.too_large == 1


def test_what_a_tombstone_deletes_in_a_batch_that_is_too_large_does_not_come_back() -> None:
    tombstone = build_batch([Record(20, 500, b"k0", None)], base_offset=20)
    marked = cleaned(Cleaning(0, HORIZON, end_offset=50), tombstone)
    assert marked is not None
    large = batch_of([b"v" * 4000], codec=Codec.zstd)
    long_after = Cleaning(1 << 40, HORIZON, end_offset=50, latest={b"k0": 20}, unpacked_bytes_max=2000)
    assert cleaned(long_after, marked) is None, "the log has no older record of the key"
    assert cleaned(long_after, large) == large
    assert cleaned(long_after, marked) == marked


def test_a_compaction_goes_on_behind_a_batch_that_is_too_large(logs: LogDirectories) -> None:
    log = logs.open_or_create("t", 0, UUID(int=1), CONFIG)
    overwrite(log, 50)
    large = bytearray(build_batch([Record(0, 0, b"large", bytes(129 << 20))], codec=Codec.zstd))
    assign(large, 0, log.log_end_offset, 0)
    log.append(large, read_header(large), log.log_end_offset, 0)
    overwrite(log, 50)
    offset, size = 50, log.size
    compactor = Compactor(logs, lambda: 1_000_000, CompactionLimits())
    asyncio.run(compactor.compact(log, compactor.cleanable(log)))
    assert log.compacted_to > 60
    assert log.size < size
    assert compactor.too_large == 1
    assert compactor.uncleanable() == []
    kept = [batch for segment in log.segments for _, header, batch in segment.batches() if header.base_offset == offset]
    assert [bytes(batch) for batch in kept] == [bytes(large)]


def test_records_without_a_key_go() -> None:
    batch = build_batch([Record(0, 0, None, b"v")])
    assert cleaned(Cleaning(0, HORIZON, end_offset=50), batch) is None


def test_the_last_batch_of_the_round_and_a_producers_last_stay_empty() -> None:
    batch = batch_of([b"v", b"w"], producer_id=4, producer_epoch=2, base_sequence=8, codec=Codec.gzip)
    latest = {b"k0": 40, b"k1": 40}
    for cleaning in (
        Cleaning(0, HORIZON, end_offset=12, latest=dict.fromkeys(latest, 11)),
        Cleaning(0, HORIZON, end_offset=50, latest=latest, producers={4: (11, 2)}),
    ):
        if cleaning.end_offset == 12:
            cleaning.latest[b"k1"] = 12
            cleaning.latest[b"k0"] = 12
        kept = cleaned(cleaning, batch)
        assert kept is not None
        header = read_header(kept)
        assert (len(kept), header.count, header.codec) == (61, 0, 0)
        assert (header.base_offset, header.last_offset, header.last_sequence) == (10, 11, 9)
        assert list(records(kept)) == []
    assert cleaned(Cleaning(0, HORIZON, end_offset=50, latest=latest, producers={4: (30, 2)}), batch) is None


# ---- choosing


def segments(*sizes: int, stamps: list[int] | None = None) -> list[SegmentSizes]:
    return [
        SegmentSizes(index * 10, index * 10 + 10, size, 8, stamps[index] if stamps else -1)
        for index, size in enumerate(sizes)
    ]


def test_what_is_cleanable() -> None:
    common = {"now_ms": 1000, "min_lag_ms": 0, "max_lag_ms": MAX_LONG}
    found = cleanable(segments(100, 100, 200, 50), first_dirty=10, stable_offset=40, **common)
    assert found == (10, 30, 300 / 400, False)
    assert cleanable(segments(100, 100, 200, 50), first_dirty=0, stable_offset=25, **common).end_offset == 20
    assert cleanable(segments(100), first_dirty=0, stable_offset=10, **common).end_offset == 0
    aged = segments(100, 100, 100, 100, stamps=[100, 500, 900, 950])
    assert cleanable(aged, first_dirty=0, stable_offset=40, **{**common, "min_lag_ms": 500}).end_offset == 20
    assert cleanable(aged, first_dirty=0, stable_offset=40, **{**common, "max_lag_ms": 899}).overdue
    assert not cleanable(aged, first_dirty=10, stable_offset=40, **{**common, "max_lag_ms": 899}).overdue


def test_small_neighbours_share_a_segment() -> None:
    groups = grouped(segments(10, 20, 80, 5, 5), segment_bytes=100, segment_index_bytes=1000)
    assert [[item.base_offset for item in group] for group in groups] == [[0, 10], [20, 30, 40]]
    assert len(grouped(segments(1, 1, 1), segment_bytes=100, segment_index_bytes=16)) == 2
    far = [SegmentSizes(0, 10, 1, 0, -1), SegmentSizes(10, 2**31 + 5, 1, 0, -1)]
    assert len(grouped(far, segment_bytes=100, segment_index_bytes=16)) == 2


def test_the_throttle_keeps_its_rate() -> None:
    throttle, now = Throttle(1000), 0.0
    for _ in range(100):
        now += throttle.wait_seconds(100, now)
    assert 9.5 < now <= 10


# ---- with the child process


@pytest.fixture
def logs(tmp_path: Path) -> LogDirectories:
    logs = LogDirectories([str(tmp_path / "data")], lambda: 1_000_000, ALONE)
    logs.open("c", 1, lambda topic: CONFIG)
    return logs


def overwrite(log: Log, count: int) -> None:
    for index in range(count):
        base = log.log_end_offset
        batch = bytearray(build_batch([Record(base, 0, b"%d" % (index % 5), b"v%d" % index)], base_offset=base))
        log.append(batch, read_header(batch), base, 0)


def test_the_compactor_compacts_and_remembers(logs: LogDirectories) -> None:
    log = logs.open_or_create("t", 0, UUID(int=1), CONFIG)
    overwrite(log, 100)
    before, size = table(everything(log)), log.size
    compactor = Compactor(logs, lambda: 1_000_000, CompactionLimits())

    async def once() -> bool:
        chosen, what = await compactor.choose()
        if chosen is None or what is None:
            return False
        await compactor.compact(chosen, what)
        return True

    assert asyncio.run(once())
    assert log.size < size
    assert table(everything(log)) == before
    assert not asyncio.run(once())
    logs.close()
    home = logs.directory_of(log)
    assert (Path(home) / "cleaner-offset-checkpoint").read_text().splitlines()[2] == f"t 0 {log.compacted_to}"
    again = LogDirectories([home], lambda: 1_000_000, ALONE)
    again.open("c", 1, lambda topic: CONFIG)
    assert asyncio.run(Compactor(again, lambda: 1_000_000, CompactionLimits()).choose()) == (None, None)
    reopened = again.logs[UUID(int=1), 0]
    assert table(everything(reopened)) == before
    assert reopened.compacted_to == log.compacted_to > 10
    reopened.truncate_to(10)
    assert reopened.compacted_to <= 10


def test_a_log_that_was_truncated_meanwhile_keeps_what_it_has(
    logs: LogDirectories, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logs.open_or_create("t", 0, UUID(int=1), CONFIG)
    overwrite(log, 100)
    compactor = Compactor(logs, lambda: 1_000_000, CompactionLimits())
    in_child = compactor._in_child

    async def truncating(job: Job) -> object:
        result = await in_child(job)
        log.truncate_to(30)
        return result

    monkeypatch.setattr(compactor, "_in_child", truncating)
    asyncio.run(compactor.compact(log, compactor.cleanable(log)))
    assert [record.offset for record in everything(log)] == list(range(30))
    assert not list(Path(log.directory).glob("*.cleaned"))


def test_a_log_that_is_truncated_while_its_directory_is_synced_is_compacted_no_further(
    logs: LogDirectories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets behind the truncation don't count as compacted, because the records that are appended there later weren't
    compacted. If they did, a tombstone among them would be removed while older values of its key remain: the deleted
    key would be back."""
    log = logs.open_or_create("t", 0, UUID(int=1), CONFIG)
    overwrite(log, 100)
    compactor = Compactor(logs, lambda: 1_000_000, CompactionLimits())
    sync = logs.disk.fsync_directory

    def truncating(path: str) -> None:
        sync(path)
        log.truncate_to(30)

    monkeypatch.setattr(logs.disk, "fsync_directory", truncating)
    asyncio.run(compactor.compact(log, compactor.cleanable(log)))
    assert log.compacted_to <= log.log_end_offset == 30


def test_what_retention_left_of_a_group_is_compacted_by_the_next_round(
    logs: LogDirectories, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logs.open_or_create("t", 0, UUID(int=1), CONFIG)
    overwrite(log, 100)
    # one segment then has room for the records of several segments
    wide = replace(CONFIG, segment_bytes=10 * CONFIG.segment_bytes)
    log.config = wide
    compactor = Compactor(logs, lambda: 1_000_000, CompactionLimits())
    in_child = compactor._in_child

    async def shortening(job: Job) -> object:
        result = await in_child(job)
        assert len(result.segments[0].old_bases) > 1
        log.delete_records_before(log.segments[1].base_offset)
        log.config = replace(wide, cleanup_policy=frozenset({"compact", "delete"}))
        assert log.retention(1_000_000, log.log_end_offset)
        return result

    monkeypatch.setattr(compactor, "_in_child", shortening)
    asyncio.run(compactor.compact(log, compactor.cleanable(log)))
    assert log.compacted_to == 0
    monkeypatch.setattr(compactor, "_in_child", in_child)
    asyncio.run(compactor.compact(log, compactor.cleanable(log)))
    assert log.compacted_to == log.active.base_offset
    compacted = [record for record in everything(log) if record.offset < log.compacted_to]
    assert len({record.key for record in compacted}) == len(compacted)


class Started(list[subprocess.Popen[bytes]]):
    """The processes that were started for compactions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        start = subprocess.Popen

        def noted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
            process = start(*arguments, **options)
            self.append(process)
            return process

        monkeypatch.setattr(compactor_module.subprocess, "Popen", noted)


def test_a_compaction_that_is_cancelled_ends_its_process(logs: LogDirectories, monkeypatch: pytest.MonkeyPatch) -> None:
    log = logs.open_or_create("t", 0, UUID(int=1), CONFIG)
    overwrite(log, 100)
    started = Started(monkeypatch)
    compactor = Compactor(logs, lambda: 1_000_000, CompactionLimits(bytes_per_second=1))

    async def cancelled() -> None:
        compaction = asyncio.create_task(compactor.compact(log, compactor.cleanable(log)))
        ours = os.getpriority(os.PRIO_PROCESS, 0)
        async with asyncio.timeout(10):
            while not started or os.getpriority(os.PRIO_PROCESS, started[0].pid) <= ours:  # noqa: ASYNC110 — has no event
                await asyncio.sleep(0.01)
        compaction.cancel()
        with pytest.raises(asyncio.CancelledError):
            await compaction
        assert [process.returncode for process in started] == [-signal.SIGKILL]

    asyncio.run(cancelled())
    assert log.compacted_to == 0


def test_a_compaction_that_is_given_up_before_it_starts_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started(monkeypatch)
    child = compactor_module._Child()
    child.give_up()
    with pytest.raises(CompactionFailed):
        child.run([])
    assert not started


def test_a_compaction_that_is_given_up_while_its_job_is_written_down_starts_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job may have many producers. Once the compaction is given up, the producers that are left aren't written."""
    started = Started(monkeypatch)
    child = compactor_module._Child()

    def lines() -> Iterator[bytes]:
        yield b"{}\n"
        child.give_up()
        yield b"[]\n"
        pytest.fail("more of the job was written after `give_up`")

    with pytest.raises(CompactionFailed):
        child.run(lines())
    assert not started


def test_a_process_whose_priority_can_not_be_lowered_compacts(
    logs: LogDirectories, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: int) -> None:
        raise PermissionError

    log = logs.open_or_create("t", 0, UUID(int=1), CONFIG)
    overwrite(log, 100)
    monkeypatch.setattr(compactor_module.os, "setpriority", refused)
    compactor = Compactor(logs, lambda: 1_000_000, CompactionLimits())
    asyncio.run(compactor.compact(log, compactor.cleanable(log)))
    assert log.compacted_to > 10


def test_a_damaged_log_is_said_and_left(logs: LogDirectories) -> None:
    log = logs.open_or_create("t", 0, UUID(int=1), CONFIG)
    overwrite(log, 100)
    log.segments[1].file.pwrite(b"?", 70)
    compactor = Compactor(logs, lambda: 1_000_000, CompactionLimits())
    with pytest.raises(Damaged, match="wrong CRC"):
        asyncio.run(compactor.compact(log, compactor.cleanable(log)))
    assert not list(Path(log.directory).glob("*.cleaned*"))


def test_the_policy_may_be_both(tmp_path: Path) -> None:
    config = replace(CONFIG, cleanup_policy=frozenset({"compact", "delete"}), retention_bytes=0)
    bench = Workbench(tmp_path / "t-0", config=config)
    log = bench.log()
    overwrite(log, 60)
    assert log.retention(bench.now_ms, log.log_end_offset)
    assert [header for _, header in iterate_headers(log.read_bytes(60, 1000, 60))] == []
