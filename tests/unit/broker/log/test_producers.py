"""Idempotence: repeats, gaps, epochs, wrapping, snapshots."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


@given(
    written=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), st.booleans()), max_size=60),
    begun_before=st.booleans(),
    dropped=st.integers(0, 20),
)
def test_what_truncation_leaves_is_what_a_replay_would_find(
    written: list[tuple[int, int, bool]], begun_before: bool, dropped: int
) -> None:
    """`written`: (producer, records, whether its epoch is a new one); `begun_before`: older batches were deleted."""
    sequences: dict[int, tuple[int, int]] = {}
    batches = []
    offset = 0
    for producer, count, anew in written:
        epoch, sequence = sequences.get(producer, (0, 50 if begun_before else 0))
        if anew:
            epoch, sequence = epoch + 1, 0
        batches.append((offset, header(sequence, count, epoch=epoch, producer=producer)))
        sequences[producer] = epoch, sequence + count
        offset += count

    def replayed(some: list[tuple[int, BatchHeader]]) -> Producers:
        producers = Producers()
        for at, batch in some:
            note(producers, batch, at, 1000 + at)
        return producers

    kept = batches[: max(len(batches) - dropped, 0)]
    end = kept[-1][0] + kept[-1][1].count if kept else 0
    found, expected = replayed(batches), replayed(kept)
    if not found.truncate_to(end):
        assert dict(found.items()).keys() == dict(replayed(batches).items()).keys(), "nothing is changed"
        return
    assert dict(found.items()).keys() == dict(expected.items()).keys()
    for producer_id, entry in expected.items():
        left = found.get(producer_id)
        assert left is not None
        assert (left.epoch, left.last_timestamp) == (entry.epoch, entry.last_timestamp)
        assert left.batches == entry.batches[-len(left.batches) :]
        # Whoever has five on the way at most may still repeat those that were sent with the dropped ones.
        on_the_way = 5 - sum(batch.producer_id == producer_id for _, batch in batches[len(kept) :])
        assert len(left.batches) >= min(on_the_way, len(entry.batches))


def test_five_batches_on_the_way_are_forgotten_without_reading_the_log() -> None:
    producers = Producers()
    for index in range(20):
        note(producers, header(index), index)
    note(producers, header(0, producer=8), 20)
    assert not producers.truncate_to(14), "nobody knows the sequence before"
    assert [producer_id for producer_id, _ in producers.items()] == [7, 8]
    assert producers.truncate_to(15)
    assert [producer_id for producer_id, _ in producers.items()] == [7]
    assert refused(producers, header(16)) == ErrorCode.out_of_order_sequence_number
    assert producers.check(header(14)) == Duplicate(14, 14, 1000)
    note(producers, header(15), 15)


@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 6)), max_size=80))
def test_truncations_and_appends_by_turns_leave_each_producers_own_batches(steps: list[tuple[bool, int]]) -> None:
    """`steps`: (whether it is an append, the producer or how much is dropped). Each batch has one record."""
    producers = Producers()
    log: list[int] = []  # the producer at each offset
    for appends, number in steps:
        if appends:
            note(producers, header(log.count(number), producer=number), len(log), 1000 + len(log))
            log.append(number)
            continue
        end = max(len(log) - number, 0)
        if not producers.truncate_to(end):
            assert any(log.count(producer) > 6 for producer in log[end:])
            continue
        del log[end:]
        assert dict(producers.items()).keys() == set(log)
        for producer_id, entry in producers.items():
            offsets = [offset for offset, producer in enumerate(log) if producer == producer_id]
            assert [batch.last_offset for batch in entry.batches] == offsets[-len(entry.batches) :]


def test_producers_that_a_snapshot_brought_go_back_too() -> None:
    producers = Producers()
    for index in range(6):
        note(producers, header(index // 3, producer=index % 3), index)
    restored = Producers()
    restored.restore(reversed(list(read_snapshot(producers.snapshot()))), 0, 10**9)
    assert restored.truncate_to(2)
    assert {producer_id: entry.last_offset for producer_id, entry in restored.items()} == {0: 0, 1: 1}
    producers.transaction_ended(1, 0, 0, 2000)
    restored.restore(read_snapshot(producers.snapshot()), 0, 10**9)
    assert not restored.truncate_to(2), "a marker isn't among the batches"


def test_a_truncation_of_some_batches_doesnt_walk_over_a_hundred_thousand_producers() -> None:
    """It took 370 ms of the event loop. Measured against one walk over all of them."""
    producers = Producers()
    for producer in range(100_000):
        note(producers, header(0, producer=producer), producer)
    took = []
    for _ in range(5):
        began = time.perf_counter()
        assert producers.truncate_to(len(producers) - 10)
        took.append(time.perf_counter() - began)
    assert len(producers) == 99_950
    began = time.perf_counter()
    assert all(entry.last_offset < 99_950 for _, entry in producers.items())
    assert min(took) < (time.perf_counter() - began) / 20
