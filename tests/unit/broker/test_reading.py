"""The records of a replica that a fetch may read, and the errors with which it is answered."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock
from uuid import UUID

import pytest

from ottla.broker import reading
from ottla.broker.counters import TopicCounters
from ottla.broker.loop_quota import LoopQuota
from ottla.broker.partition import Partition
from ottla.metadata.model.partitions import Partition as PartitionState
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.unit.broker.log.workbench import Workbench, batch_of

TOPIC_ID = UUID(int=7)


def led(bench: Workbench, epoch: int, *isr: int) -> Partition:
    partition = Partition("t", TOPIC_ID, 0, bench.log(), TopicCounters(), lambda: 1_000_000, Mock())
    partition.become_leader(PartitionState(TOPIC_ID, 0, (0, 1), isr, tuple(1 for _ in isr), 0, epoch))
    return partition


def produce(partition: Partition, count: int) -> None:
    for _ in range(count):
        batch = batch_of([b"x"])
        assert partition.append(batch, 0, len(batch), 9, LoopQuota(lambda renew: None)) is not None


def test_a_consumer_reads_up_to_the_high_watermark_and_a_follower_up_to_the_end(tmp_path: Path) -> None:
    partition = led(Workbench(tmp_path), 0, 0, 1)
    produce(partition, 2)
    partition.follower_fetched(1, 1, 1, 0)
    assert (partition.high_watermark, partition.log.log_end_offset) == (1, 2)
    assert reading.read(partition, 1, 1_000, True, False) == reading.nothing(partition)
    consumers, followers = (
        reading.read(partition, 0, 1_000, True, False),
        reading.read_as_follower(partition, 0, 1_000, True),
    )
    assert followers.size == 2 * consumers.size > 0
    assert reading.read(partition, 2, 1_000, True, False).size == 0, "not committed yet"
    with pytest.raises(KafkaError) as error:
        reading.read(partition, 3, 1_000, True, False)
    assert error.value.code is ErrorCode.offset_out_of_range


def test_a_follower_doesnt_know_whether_an_offset_beyond_its_end_exists(tmp_path: Path) -> None:
    partition = led(Workbench(tmp_path), 0, 0, 1)
    partition.become_follower(PartitionState(TOPIC_ID, 0, (0, 1), (0, 1), (1, 1), 1, 1))
    with pytest.raises(KafkaError) as error:
        reading.read(partition, 3, 1_000, True, False)
    assert error.value.code is ErrorCode.offset_not_available


def test_a_damaged_batch_is_that_partitions_affair_and_not_its_directorys(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    partition = led(bench, 0, 0)
    produce(partition, 3)
    partition.log.close()
    partition = led(bench, 1, 0)
    with Path(partition.log.active.path).open("r+b") as file:
        file.seek(8)
        file.write(b"\x80\0\0\0")  # the first batch's length
    with pytest.raises(KafkaError) as error:
        reading.read(partition, 1, 1_000, True, False)
    assert error.value.code is ErrorCode.corrupt_message
    assert bench.errors == []
