"""`verify` finds the faults of transaction indexes, and the repair that a fault names makes the index right again."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.broker.log.compaction_child import Job, compact
from ottla.broker.log.config import LogConfig
from ottla.broker.log.log import Log
from ottla.broker.log.segment import Sizes
from ottla.cli.log_verification import Fault, verify
from ottla.protocol.batches import Record, build_batch
from ottla.protocol.markers import Marker, marker_batch
from ottla.storage.indexes import ABORTED_ENTRY_BYTES, aborted_entry, aborted_transaction_at
from tests.unit.broker.log.workbench import Workbench, append, fill
from tests.unit.examples import examples

CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=200)
Change = Callable[[bytes], bytes | None]


class Writer:
    """Appends the transactions of several producers to a log."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.sequences: dict[int, int] = {}

    def data(self, producer: int) -> None:
        sequence = self.sequences.get(producer, 0)
        self.sequences[producer] = sequence + 1
        records = [Record(0, 1000, b"%d" % producer, b"value")]
        batch = build_batch(records, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True)
        append(self.log, bytearray(batch))

    def end(self, producer: int, committed: bool) -> None:
        append(self.log, marker_batch(producer, 0, Marker(committed, 0, 1000)))


def bench_at(folder: Path) -> Workbench:
    return Workbench(folder, config=CONFIG)


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """The directory of a partition of several segments, in which the transactions of three producers lie between each
    other. Two of three transactions are aborted, and producer 9 has a transaction that stays open."""
    log = bench_at(tmp_path / "t-0").log()
    writer = Writer(log)
    writer.data(1)
    for number in range(60):
        producer = 1 + number % 2
        writer.data(3 - producer)
        fill(log, 1, start=number)
        writer.end(producer, number % 3 == 0)
        writer.data(producer)
        if number == 15:
            writer.data(9)
    log.close()
    return tmp_path / "t-0"


def indexes(partition: Path) -> list[Path]:
    return sorted(path for path in partition.glob("*.txnindex") if path.stat().st_size)


def found(path: Path) -> list[Fault]:
    return list(verify(str(path)))


def test_sound_indexes_have_no_faults(partition: Path) -> None:
    assert len(indexes(partition)) > 2
    assert found(partition) == []
    for log in partition.glob("*.log"):
        assert found(log) == [], "the producer snapshot says which transactions are open where a segment begins"


def entry(content: bytes, **changes: int) -> bytes:
    """The index with another second entry."""
    changed = aborted_transaction_at(content, 1)._replace(**changes)
    return content[:ABORTED_ENTRY_BYTES] + aborted_entry(changed) + content[2 * ABORTED_ENTRY_BYTES :]


