"""Recovery keeps the longest valid prefix, whatever happened to the files; recovering a second time changes nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.broker.log import segment_recovery
from ottla.broker.log.config import LogConfig
from ottla.protocol.batches import BatchHeader, assign, iterate_headers, read_header
from tests.unit.broker.log.workbench import Workbench, append, batch_of, contents, fill
from tests.unit.examples import among, examples

ANY = settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def sample(path: Path, batches: int = 40) -> Workbench:
    bench = Workbench(path, config=LogConfig(segment_bytes=1500, index_interval_bytes=200))
    log = bench.log()
    sequence = 0
    for index in range(batches):
        append(log, batch_of([b"%d" % index] * 2, producer=(4, 0, sequence), timestamp=1000 + index), epoch=index // 10)
        sequence += 2
    log.active.write_out()
    return bench


def copied(bench: Workbench, target: Path) -> Workbench:
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(bench.path, target)
    return Workbench(target, config=bench.config)


def valid_prefix(bench: Workbench) -> list[BatchHeader]:
    """The batches before the first byte that isn't part of a valid batch, found by a simple scan."""
    found: list[BatchHeader] = []
    for name, data in bench.files(".log").items():
        position, base = 0, int(name[:20])
        while position < len(data):
            if position + 61 > len(data):
                return found
            header = read_header(data, position)
            batch = data[position : position + header.size]
            if not 61 <= header.size == len(batch) or header.magic != 2 or header.crc != _crc(batch):
                return found
            if not max(base, found[-1].last_offset + 1 if found else 0) <= header.base_offset < base + 2**31 - 1:
                return found
            found.append(header)
            position += header.size
    return found


def _crc(batch: bytes) -> int:
    from crc32c import crc32c

    return int(crc32c(batch[21:]))


def offsets(bench: Workbench) -> list[int]:
    return [header.base_offset for data in bench.files(".log").values() for _, header in iterate_headers(data)]


def test_a_segment_cut_at_every_byte(tmp_path: Path) -> None:
    bench = sample(tmp_path / "a", batches=25)
    name = f"{bench.log(clean=False).segments[-1].base_offset:020d}.log"
    size = (bench.path / name).stat().st_size
    before = offsets(bench)
    for cut in among(range(size)):
        damaged = copied(bench, tmp_path / "b")
        with (damaged.path / name).open("r+b") as file:
            file.truncate(cut)
        expected = valid_prefix_by_count(bench, name, cut, before)
        opened = damaged.open(clean=False)
        assert offsets(damaged) == expected
        assert opened.log.log_end_offset == (expected[-1] + 2 if expected else 0)
        assert [offset for offset, _ in contents(opened.log)] == list(range(opened.log.log_end_offset))


def valid_prefix_by_count(bench: Workbench, name: str, cut: int, before: list[int]) -> list[int]:
    data = (bench.path / name).read_bytes()
    lost = sum(1 for position, header in iterate_headers(data) if position + header.size > cut)
    return before[: len(before) - lost]


@given(data=st.data())
@ANY
def test_any_damaged_byte(tmp_path: Path, data: st.DataObject) -> None:
    source = tmp_path / "source"
    bench = sample(source) if not source.exists() else Workbench(source, LogConfig(1500, index_interval_bytes=200))
    damaged = copied(bench, tmp_path / "damaged")
    name = data.draw(st.sampled_from(sorted(damaged.files())))
    content = bytearray((damaged.path / name).read_bytes())
    if content:
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    (damaged.path / name).write_bytes(content)
    expected = valid_prefix(damaged)
    opened = damaged.open(clean=False)
    assert offsets(damaged) == [header.base_offset for header in expected]
    end = opened.log.log_end_offset
    assert end == (expected[-1].last_offset + 1 if expected else 0)
    assert (opened.damage is None) == (len(expected) == 40)
    if opened.damage is not None:
        assert opened.damage.offset == end
        assert opened.damage.bytes_dropped > 0
    entry = opened.log.producers.get(4)
    assert (entry.last_sequence if entry else -1) == (expected[-1].last_sequence if expected else -1)
    assert opened.log.epochs.latest == max((header.leader_epoch for header in expected), default=-1)
    check_indexes(opened.log)
    once = damaged.files()
    again = damaged.open(clean=False)
    assert damaged.files() == once
    assert again.damage is None
    assert again.log.log_end_offset == end


