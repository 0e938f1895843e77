"""The batches and markers of transactions that a partition's leader appends, and the errors with which it refuses
others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock
from uuid import UUID

import pytest

from ottla.broker.counters import TopicCounters
from ottla.broker.partition import Appended, Partition
from ottla.broker.verification import NOT_NEEDED, Guard
from ottla.metadata.model.partitions import Partition as PartitionState
from ottla.protocol.batches import NO_SEQUENCE, Record, build_batch, read_header
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.unit.broker.log.workbench import Workbench

TOPIC_ID = UUID(int=7)
PRODUCER = 7


def led(folder: Path, *isr: int) -> Partition:
    partition = Partition("t", TOPIC_ID, 0, Workbench(folder).log(), TopicCounters(), lambda: 1_000_000, Mock())
    lead(partition, *isr)
    return partition


def lead(partition: Partition, *isr: int, epoch: int = 0) -> None:
    partition.become_leader(PartitionState(TOPIC_ID, 0, (0, 1), isr, tuple(1 for _ in isr), 0, epoch))


def data(
    partition: Partition, sequence: int, epoch: int = 0, *, guard: Guard = NOT_NEEDED, transactional: bool = True
) -> Appended:
    batch = bytearray(
        build_batch(
            [Record(0, 0, b"k", b"v")], producer_id=PRODUCER, producer_epoch=epoch, base_sequence=sequence,
            transactional=transactional,
        )
    )  # fmt: skip
    return partition.append_admitted(memoryview(batch), read_header(batch), guard)


def begin(partition: Partition, sequence: int = 0, epoch: int = 0, *, bumps: bool = False) -> Appended:
    guard = partition.guard_for(PRODUCER, epoch, sequence, bumps=bumps)
    assert guard is not NOT_NEEDED
    return data(partition, sequence, epoch, guard=guard)


def refused(call: Callable[[], object]) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        call()
    return ErrorCode(caught.value.code)


def test_a_transaction_begins_with_a_guard_and_goes_on_without(tmp_path: Path) -> None:
    partition = led(tmp_path, 0)
    assert refused(lambda: data(partition, 0)) is ErrorCode.invalid_txn_state
    begin(partition)
    assert partition.guard_for(PRODUCER, 0, 1, bumps=False) is NOT_NEEDED
    assert data(partition, 1).base_offset == 1
    assert (partition.high_watermark, partition.last_stable_offset) == (2, 0)
    assert data(partition, 0).base_offset == 0, "a repeat"
    assert refused(lambda: data(partition, 5)) is ErrorCode.out_of_order_sequence_number
    assert refused(lambda: data(partition, 2, transactional=False)) is ErrorCode.invalid_txn_state
    assert partition.append_marker(PRODUCER, 0, 3, True, 0) == 2
    assert partition.last_stable_offset == partition.high_watermark == 3
    assert data(partition, 2, transactional=False).base_offset == 3


def test_a_batch_that_comes_after_its_transactions_marker_begins_no_other_one(tmp_path: Path) -> None:
    """A broker that doesn't verify batches (KIP-890) would append the batch, and the last stable offset would stand
    still for ever, as in older versions of Kafka."""
    partition = led(tmp_path, 0)
    guard = partition.guard_for(PRODUCER, 0, 0, bumps=False)
    partition.append_marker(PRODUCER, 0, 3, False, 1)
    assert refused(lambda: data(partition, 0, guard=guard)) is ErrorCode.invalid_txn_state
    assert partition.last_stable_offset == partition.high_watermark == 1


def test_a_marker_that_comes_with_the_next_epoch_leaves_the_next_transactions_guard(tmp_path: Path) -> None:
    partition = led(tmp_path, 0)
    begin(partition, bumps=True)
    guard = partition.guard_for(PRODUCER, 1, 0, bumps=True)
    partition.append_marker(PRODUCER, 1, 3, True, 2)
    assert data(partition, 0, 1, guard=guard).base_offset == 2


def test_guards_are_lost_with_the_leadership(tmp_path: Path) -> None:
    partition = led(tmp_path, 0)
    guard = partition.guard_for(PRODUCER, 0, 0, bumps=False)
    partition.resign("test")
    lead(partition, 0, epoch=1)
    assert refused(lambda: data(partition, 0, guard=guard)) is ErrorCode.invalid_txn_state


def test_markers_of_the_older_protocol_may_have_the_known_epoch(tmp_path: Path) -> None:
    partition = led(tmp_path, 0)
    begin(partition, epoch=4)
    assert refused(lambda: partition.append_marker(PRODUCER, 3, 0, True, 1)) is ErrorCode.invalid_producer_epoch
    partition.append_marker(PRODUCER, 4, 0, True, 1)
    partition.append_marker(PRODUCER, 4, 0, True, 1)
    partition.append_marker(PRODUCER, 5, 0, False, 1)
    assert refused(lambda: partition.guard_for(PRODUCER, 4, 0, bumps=False)) is ErrorCode.invalid_producer_epoch


def test_markers_of_the_newer_protocol_have_a_newer_epoch_unless_they_are_repeats(tmp_path: Path) -> None:
    partition = led(tmp_path, 0)
    begin(partition, epoch=4, bumps=True)
    assert refused(lambda: partition.append_marker(PRODUCER, 4, 0, True, 2)) is ErrorCode.invalid_producer_epoch
    assert partition.append_marker(PRODUCER, 5, 0, True, 2) == 1
    assert partition.append_marker(PRODUCER, 5, 0, True, 2) == 2
    assert refused(lambda: partition.append_marker(PRODUCER, 4, 0, True, 2)) is ErrorCode.invalid_producer_epoch
    begin(partition, epoch=5, bumps=True)
    assert refused(lambda: partition.append_marker(PRODUCER, 5, 0, True, 2)) is ErrorCode.invalid_producer_epoch
    begin_last = 32767
    partition.append_marker(PRODUCER, begin_last, 0, True, 2)
    begin(partition, epoch=begin_last, bumps=True)
    partition.append_marker(PRODUCER, begin_last, 0, True, 2)
    assert partition.last_stable_offset == partition.high_watermark


def test_a_coordinator_that_was_replaced_is_fenced(tmp_path: Path) -> None:
    partition = led(tmp_path, 0)
    begin(partition)
    partition.append_marker(PRODUCER, 0, 3, True, 1)
    code = ErrorCode.transaction_coordinator_fenced
    assert refused(lambda: partition.append_marker(PRODUCER, 0, 2, True, 1)) is code
    partition.append_marker(PRODUCER, 0, 3, True, 1)


def test_a_marker_without_data_is_written_and_indexed_nowhere(tmp_path: Path) -> None:
    partition = led(tmp_path, 0)
    assert partition.append_marker(PRODUCER, 9, 3, False, 2) == 0
    assert partition.log.active.aborted is None
    entry = partition.log.producers.get(PRODUCER)
    assert entry is not None
    assert (entry.epoch, entry.coordinator_epoch) == (9, 3)


def test_markers_need_the_leader_and_enough_replicas_in_sync(tmp_path: Path) -> None:
    partition = led(tmp_path, 0)
    partition.min_isr = 2
    assert refused(lambda: partition.append_marker(PRODUCER, 0, 3, True, 1)) is ErrorCode.not_enough_replicas
    partition.resign("test")
    assert refused(lambda: partition.append_marker(PRODUCER, 0, 3, True, 1)) is ErrorCode.not_leader_or_follower


def test_a_coordinators_batches_have_no_sequence_and_repeat_nothing(tmp_path: Path) -> None:
    """The group coordinator writes such batches for the offsets of a transaction."""
    partition = led(tmp_path, 0)

    def write(guard: Guard | None = None, *, epoch: int = 1, transactional: bool = True) -> int:
        batch = build_batch(
            [Record(0, 0, b"k", b"v")], producer_id=PRODUCER, producer_epoch=epoch, transactional=transactional
        )
        return partition.append_batch(bytearray(batch), 0, guard)

    assert refused(write) is ErrorCode.invalid_txn_state
    assert write(partition.guard_for(PRODUCER, 1, NO_SEQUENCE, bumps=False)) == 0
    assert [write(), write()] == [1, 2]
    assert refused(lambda: write(transactional=False)) is ErrorCode.invalid_txn_state
    assert refused(lambda: write(epoch=0, transactional=False)) is ErrorCode.invalid_producer_epoch
    partition.append_marker(PRODUCER, 1, 0, True, 1)
    assert refused(write) is ErrorCode.invalid_txn_state


def test_a_marker_counts_when_it_is_committed(tmp_path: Path) -> None:
    partition = led(tmp_path, 0, 1)
    begin(partition)
    partition.follower_fetched(1, 1, 1, 0)
    partition.append_marker(PRODUCER, 0, 0, True, 1)
    assert (partition.high_watermark, partition.last_stable_offset) == (1, 0)
    partition.follower_fetched(1, 1, 2, 0)
    assert (partition.high_watermark, partition.last_stable_offset) == (2, 2)


def test_records_may_be_deleted_under_an_open_transaction(tmp_path: Path) -> None:
    partition = led(tmp_path, 0)
    begin(partition)
    data(partition, 1)
    data(partition, 2)
    assert partition.delete_records(2) == 2
    assert partition.last_stable_offset == 2
    partition.append_marker(PRODUCER, 0, 0, True, 1)
    assert partition.last_stable_offset == 4