BROKEN: dict[str, tuple[Change, str]] = {
    "missing": (lambda _: None, r"the file is missing, and \d+ aborted transactions? ends? in the segment"),
    "empty": (lambda _: b"", "no entry for the aborted transaction of producer"),
    "cut in an entry": (lambda content: content[:-5], "29 bytes at the end are no whole entry"),
    "cut between entries": (
        lambda content: content[:-ABORTED_ENTRY_BYTES],
        "no entry for the aborted transaction of producer",
    ),
    "an entry too many": (
        lambda content: content + aborted_entry(aborted_transaction_at(content, 0)._replace(last_offset=1000)),
        "aborted at offset 1000, and no abort marker is there",
    ),
    "another producer": (lambda content: entry(content, producer_id=77), "names producer 77, and the marker is of"),
    "another first offset": (
        lambda content: entry(content, first_offset=aborted_transaction_at(content, 1).first_offset + 1),
        "and its first batch is at offset",
    ),
    "a first offset of another batch": (lambda content: entry(content, first_offset=0), "begins it at offset 0"),
    "another last offset": (
        lambda content: entry(content, last_offset=aborted_transaction_at(content, 1).last_offset - 1),
        "no entry for the aborted transaction of producer",
    ),
    "another stable offset": (
        lambda content: entry(content, last_stable_offset=1000),
        "states the last stable offset 1000, and by the batches it was",
    ),
    "another order": (
        lambda content: (
            content[ABORTED_ENTRY_BYTES : 2 * ABORTED_ENTRY_BYTES]
            + content[:ABORTED_ENTRY_BYTES]
            + content[2 * ABORTED_ENTRY_BYTES :]
        ),
        "comes after that of",
    ),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_index_is_found_and_what_verify_says_repairs_it(partition: Path, how: str) -> None:
    change, message = BROKEN[how]
    index = indexes(partition)[1]
    before = {path.name: path.read_bytes() for path in indexes(partition)}
    changed = change(index.read_bytes())
    if changed is None:
        index.unlink()
    else:
        index.write_bytes(changed)
    faults = found(partition)
    assert {fault.path for fault in faults} == {str(index)}
    assert any(re.search(message, fault.message) for fault in faults), faults
    assert all(fault.repair and fault.next_offset == -1 for fault in faults)
    if how != "a first offset of another batch":  # that batch is in another segment
        assert found(index.with_suffix(".log")), "the segment alone shows its fault, too"
    for told in {fault.repair for fault in faults}:
        if (deleted := re.search(r"delete (\S+\.index),", told)) is not None:
            Path(deleted[1]).unlink()
    bench_at(partition).log().close()
    assert found(partition) == []
    assert {path.name: path.read_bytes() for path in indexes(partition)} == before


@given(data=st.data())
@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_changed_byte_behind_the_version_is_found(partition: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(indexes(partition)))
    content = path.read_bytes()
    place = data.draw(st.integers(0, len(content) - 1).filter(lambda at: at % ABORTED_ENTRY_BYTES >= 2))
    damaged = bytearray(content)
    damaged[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(damaged)
    try:
        assert [fault for fault in found(partition) if fault.path == str(path)]
    finally:
        path.write_bytes(content)


def test_a_log_that_compaction_has_shortened_has_no_faults(partition: Path) -> None:
    """The batches of aborted transactions are gone, and then also the markers without any batch."""
    for now_ms in (10**6, 2 * 10**6, 3 * 10**6):
        bench = bench_at(partition)
        log = bench.log()
        ends = [segment.base_offset for segment in log.segments[1:]]
        sizes = [
            [each.base_offset, end, each.size, each.offsets.size_bytes]
            for each, end in zip(log.segments, ends, strict=False)
        ]
        aborted = [entry for each in log.segments if each.aborted is not None for entry in each.aborted.entries()]
        job = Job(
            directory=log.directory,
            segments=sizes[:4],
            first_dirty=0,
            end_offset=ends[3],
            now_ms=now_ms,
            delete_retention_ms=1,
            segment_bytes=2000,
            segment_index_bytes=10_000,
            index_interval_bytes=200,
            aborted=[[*entry] for entry in aborted if entry.first_offset < ends[3] <= entry.last_offset],
            producers=[],
            keys_max=1000,
            bytes_per_second=float("inf"),
        )
        before = log.segments[0].size
        for segment in compact(job, bench.disk, lambda count: None).segments:
            log.swap_in(segment.old_bases, Sizes(*segment.sizes))
        assert log.segments[0].size != before
        log.close()
        bench.now_ms += 10**9
        bench.sweep()
        assert found(partition) == []


def test_an_index_whose_newest_entries_a_killed_broker_had_in_memory_has_no_fault(partition: Path) -> None:
    """The next start recovers the segments from the recovery point on."""
    newest = indexes(partition)[-1]
    content = newest.read_bytes()
    newest.write_bytes(content[:-ABORTED_ENTRY_BYTES])
    assert found(partition)
    checkpoint = partition.parent / "recovery-point-offset-checkpoint"
    checkpoint.write_text(f"0\n1\nt 0 {int(newest.stem)}\n")
    assert found(partition) == []
    (partition.parent / ".kafka_cleanshutdown").touch()
    assert found(partition)
    (partition.parent / ".kafka_cleanshutdown").unlink()
    newest.write_bytes(content)
    indexes(partition)[0].unlink()
    assert found(partition), "segments below the recovery point stay as they are"