def check_indexes(log: object) -> None:
    from ottla.broker.log.log import Log

    assert isinstance(log, Log)
    for segment in log.segments:
        headers = dict(segment.headers())
        for entry in segment.offsets.entries():
            assert headers[entry.position].last_offset == entry.offset
        for stamp in segment.times.entries():
            reached = [header.max_timestamp for header in headers.values() if header.last_offset <= stamp.offset]
            assert max(reached) == stamp.timestamp


def test_garbage_behind_the_end_goes(tmp_path: Path) -> None:
    for tail in (b"\x00", bytes(61), bytes(5000), b"\xff" * 100):
        bench = sample(tmp_path / tail.hex()[:6])
        before = offsets(bench)
        last = max(bench.files(".log"))
        with (bench.path / last).open("ab") as file:
            file.write(tail)
        opened = bench.open(clean=False)
        assert opened.damage is not None
        assert opened.damage.bytes_dropped == len(tail)
        assert offsets(bench) == before


def test_only_segments_from_the_recovery_point_on_are_read(tmp_path: Path) -> None:
    bench = sample(tmp_path / "a")
    log = bench.log(clean=False)
    point = log.segments[2].base_offset
    opened = bench.open(clean=False, recovery_point=point)
    assert opened.segments_recovered == len(log.segments) - 2
    assert opened.log.recovery_point == point
    bench.log(clean=False).close()
    opened = bench.open(clean=True)
    assert opened.segments_recovered == 0
    assert opened.log.recovery_point == opened.log.log_end_offset


def test_a_clean_open_without_indexes_rebuilds_them(tmp_path: Path) -> None:
    bench = sample(tmp_path / "a")
    log = bench.log(clean=False)
    log.close()
    before = bench.files(".index", ".timeindex")
    for name in before:
        (bench.path / name).unlink()
    opened = bench.open(clean=True)
    assert opened.segments_recovered == len(log.segments)
    opened.log.close()
    assert bench.files(".index", ".timeindex") == before


def test_a_damaged_epoch_file_is_rebuilt_from_the_batches(tmp_path: Path) -> None:
    bench = sample(tmp_path / "a")
    log = bench.log(clean=False)
    log.close()
    (bench.path / "leader-epoch-checkpoint").write_bytes(b"?")
    assert bench.log().epochs.entries == log.epochs.entries


def test_a_segment_that_does_not_follow_goes(tmp_path: Path) -> None:
    """A loss of power removed the end of a segment, but not the empty segment after it."""
    bench = Workbench(tmp_path / "a", config=LogConfig(segment_bytes=1 << 20))
    log = bench.log()
    fill(log, 10)
    log.flush()
    synced, recovery_point = log.active.size, log.recovery_point
    fill(log, 10, start=10)
    log.roll()
    whole = copied(bench, tmp_path / "whole").open(clean=False, recovery_point=recovery_point)
    assert (whole.log.log_end_offset, whole.damage) == (log.log_end_offset, None)

    log.segments[0].file.truncate(synced)
    opened = bench.open(clean=False, recovery_point=recovery_point)
    assert opened.log.log_end_offset == recovery_point
    assert opened.damage is not None
    assert opened.damage.segments_dropped == 1
    assert len(bench.files(".log")) == 1
    again = bench.open(clean=False, recovery_point=recovery_point)
    assert (again.log.log_end_offset, again.damage) == (recovery_point, None)


def test_a_truncation_that_a_loss_of_power_undid(tmp_path: Path) -> None:
    """After a loss of power, the log has both its old tail and the segment that was begun at the truncation."""
    bench = Workbench(tmp_path / "a", config=LogConfig(segment_bytes=1 << 20, index_interval_bytes=200))
    log = bench.log()
    fill(log, 20)
    log.flush()
    old, whole, end = bench.files(), contents(log), log.log_end_offset
    log.truncate_to(10)
    log.roll()
    cut = log.log_end_offset
    fill(log, 10, start=50)
    log.active.write_out()
    for name, content in old.items():
        (bench.path / name).write_bytes(content)
    for recovery_point in (cut, end, end + 100):  # the checkpoint may be older than the truncation
        again = copied(bench, tmp_path / f"b{recovery_point}")
        found = again.open(clean=False, recovery_point=recovery_point)
        assert contents(found.log) == whole
        assert found.log.log_end_offset == end
        assert len(found.log.segments) == 1
        assert not again.files(".snapshot"), "a snapshot of a removed segment is left"


