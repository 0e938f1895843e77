"""One replica: files that can't be read, and leadership that is lost and regained."""

from __future__ import annotations

import asyncio
import errno
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest

from ottla.broker.counters import TopicCounters
from ottla.broker.follower_log import truncate_to
from ottla.broker.inspectors import Inspectors
from ottla.broker.log.log import Log
from ottla.broker.loop_quota import LoopQuota
from ottla.broker.partition import Partition
from ottla.broker.turns import Received, admit_in_turn
from ottla.metadata.model.partitions import Partition as PartitionState
from ottla.protocol.codecs import Codec
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.unit.broker.log.workbench import Workbench, batch_of

TOPIC_ID = UUID(int=7)


def partition_of(folder: Path) -> Partition:
    return Partition("t", TOPIC_ID, 0, Workbench(folder).log(), TopicCounters(), lambda: 1_000_000, Mock())


def state(epoch: int, leader: int = 0, *isr: int) -> PartitionState:
    return PartitionState(TOPIC_ID, 0, (0, 1), isr, tuple(1 for _ in isr), leader, epoch)


def produce(partition: Partition, sequence: int) -> int:
    batch = batch_of([b"x"], producer=(1, 0, sequence))
    return partition.append(batch, 0, len(batch), 9, LoopQuota(lambda renew: None)).base_offset


def test_a_high_watermark_rises_though_nobody_can_say_by_how_many_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = partition_of(tmp_path)
    partition.become_leader(state(0, 0, 0, 1))
    produce(partition, 0)
    consumer: Any = SimpleNamespace(heard=[])
    consumer.moved = lambda partition, new_bytes: consumer.heard.append(new_bytes)
    partition.waiters.append(consumer)

    def unreadable(*offsets: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(Log, "bytes_between", unreadable)
    partition.become_leader(state(0, 0, 0))
    assert partition.high_watermark == 1
    assert consumer.heard[0] == 0, "the consumer has to read again, because no size is known"


@pytest.mark.parametrize(
    ("kept", "meanwhile", "outcome"), [(2, 2, 2), (1, None, ErrorCode.out_of_order_sequence_number), (2, None, 2)]
)
def test_what_a_producer_wrote_is_asked_again_after_a_recompression(
    tmp_path: Path, kept: int, meanwhile: int | None, outcome: int
) -> None:
    """While sequence 2 is recompressed, other brokers lead. They keep `kept` records, and maybe get sequence 2
    again."""
    partition = partition_of(tmp_path)
    partition.become_leader(state(0, 0, 0))
    produce(partition, 0)
    produce(partition, 1)
    partition.target_codec = Codec.gzip

    class WhileOthersLead(ThreadPoolExecutor):
        def submit(self, work: Any, /, *arguments: Any, **more: Any) -> Any:
            partition.become_follower(state(1, 1, 1))
            truncate_to(partition, kept)
            partition.become_leader(state(2, 0, 0))
            partition.target_codec = None
            if meanwhile is not None:
                produce(partition, meanwhile)
            return super().submit(work, *arguments, **more)

    async def main() -> int:
        inspectors = Inspectors(WhileOthersLead(1), 1)
        try:
            batch = batch_of([b"x"], producer=(1, 0, 2))
            received, quota = Received(batch, 0, len(batch)), LoopQuota(lambda renew: None)
            admitted = await admit_in_turn(partition, received, 9, quota, inspectors, "a connection")
            return partition.append_admitted(*admitted).base_offset
        except KafkaError as error:
            return error.code

    assert asyncio.run(main()) == outcome
    assert partition.log.log_end_offset == (3 if kept == 2 else 1)


def test_a_repeat_is_answered_when_the_first_is_committed(tmp_path: Path) -> None:
    async def main() -> None:
        partition = partition_of(tmp_path)
        partition.become_leader(state(0, 0, 0, 1))
        for sequence in range(3):
            produce(partition, sequence)
        last, first = partition.committed(2), partition.committed(produce(partition, 0))
        partition.follower_fetched(1, 1, 1, 0)
        assert (first.done(), last.done()) == (True, False)

    asyncio.run(main())
