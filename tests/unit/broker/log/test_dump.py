"""Dumping and verifying a log's files; surveying and claiming a directory of Kafka's."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ottla.broker.log import adopt
from ottla.broker.log.config import LogConfig
from ottla.broker.log.directories import LogDirectories
from ottla.broker.log.disk import RealDisk
from ottla.broker.log.dump import (
    DumpedBatch,
    DumpedEpoch,
    DumpedIndexEntry,
    DumpedOffset,
    DumpedProducer,
    DumpedTimeEntry,
    UnknownFile,
    dump,
)
from ottla.broker.log.home import ForeignDirectory
from ottla.broker.log.verification import verify
from ottla.protocol.codecs import Codec
from tests.unit.broker.log.workbench import ALONE, Workbench, append, batch_of, contents, fill
from tests.unit.examples import examples

CONFIG = LogConfig(segment_bytes=2000, index_interval_bytes=200)


@pytest.fixture
def partition(tmp_path: Path) -> Path:
    bench = Workbench(tmp_path / "t-0", config=CONFIG)
    log = bench.log()
    fill(log, 60)
    append(log, batch_of([b"last"], producer=(3, 1, 0)), epoch=4)
    log.close()
    return bench.path


def test_records_behind_a_batch_that_is_too_large_to_show_are_shown(tmp_path: Path) -> None:
    log = Workbench(tmp_path / "t-0").log()
    append(log, batch_of([bytes(129 << 20)], codec=Codec.zstd))
    append(log, batch_of([b"behind"]))
    log.close()
    large, behind = (item for file in sorted(tmp_path.rglob("*.log")) for item in dump(str(file), deep=True))
    assert isinstance(large, DumpedBatch)
    assert isinstance(behind, DumpedBatch)
    assert (large.is_valid, large.is_too_large, large.records) == (True, True, None)
    assert behind.records is not None
    assert [record.value for record in behind.records] == [b"behind"]


def test_every_file_can_be_shown(partition: Path) -> None:
    log = max(partition.glob("*.log"))
    batches = [item for item in dump(str(log), deep=True) if isinstance(item, DumpedBatch)]
    assert all(batch.is_valid for batch in batches)
    assert (batches[-1].producer_id, batches[-1].leader_epoch, batches[-1].codec) == (3, 4, "none")
    assert batches[-1].records is not None
    assert batches[-1].records[0].value == b"last"
    index = list(dump(str(log.with_suffix(".index"))))
    assert all(isinstance(item, DumpedIndexEntry) for item in index)
    assert all(isinstance(item, DumpedTimeEntry) for item in dump(str(log.with_suffix(".timeindex"))))
    assert list(dump(str(max(partition.glob("*.snapshot"))))) == [
        DumpedProducer(3, 1, 0, batches[-1].last_offset, 1000, -1, -1)
    ]
    assert list(dump(str(partition / "leader-epoch-checkpoint")))[-1] == DumpedEpoch(4, batches[-1].base_offset)
    checkpoint = partition / "recovery-point-offset-checkpoint"
    checkpoint.write_text("0\n1\nt 0 17\n")
    assert list(dump(str(checkpoint))) == [DumpedOffset("t", 0, 17)]
    with pytest.raises(UnknownFile):
        dump(str(partition / "readme.txt"))


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


def test_a_directory_is_surveyed_and_claimed(tmp_path: Path) -> None:
    theirs = LogDirectories([str(tmp_path)], lambda: 0, ALONE)
    theirs.open("theirs", 5, lambda topic: CONFIG)
    for index in (0, 2):
        fill(theirs.open_or_create("orders", index, UUID(int=7), CONFIG), 10)
    before = contents(theirs.logs[UUID(int=7), 2])
    with pytest.raises(BlockingIOError):
        adopt.survey(RealDisk(), str(tmp_path))
    theirs.close()
    (tmp_path / "nobody-0").mkdir()
    found = adopt.survey(RealDisk(), str(tmp_path))
    assert (found.cluster_id, found.node_id, found.stopped_cleanly) == ("theirs", 5, True)
    [topic] = found.topics
    assert (topic.name, topic.topic_id, sorted(topic.partitions), topic.missing) == ("orders", UUID(int=7), [0, 2], [1])
    assert topic.partitions[2].high_watermark == before[-1][0] + 1
    assert "nobody-0" in found.problems[0]
    with pytest.raises(ForeignDirectory):
        LogDirectories([str(tmp_path)], lambda: 0, ALONE).open("ours", 1, lambda topic: CONFIG)
    for _ in range(2):
        adopt.claim(RealDisk(), str(tmp_path), "ours", 1)
    ours = LogDirectories([str(tmp_path)], lambda: 0, ALONE)
    ours.open("ours", 1, lambda topic: CONFIG)
    assert contents(ours.logs[UUID(int=7), 2]) == before
    assert "cluster.id=theirs" in (tmp_path / "meta.properties.kafka").read_text()
