"""Idempotence: repeats, gaps, epochs, wrapping, snapshots."""

from __future__ import annotations

import pytest

from ottla.broker.log.producers import Duplicate, Producers, read_snapshot
from ottla.protocol.batches import BatchHeader
from ottla.protocol.errors import ErrorCode, KafkaError


def header(sequence: int, count: int = 1, *, epoch: int = 0, producer: int = 7, attributes: int = 0) -> BatchHeader:
    return BatchHeader(0, 49, 0, 2, 0, attributes, count - 1, 0, 0, producer, epoch, sequence, count)


def note(producers: Producers, batch: BatchHeader, offset: int, timestamp: int = 1000) -> None:
    assert producers.check(batch) is None
    producers.update(batch, offset + batch.last_offset_delta, timestamp)


def refused(producers: Producers, batch: BatchHeader) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        producers.check(batch)
    return caught.value.code


def test_a_repeat_of_the_last_five_gets_its_first_offset() -> None:
    producers = Producers()
    for index in range(7):
        note(producers, header(index * 3, 3), 100 + index * 3)
    for index in range(2, 7):
        assert producers.check(header(index * 3, 3)) == Duplicate(100 + index * 3, 102 + index * 3, 1000)
    assert refused(producers, header(3, 3)) == ErrorCode.out_of_order_sequence_number
    assert refused(producers, header(18, 2)) == ErrorCode.out_of_order_sequence_number
    assert refused(producers, header(22, 1)) == ErrorCode.out_of_order_sequence_number


def test_epochs() -> None:
    producers = Producers()
    note(producers, header(5, epoch=3), 0)
    assert refused(producers, header(6, epoch=2)) == ErrorCode.invalid_producer_epoch
    assert refused(producers, header(6, epoch=4)) == ErrorCode.out_of_order_sequence_number
    note(producers, header(0, epoch=4), 1)
    note(producers, header(1, epoch=4), 2)


def test_an_unknown_producer_may_begin_anywhere() -> None:
    note(Producers(), header(12345), 0)


def test_sequences_wrap() -> None:
    producers = Producers()
    note(producers, header(2**31 - 2, 2), 0)
    note(producers, header(0), 2)
    producers = Producers()
    note(producers, header(2**31 - 2, 4), 0)
    assert producers.check(header(2**31 - 2, 4)) == Duplicate(0, 3, 1000)
    note(producers, header(2), 4)


def test_snapshots_keep_the_last_batches() -> None:
    producers = Producers()
    for index in range(3):
        note(producers, header(index), index)
    note(producers, header(9, 2, producer=8, epoch=2, attributes=0x10), 10)
    restored = Producers()
    restored.restore(list(read_snapshot(producers.snapshot())), 1000, 10**6)
    assert restored.check(header(0)) == Duplicate(0, 0, 1000)
    assert restored.check(header(2)) == Duplicate(2, 2, 1000)
    assert restored.check(header(3)) is None
    assert refused(restored, header(4)) == ErrorCode.out_of_order_sequence_number
    assert restored.first_unstable_offset() == 10
    assert restored.snapshot() == producers.snapshot()


def test_a_damaged_snapshot_is_refused() -> None:
    producers = Producers()
    note(producers, header(0), 0)
    data = producers.snapshot()
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        with pytest.raises(ValueError, match="snapshot"):
            list(read_snapshot(bytes(damaged)))
        with pytest.raises(ValueError, match="snapshot"):
            list(read_snapshot(data[:position]))


def test_idle_producers_expire_unless_a_transaction_is_open() -> None:
    producers = Producers()
    note(producers, header(0), 0, timestamp=1000)
    note(producers, header(0, producer=8), 1, timestamp=5000)
    note(producers, header(0, producer=9, attributes=0x10), 2, timestamp=1000)
    assert producers.expire(6000, 5000) == 1
    assert sorted(producer_id for producer_id, _ in producers.items()) == [8, 9]


def test_a_marker_ends_the_transaction() -> None:
    producers = Producers()
    note(producers, header(0, attributes=0x10), 4)
    assert producers.first_unstable_offset() == 4
    assert producers.transaction_ended(7, 0, 3, 2000) == 4
    assert producers.first_unstable_offset() is None
    note(producers, header(1), 6)
