"""`log_dump.dump` returns the content of each kind of file in a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.log.config import LogConfig
from ottla.cli.log_dump import (
    DumpedBatch,
    DumpedOffset,
    DumpedProducer,
    UnknownFile,
    dump,
)
from ottla.protocol.codecs import Codec
from ottla.storage.checkpoints import EpochEntry
from ottla.storage.indexes import AbortedTransaction, OffsetPosition, TimestampOffset
from tests.unit.broker.log.workbench import Workbench, append, batch_of, fill, transact

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
    assert all(isinstance(item, OffsetPosition) for item in index)
    assert all(isinstance(item, TimestampOffset) for item in dump(str(log.with_suffix(".timeindex"))))
    assert list(dump(str(max(partition.glob("*.snapshot"))))) == [
        DumpedProducer(3, 1, 0, batches[-1].last_offset, 1000, -1, -1)
    ]
    assert list(dump(str(partition / "leader-epoch-checkpoint")))[-1] == EpochEntry(4, batches[-1].base_offset)
    checkpoint = partition / "recovery-point-offset-checkpoint"
    checkpoint.write_text("0\n1\nt 0 17\n")
    assert list(dump(str(checkpoint))) == [DumpedOffset("t", 0, 17)]
    with pytest.raises(UnknownFile):
        dump(str(partition / "readme.txt"))


def test_a_marker_says_how_it_ends_its_transaction(tmp_path: Path) -> None:
    log = Workbench(tmp_path / "t-0").log()
    transact(log, 3, 0, committed=True)
    transact(log, 3, 1, committed=False)
    log.close()
    [file] = tmp_path.rglob("*.log")
    batches = [item for item in dump(str(file)) if isinstance(item, DumpedBatch)]
    assert [(batch.marker, batch.coordinator_epoch) for batch in batches] == [
        (None, None),
        ("COMMIT", 0),
        (None, None),
        ("ABORT", 0),
    ]
    assert list(dump(str(file.with_suffix(".txnindex")))) == [
        AbortedTransaction(producer_id=3, first_offset=2, last_offset=3, last_stable_offset=4)
    ]
