"""A log, compared with a list of records: appends, reads, rolls, truncation, retention, timestamps, flushes."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ottla.broker.log.config import LogConfig
from ottla.broker.log.disk import File, RealDisk, RealFile
from ottla.broker.log.epochs import load
from ottla.broker.log.log import Log
from ottla.protocol.batches import assign, iterate_headers, read_header
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.unit.broker.log.workbench import Workbench, append, batch_of, contents, fill
from tests.unit.examples import examples


def test_what_was_appended_is_read(tmp_path: Path) -> None:
    log = Workbench(tmp_path).log()
    fill(log, 300)
    assert len(log.segments) > 3
    found = contents(log)
    assert [offset for offset, _ in found] == list(range(log.log_end_offset))
    assert found[0][1] == b"0-0" + bytes(20)
    for start in range(0, log.log_end_offset, 7):
        assert contents(log, start) == found[start:]


def test_reads_obey_their_bounds(tmp_path: Path) -> None:
    log = Workbench(tmp_path).log()
    fill(log, 50)
    assert log.read(0, 1, log.log_end_offset, minimum_one=False) == []
    [first] = log.read(0, 1, log.log_end_offset)
    assert first.size == read_header(first.file.pread(61, first.position)).size
    for limit in (1, 3, 6, 7, 9, 12):
        data = log.read_bytes(0, 1 << 20, limit)
        assert [header.last_offset + 1 for _, header in iterate_headers(data)][-1] == limit
    assert log.read(log.log_end_offset, 1000, log.log_end_offset) == []


def test_a_range_outlives_its_segment(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, config=LogConfig(segment_bytes=1000, retention_bytes=0, file_delete_delay_ms=0))
    log = bench.log()
    fill(log, 100)
    [part] = log.read(0, 500, log.log_end_offset)
    before = part.file.pread(part.size, part.position)
    assert log.retention(bench.now_ms, log.log_end_offset)
    bench.sweep()
    assert not (tmp_path / f"{0:020d}.log").exists()
    assert part.file.pread(part.size, part.position) == before


def test_few_files_stay_open(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, open_files=2)
    log = bench.log()
    fill(log, 300)
    assert len(contents(log)) == log.log_end_offset
    assert sum(segment._file is not None for segment in log.segments) <= 2


class FullDisk(RealDisk):
    """While `full`, writes only the beginning of the data, and then fails."""

    full = False

    def open(self, path: str, *, create: bool = False) -> File:
        outer = self

        class Failing(RealFile):
            __slots__ = ()

            def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
                if outer.full:
                    super().pwrite(memoryview(data)[:30], position)
                    raise OSError(errno.ENOSPC, "No space left on device")
                super().pwrite(data, position)

        file = super().open(path, create=create)
        return Failing(os.dup(file.fileno()))


def test_a_failed_write_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    disk = FullDisk()
    bench = Workbench(tmp_path, disk=disk)
    log = bench.log()
    fill(log, 30)
    before, end = contents(log), log.log_end_offset
    disk.full = True
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            append(log, batch_of([b"lost"], producer=(9, 0, 0)))
    assert contents(log) == before
    assert log.producers.get(9) is None
    disk.full = False
    assert append(log, batch_of([b"kept"])) == end
    assert contents(log)[-1] == (end, b"kept")
    log.close()
    assert contents(bench.log()) == [*before, (end, b"kept")]


class StuckDisk(RealDisk):
    """Fails every `period`th call that writes."""

    def __init__(self, period: int, code: int) -> None:
        self.period = period
        self.code = code
        self.calls = 0

    def _call(self) -> None:
        self.calls += 1
        if self.period and self.calls % self.period == 0:
            raise OSError(self.code, os.strerror(self.code))

    def open(self, path: str, *, create: bool = False) -> File:
        outer = self

        class Counting(RealFile):
            __slots__ = ()

            def pwrite(self, data: bytes | bytearray | memoryview, position: int) -> None:
                outer._call()
                super().pwrite(data, position)

        if create and not self.exists(path):
            self._call()
        file = super().open(path, create=create)
        return Counting(os.dup(file.fileno()))

    def write_atomically(self, path: str, data: bytes, *, fsync: bool = True) -> None:
        self._call()
        super().write_atomically(path, data, fsync=fsync)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("period", range(2, 12))
def test_whatever_fails_an_append_happens_or_does_not(tmp_path: Path, period: int, code: int) -> None:
    disk = StuckDisk(0, code)
    bench = Workbench(tmp_path, config=LogConfig(segment_bytes=400, index_interval_bytes=50), disk=disk)
    log = bench.log()
    disk.period = period
    kept: list[tuple[int, bytes | None]] = []
    for index in range(60):
        try:
            base = append(log, batch_of([b"%d" % index] * 2), epoch=index // 7)
        except OSError:
            continue
        kept += [(base, b"%d" % index), (base + 1, b"%d" % index)]
    disk.period = 0
    assert contents(log) == kept
    # A roll makes four calls in a row, and repeats all of them if one fails.
    assert len(kept) > (20 if period > 3 else 5)
    log.close()
    opened = bench.open(clean=False)
    assert opened.damage is None
    assert contents(opened.log) == kept


def test_the_recovery_point_follows_fsync(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    log = bench.log()
    fill(log, 100)
    assert bench.wanting[-1] is log
    assert log.recovery_point == 0
    pending = log.begin_flush(log.active.base_offset)
    assert pending.end_offset == log.active.base_offset
    fill(log, 3)
    pending.run()
    assert log.recovery_point == 0
    log.flushed(pending)
    assert log.recovery_point == pending.end_offset
    log.flush()
    assert log.recovery_point == log.log_end_offset


def test_a_flush_that_a_truncation_overtook_proves_nothing(tmp_path: Path) -> None:
    log = Workbench(tmp_path).log()
    fill(log, 60)
    pending = log.begin_flush()
    log.truncate_to(20)
    fill(log, 60)
    pending.run()
    log.flushed(pending)
    assert log.recovery_point == 0


def test_flush_settings(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, config=LogConfig(flush_messages=3, flush_ms=100))
    log = bench.log()
    append(log, batch_of([b"", b""]))
    assert not log.flush_overdue
    append(log, batch_of([b""]))
    assert log.flush_overdue
    assert not log.flush_due(bench.now_ms + 99)
    assert log.flush_due(bench.now_ms + 100)
    log.flush()
    assert not log.flush_overdue
    assert not log.flush_due(bench.now_ms + 1000)


def test_rolls_by_time_of_records_and_by_full_indexes(tmp_path: Path) -> None:
    log = Workbench(tmp_path, config=LogConfig(segment_ms=1000)).log()
    for timestamp in (5000, 5500, 6001, 6500, 7002):
        append(log, batch_of([b""], timestamp=timestamp))
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4]
    (tmp_path / "b").mkdir()
    log = Workbench(tmp_path / "b", config=LogConfig(index_interval_bytes=0, segment_index_bytes=36)).log()
    fill(log, 20)
    assert len(log.segments) > 3
    assert len(contents(log)) == log.log_end_offset


def replicate(log: Log, offset: int, *values: bytes) -> None:
    batch = batch_of(list(values))
    assign(batch, 0, offset, 0)
    log.append_replicated(batch, [(0, read_header(batch))])


def test_what_was_cut_is_synced_soon_and_before_a_clean_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Workbench(tmp_path)
    log = bench.log()
    fill(log, 20)
    log.flush()
    bench.wanting.clear()
    log.truncate_to(10)
    cut = log.active
    log.roll()
    assert log in bench.wanting
    assert log.recovery_point == log.log_end_offset == log.active.base_offset
    pending = log.begin_flush(log.active.base_offset)
    assert cut.file in pending.files
    log.truncate_to(log.log_end_offset - 1)
    log.flushed(pending)  # this sync began before another truncation, so it proves nothing
    assert log.active.file in log.begin_flush(0).files
    log.flush()
    assert log.begin_flush(0).files == []

    log.truncate_to(5)
    synced: list[Log] = []
    monkeypatch.setattr(Log, "flush", lambda log: synced.append(log))
    log.close()
    assert synced == [log]


def test_a_replicas_segments_touch_where_compaction_took_offsets(tmp_path: Path) -> None:
    log = Workbench(tmp_path, config=LogConfig(segment_bytes=100)).log()
    for offset in (3, 9, 20):
        replicate(log, offset, bytes(60))
    assert [segment.base_offset for segment in log.segments] == [0, 4, 10]
    assert [offset for offset, _ in contents(log)] == [3, 9, 20]


@pytest.mark.parametrize("far", [2**31 + 5, 2**31 - 1])
@pytest.mark.parametrize("empty", [False, True])
def test_rolls_before_relative_offsets_overflow(tmp_path: Path, empty: bool, far: int) -> None:
    bench = Workbench(tmp_path, config=LogConfig())
    log = bench.log()
    if not empty:
        append(log, batch_of([b"a"]))
    replicate(log, far, b"b", b"c", b"d")
    expected = [(0, b"a")] * (not empty) + [(far, b"b"), (far + 1, b"c"), (far + 2, b"d")]
    assert [segment.base_offset for segment in log.segments] == [0, far]
    assert contents(log) == expected
    assert contents(bench.log(clean=False)) == expected


def test_retention_by_time_size_and_start(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, config=LogConfig(segment_bytes=1000, retention_ms=-1))
    log = bench.log()
    fill(log, 100)
    assert log.retention(bench.now_ms, log.log_end_offset) is None
    log.config = replace(log.config, retention_bytes=log.size - log.segments[0].size)
    assert log.retention(bench.now_ms, log.segments[1].base_offset - 1) is None
    assert log.retention(bench.now_ms, log.log_end_offset) == (1, "by size")
    assert log.log_start_offset == log.segments[0].base_offset > 0
    log.delete_records_before(log.segments[3].base_offset + 1)
    assert log.epochs.entries[0].start_offset == log.log_start_offset
    log.config = replace(log.config, retention_bytes=-1, cleanup_policy=frozenset({"compact"}), retention_ms=1)
    assert log.retention(bench.now_ms, log.log_end_offset) == (3, "before the log start offset")
    log.config = replace(log.config, cleanup_policy=frozenset({"delete"}), retention_ms=100)
    newest = log.segments[-1].largest().timestamp
    end = log.log_end_offset
    assert log.retention(newest + 101, end)
    assert (log.size, log.log_start_offset, log.log_end_offset) == (0, end, end)
    assert append(log, batch_of([b"x"])) == end


@pytest.mark.parametrize("stop", ["killed", "stopped", "killed, and then stopped"])
def test_epochs_of_a_log_whose_start_moved_survive_a_restart(tmp_path: Path, stop: str) -> None:
    bench = Workbench(tmp_path, config=LogConfig(segment_bytes=1000, retention_bytes=2500))
    log = bench.log()
    for epoch in range(5):
        for number in range(20):
            append(log, batch_of([b"%d" % number * 20]), epoch)
        log.flush()
    assert log.retention(bench.now_ms, log.log_end_offset)
    epochs = log.epochs.entries
    assert epochs[0].epoch > 0
    assert epochs[0].start_offset == log.log_start_offset
    if stop == "killed":
        log = bench.log(clean=False)
    else:
        (bench.log(clean=False) if "killed" in stop else log).close()
        assert load(RealDisk(), log.directory).entries == epochs, "Kafka trusts this file"
        log = bench.log()
    assert log.epochs.entries == epochs


def test_lookups_by_timestamp(tmp_path: Path) -> None:
    log = Workbench(tmp_path).log()
    stamps = [1000, 1500, 1200, 3000, 2000, 2500, 4000] * 30
    for index, stamp in enumerate(stamps):
        append(log, batch_of([b"%d" % index], timestamp=stamp + index // 7 * 10_000))
    for index, stamp in enumerate(stamps):
        target = stamp + index // 7 * 10_000
        expected = next(at for at, other in enumerate(stamps) if other + at // 7 * 10_000 >= target)
        found = log.offset_for_timestamp(target)
        assert found is not None
        assert found.offset == expected
    assert log.offset_for_timestamp(10**9) is None
    greatest = log.offset_of_max_timestamp()
    assert greatest is not None
    assert greatest.offset == len(stamps) - 1
    log.delete_records_before(10)
    found = log.offset_for_timestamp(0)
    assert found is not None
    assert found.offset == 10


class LogMachine(RuleBasedStateMachine):
    """Any sequence of operations on a log, compared with a list of (offset, value, epoch)."""

    @initialize()
    def begin(self) -> None:
        import tempfile

        self.directory = tempfile.TemporaryDirectory()
        config = LogConfig(segment_bytes=600, index_interval_bytes=100, file_delete_delay_ms=0, retention_ms=-1)
        self.bench = Workbench(Path(self.directory.name) / "t-0", config=config)
        self.log = self.bench.log()
        self.model: list[tuple[int, bytes, int]] = []
        self.end = self.start = self.epoch = self.sequence = 0

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            self.directory.cleanup()

    @rule(count=st.integers(1, 4), size=st.integers(0, 120), idempotent=st.booleans())
    def append(self, count: int, size: int, idempotent: bool) -> None:
        values = [bytes([self.end % 256]) * size for _ in range(count)]
        producer = (5, 0, self.sequence) if idempotent else None
        batch = batch_of(values, producer=producer, timestamp=1000 + self.end)
        if idempotent:
            assert self.log.producers.check(read_header(batch)) is None
            self.sequence += count
        base = append(self.log, batch, self.epoch)
        assert base == self.end
        self.model += [(base + index, value, self.epoch) for index, value in enumerate(values)]
        self.end += count

    @rule()
    def elect(self) -> None:
        self.epoch += 1
        self.log.epochs.assign(self.epoch, self.end)

    @rule(share=st.floats(0, 1))
    def truncate(self, share: float) -> None:
        offset = int(self.start + (self.end - self.start) * share)
        self.log.truncate_to(offset)
        self.end = self.log.log_end_offset
        assert offset - 4 <= self.end <= offset
        self.model = [item for item in self.model if item[0] < self.end]
        self.start = min(self.start, self.end)
        self._read_sequence()

    def _read_sequence(self) -> None:
        entry = self.log.producers.get(5)
        self.sequence = entry.last_sequence + 1 if entry else 0

    @rule(share=st.floats(0, 1))
    def delete_records(self, share: float) -> None:
        self.start = max(self.start, int(self.start + (self.end - self.start) * share))
        self.log.delete_records_before(self.start)
        self.log.retention(self.bench.now_ms, self.end)
        self.bench.sweep()
        self.model = [item for item in self.model if item[0] >= self.start]

    @rule(clean=st.booleans(), flushed=st.booleans())
    def restart(self, clean: bool, flushed: bool) -> None:
        if flushed:
            self.log.flush()
        recovery_point = self.log.recovery_point
        sequence = self.sequence
        epochs = [entry for entry in self.log.epochs.entries if entry.start_offset < self.end]
        if clean:
            self.log.close()
        opened = self.bench.open(clean=clean, recovery_point=recovery_point, log_start_offset=self.start)
        assert opened.damage is None
        self.log = opened.log
        assert self.log.epochs.entries == epochs
        if self.log.producers.get(5) is not None:
            self._read_sequence()
            assert self.sequence == sequence

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
        assert log.recovery_point <= log.log_end_offset
        assert contents(log) == [item[:2] for item in self.model]
        for segment in log.segments:
            for entry in segment.offsets.entries():
                header = segment.header_at(entry.position)
                assert header is not None
                assert header.last_offset == entry.offset


TestLogMachine = LogMachine.TestCase
TestLogMachine.settings = settings(max_examples=examples(40), stateful_step_count=25, deadline=None)


def test_an_idempotent_repeat_after_restart(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    log = bench.log()
    append(log, batch_of([b"a", b"b"], producer=(3, 0, 0)))
    fill(log, 10)
    log.close()
    log = bench.log()
    again = read_header(batch_of([b"a", b"b"], producer=(3, 0, 0)))
    duplicate = log.producers.check(again)
    assert duplicate is not None
    assert (duplicate.first_offset, duplicate.last_offset) == (0, 1)
    with pytest.raises(KafkaError) as caught:
        log.producers.check(read_header(batch_of([b"a"], producer=(3, 0, 5))))
    assert caught.value.code == ErrorCode.out_of_order_sequence_number
