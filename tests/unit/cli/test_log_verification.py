"""`log_verification.verify` finds stored batches that no consumer gets past, and the offset behind each of them."""

from __future__ import annotations

import functools
import time
import tracemalloc
from itertools import repeat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.broker.log.config import LogConfig
from ottla.cli.log_dump import UnknownFile
from ottla.cli.log_verification import Fault, verify
from ottla.protocol.batches import HEADER_SIZE, MAGIC, read_header
from ottla.protocol.codecs import Codec, compress_pieces
from ottla.protocol.varints import read_varint
from tests.fuzz.bad_batches import Case, all_cases
from tests.fuzz.made_batches import record, seal
from tests.unit.broker.log.workbench import Workbench, append, batch_of, fill
from tests.unit.examples import examples

NOW_MS = time.time_ns() // 1_000_000
STRUCTURAL = ("invalid_record", "unknown_server_error")


def stored(folder: Path, *batches: bytes) -> tuple[Path, list[int]]:
    """Appends these batches between valid ones, as a leader does that doesn't check them. Returns the partition's
    directory, and the offsets of these batches."""
    bench = Workbench(folder, config=LogConfig(segment_bytes=1 << 30))
    log = bench.log()
    fill(log, 5)
    offsets = []
    for batch in batches:
        offsets.append(append(log, bytearray(batch)))
        fill(log, 2)
    log.close()
    return folder, offsets


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    """A partition of several small segments with indexes."""
    bench = Workbench(tmp_path / "t-0", config=LogConfig(segment_bytes=2000, index_interval_bytes=200))
    log = bench.log()
    fill(log, 60)
    append(log, batch_of([b"last"], producer=(3, 1, 0)), epoch=4)
    log.close()
    return bench.path


def test_a_sound_partition_has_no_faults(partition: Path) -> None:
    assert list(verify(str(partition))) == []


@given(data=st.data())
@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_changed_byte_under_the_crc_or_in_an_index_is_found(partition: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted([*partition.glob("*.log"), *partition.glob("*.index")])))
    content = path.read_bytes()
    position = data.draw(st.integers(21 if path.suffix == ".log" else 0, min(len(content), 80) - 1))
    damaged = bytearray(content)
    damaged[position] ^= data.draw(st.integers(1, 255))
    path.write_bytes(damaged)
    try:
        assert list(verify(str(partition)))
    finally:
        path.write_bytes(content)


@functools.cache
def cases_of_now() -> list[Case]:
    return list(all_cases(NOW_MS))


def wrong_inside(case: Case) -> bool:
    """Whether the batch is invalid although the fields of its header that determine offsets are valid. Brokers have
    always checked these fields, so only such an invalid batch can be in a log.
    """
    if len(case.batch) < HEADER_SIZE:
        return False
    header = read_header(case.batch)
    return (
        case.wanted.error in STRUCTURAL
        and not case.wanted.record_errors
        and header.magic == MAGIC
        and len(case.batch) == header.size
        and header.count == header.last_offset_delta + 1 > 0
        and not (header.base_offset or header.is_control)
        and not (header.producer_id >= 0 and header.base_sequence < 0)
    )


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name)
def test_each_bad_batch_is_found_and_says_where_to_go_on(tmp_path: Path, codec: Codec) -> None:
    cases = [case for case in cases_of_now() if case.codec == codec and wrong_inside(case)]
    assert len(cases) > 25
    claims = [case for case in cases if read_header(case.batch).count > 1000]
    cases = [case for case in cases if case not in claims] + claims[:1]
    folder, offsets = stored(tmp_path / "orders-3", *(case.batch for case in cases))
    found = [fault for fault in verify(str(folder)) if fault.path.endswith(".log")]
    assert [(fault.topic, fault.partition) for fault in found] == [("orders", 3)] * len(cases)
    for case, fault, offset in zip(cases, found, offsets, strict=True):
        count = read_header(case.batch).count
        assert (fault.offset, fault.last_offset, fault.next_offset) == (offset, offset + count - 1, offset + count), (
            case
        )
        assert fault.message, case


@pytest.mark.parametrize("codec", list(Codec), ids=lambda codec: codec.name)
def test_what_is_taken_today_has_no_fault(tmp_path: Path, codec: Codec) -> None:
    taken = [case.batch for case in cases_of_now() if case.codec == codec and case.wanted.error == "none"]
    # without the bytes behind a batch, which aren't appended
    batches = [batch[: read_header(batch).size] for batch in taken]
    folder, _ = stored(tmp_path / "t-0", *batches)
    assert [fault for fault in verify(str(folder)) if fault.path.endswith(".log")] == []


def test_a_whole_log_directory_is_gone_through(tmp_path: Path) -> None:
    bad = seal(b"nonsense", 1, NOW_MS, codec=Codec.lz4)
    for name in ("b-0", "a-1"):
        stored(tmp_path / name, bad)
    fill(Workbench(tmp_path / "sound-0").log(), 3)
    (tmp_path / "meta.properties").write_text("version=1\n")
    found = list(verify(f"{tmp_path}/"))
    assert [(fault.topic, fault.partition) for fault in found] == [("a", 1), ("b", 0)]
    assert list(verify(found[0].path)) == found[:1]
    with pytest.raises(UnknownFile):
        list(verify(str(tmp_path / "meta.properties")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnknownFile):
        list(verify(str(tmp_path / "empty")))


def test_a_cut_end_and_wrong_offsets_are_named(tmp_path: Path) -> None:
    folder, _ = stored(tmp_path / "t-0")
    [log] = folder.glob("*.log")
    content = log.read_bytes()
    log.write_bytes(content + content[:200])
    found: list[Fault] = [fault for fault in verify(str(log)) if fault.path == str(log)]
    assert found[0].message.startswith("the batch begins at offset 0, after ")
    log.write_bytes(content[:-3])
    assert [fault.message for fault in verify(str(log)) if fault.path == str(log)] == [
        f"{len(batch_of([b'4-0' + bytes(20), b'4-1' + bytes(20)])) - 3} bytes at the end are no whole batch"
    ]


def test_a_batch_that_unpacks_large_costs_a_few_pieces(tmp_path: Path) -> None:
    size = 400 << 20
    inside = read_varint(record(0, value=b"", value_length=size), 0)[0] + size
    start = record(0, value=b"", value_length=size, length=inside)[:-1]
    payload = b"".join(compress_pieces(Codec.zstd, [start, *repeat(bytes(1 << 20), 400), b"\x00"]))
    folder, _ = stored(tmp_path / "t-0", seal(payload, 1, NOW_MS, codec=Codec.zstd))
    tracemalloc.start()
    found = [fault for fault in verify(str(folder)) if fault.path.endswith(".log")]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == []
    assert peak < 8 << 20