def test_what_compaction_took_is_no_hole_below_the_recovery_point(tmp_path: Path) -> None:
    """Apache Kafka, whose directory may have been adopted, leaves segments with gaps between them."""
    bench = sample(tmp_path / "a")
    log = bench.log()
    end = log.log_end_offset
    second = log.segments[1]
    last = list(second.batches())[-1][0]
    second.file.truncate(last)
    found = bench.open(clean=False, recovery_point=end).log
    assert (found.log_end_offset, len(found.segments)) == (end, len(log.segments))
    (bench.path / f"{log.segments[0].base_offset:020d}.index").unlink()  # without it, all segments are read
    assert bench.open(clean=False, recovery_point=end).log.log_end_offset == end
    assert bench.open(clean=True).log.log_end_offset == end


def test_what_compaction_took_is_no_hole_either_where_the_recovery_point_is_lost(tmp_path: Path) -> None:
    bench = sample(tmp_path / "a")
    log = bench.log()
    end, third = log.log_end_offset, log.segments[2].base_offset
    second = log.segments[1]
    second.file.truncate(list(second.batches())[-1][0])
    kept = bench.open(clean=False, recovery_point=0, compacted_to=third)
    assert (kept.log.log_end_offset, kept.damage) == (end, None)
    cut = bench.open(clean=False, recovery_point=0, compacted_to=third - 1)
    assert cut.log.log_end_offset < third


def test_an_epoch_whose_first_batches_were_compacted_keeps_its_start(tmp_path: Path) -> None:
    bench = Workbench(tmp_path / "a")
    log = bench.log()
    for offset, epoch in ((5, 0), (9, 1)):
        batch = batch_of([b"x"])
        assign(batch, 0, offset, epoch)
        log.epochs.assign(epoch, offset - 3)
        log.append_replicated(batch, [(0, read_header(batch))])
    log.flush()  # a compaction flushes first
    assert bench.log(clean=False).epochs.entries == [(0, 2), (1, 6)]


def test_interrupted_work_is_finished(tmp_path: Path) -> None:
    bench = sample(tmp_path / "a")
    log = bench.log(clean=False)
    log.close()
    first, second, third = (segment.base_offset for segment in log.segments[:3])
    merged = b"".join(bench.files(".log")[f"{offset:020d}.log"] for offset in (first, second))
    (bench.path / f"{first:020d}.log.swap").write_bytes(merged)
    (bench.path / f"{first:020d}.index.swap").write_bytes(b"")
    (bench.path / f"{first:020d}.timeindex.swap").write_bytes(b"")
    (bench.path / f"{third:020d}.log.cleaned").write_bytes(b"half")
    (bench.path / f"{third:020d}.index.deleted").write_bytes(b"old")
    before = contents(log)
    reopened = bench.log(clean=True)
    assert [segment.base_offset for segment in reopened.segments][:2] == [first, third]
    assert contents(reopened) == before
    assert not bench.files(".swap", ".cleaned", ".deleted")


def test_an_end_below_the_start_begins_anew_there(tmp_path: Path) -> None:
    bench = sample(tmp_path / "a")
    log = bench.log(clean=False, log_start_offset=500)
    assert (log.log_start_offset, log.log_end_offset) == (500, 500)
    assert append(log, batch_of([b"x"]), 9) == 500


def test_planted_bug_a_recovery_without_crc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle of `test_any_damaged_byte` notices a recovery that doesn't check CRCs."""
    bench = sample(tmp_path / "a")
    name = min(bench.files(".log"))
    content = bytearray((bench.path / name).read_bytes())
    content[100] ^= 1
    (bench.path / name).write_bytes(content)
    expected = [header.base_offset for header in valid_prefix(bench)]
    monkeypatch.setattr(segment_recovery, "crc_valid", lambda *_: True)
    bench.open(clean=False)
    assert offsets(bench) != expected


def test_many_small_batches_and_one_great_one(tmp_path: Path) -> None:
    bench = Workbench(tmp_path / "a", config=LogConfig())
    log = bench.log()
    fill(log, 500)
    append(log, batch_of([bytes(3 << 20)]))
    fill(log, 5)
    before = contents(log, max_bytes=1 << 20)
    opened = bench.open(clean=False)
    assert opened.damage is None
    assert contents(opened.log, max_bytes=1 << 20) == before
