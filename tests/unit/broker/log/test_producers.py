"""Idempotent producers: repeated batches, gaps, epochs, sequence numbers that wrap, snapshots."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.log.producers import Duplicate, FrozenProducers, Producers
from ottla.protocol.batches import BatchHeader
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.markers import Marker
from ottla.storage.indexes import AbortedTransaction
from ottla.storage.producer_snapshot import read_marked_to, read_snapshot


def header(sequence: int, count: int = 1, *, epoch: int = 0, producer: int = 7, attributes: int = 0) -> BatchHeader:
    return BatchHeader(0, 49, 0, 2, 0, attributes, count - 1, 0, 0, producer, epoch, sequence, count)


def note(producers: Producers, batch: BatchHeader, offset: int, timestamp: int = 1000) -> None:
    assert producers.check(batch) is None
    producers.update(batch, offset + batch.last_offset_delta, timestamp)


def refused(producers: Producers, batch: BatchHeader) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        producers.check(batch)
    return caught.value.code


def answer(producers: Producers, batch: BatchHeader) -> Duplicate | ErrorCode | None:
    try:
        return producers.check(batch)
    except KafkaError as error:
        return ErrorCode(error.code)


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
    restored.restore(list(read_snapshot(producers.snapshot())), 12, 1000, 10**6)
    assert restored.check(header(0)) == Duplicate(0, 0, 1000)
    assert restored.check(header(2)) == Duplicate(2, 2, 1000)
    assert restored.check(header(3)) is None
    assert refused(restored, header(4)) == ErrorCode.out_of_order_sequence_number
    assert restored.first_unstable_offset(0) == 10
    assert restored.snapshot() == producers.snapshot()


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
    assert producers.first_unstable_offset(4) == 4
    assert producers.transaction_ended(7, 0, Marker(False, 3, 2000), 5) == AbortedTransaction(7, 4, 5, 6)
    assert producers.first_unstable_offset(5) == 4, "another replica may lack the marker"
    assert producers.first_unstable_offset(6) is None
    note(producers, header(1), 6)


ON_THE_WAY_MAX = 5


@given(
    written=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), st.booleans()), max_size=60),
    begun_before=st.booleans(),
    dropped=st.integers(0, 20),
    stored=st.integers(0, 60),
)
def test_after_a_truncation_what_is_on_the_way_is_answered_as_after_a_replay(
    written: list[tuple[int, int, bool]], begun_before: bool, dropped: int, stored: int
) -> None:
    """After a truncation, batches in flight get the same answers as after a replay of the log.

    `written` has a batch for each (producer, number of records, whether the producer's epoch is new). With
    `begun_before`, older batches of the producers were deleted. After `stored` batches, the state is written to a
    snapshot file and read back."""
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

    def replayed(some: list[tuple[int, BatchHeader]], stored: int = -1) -> Producers:
        producers = Producers()
        for number, (at, batch) in enumerate(some):
            if number == stored:
                content, producers = producers.snapshot(), Producers()
                producers.restore(read_snapshot(content), at, 0, 10**9)
            note(producers, batch, at, 1000 + at)
        return producers

    kept = batches[: max(len(batches) - dropped, 0)]
    end = kept[-1][0] + kept[-1][1].count if kept else 0
    found, expected = replayed(batches, stored), replayed(kept)
    if not found.truncate_to(end):
        assert end < batches[stored][0], "only state from a snapshot may be insufficient"
        assert found.snapshot() == replayed(batches).snapshot(), "the state is unchanged"
        return
    assert {id for id, _ in expected.items()} <= {id for id, _ in found.items()}
    for producer_id in sequences:
        left, exact = found.get(producer_id), expected.get(producer_id)
        if left is None:
            assert exact is None
            continue
        if left.batches:
            assert exact is not None
            assert (left.epoch, left.last_timestamp) == (exact.epoch, exact.last_timestamp)
            assert left.batches == exact.batches[-len(left.batches) :]
        sent = [(at, batch) for at, batch in batches if batch.producer_id == producer_id]
        on_the_way = [
            (at, batch) for at, batch in sent[-ON_THE_WAY_MAX:] if batch.producer_epoch == sent[-1][1].producer_epoch
        ]
        for at, batch in on_the_way:  # the producer sends all batches in flight again, in this order
            if at < end:
                assert found.check(batch) == expected.check(batch) == Duplicate(at, at + batch.count - 1, 1000 + at)
        lost = [(at, batch) for at, batch in on_the_way if at >= end]
        answered_and_lost = len(lost) < sum(at >= end for at, _ in sent) and len(lost) == len(on_the_way)
        for at, batch in lost:
            wanted = answer(expected, batch)
            if wanted is not None:
                assert answered_and_lost
                assert answer(found, batch) == wanted
                break
            if answered_and_lost and exact is None and batch.base_sequence:
                break  # a gap, of which a replay can't know
            assert answer(found, batch) is None
            found.update(batch, at + batch.last_offset_delta, 1000)
            expected.update(batch, at + batch.last_offset_delta, 1000)


def test_five_batches_on_the_way_are_forgotten_without_reading_the_log() -> None:
    producers = Producers()
    for index in range(20):
        note(producers, header(index), index)
    note(producers, header(0, producer=8), 20)
    assert producers.truncate_to(15)
    assert [producer_id for producer_id, _ in producers.items()] == [7]
    assert refused(producers, header(16)) == ErrorCode.out_of_order_sequence_number
    assert producers.check(header(14)) == Duplicate(14, 14, 1000)
    note(producers, header(15), 15)


def test_a_producer_that_lost_all_that_is_known_of_it_is_told_of_the_gap_and_begins_anew() -> None:
    """The gap is reported as by a Kafka broker that has read the log anew."""
    producers = Producers()
    for index in range(20):
        note(producers, header(index, epoch=1), index)
    assert producers.truncate_to(10)
    assert refused(producers, header(20, epoch=1)) == ErrorCode.out_of_order_sequence_number
    assert refused(producers, header(20, epoch=0)) == ErrorCode.invalid_producer_epoch
    note(producers, header(0, epoch=2), 10)


def test_an_epoch_that_was_truncated_begins_again() -> None:
    producers = Producers()
    note(producers, header(7), 0)
    note(producers, header(0, epoch=1), 1)
    note(producers, header(1, epoch=1), 2)
    assert producers.truncate_to(1)
    note(producers, header(0, epoch=1), 1)
    note(producers, header(1, epoch=1), 2)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["append", "append", "truncate", "freeze", "look after"]), st.integers(0, 6)),
        max_size=80,
    )
)
def test_truncations_and_appends_by_turns_leave_each_producers_own_batches(steps: list[tuple[str, int]]) -> None:
    """The number in a step is the producer's id for an append, or the count of records to drop for a truncation. Each
    batch has one record.
    """
    producers = Producers()
    log: list[int] = []  # the producer at each offset
    frozen: list[tuple[FrozenProducers, dict[int, tuple[int, ...]]]] = []

    def offsets_of(state: FrozenProducers | Producers) -> dict[int, tuple[int, ...]]:
        return {producer_id: tuple(kept.last_offset for kept in entry.batches) for producer_id, entry in state.items()}

    for what, number in steps:
        match what:
            case "append":
                batch = header(log.count(number), producer=number)
                entry = producers.get(number)
                if entry is None or entry.batches:
                    assert producers.check(batch) is None
                producers.update(batch, len(log), 1000 + len(log))
                log.append(number)
            case "truncate":
                end = max(len(log) - number, 0)
                assert producers.truncate_to(end)
                del log[end:]
            case "freeze":
                frozen.append((producers.freeze(), offsets_of(producers)))
            case "look after":
                for _ in producers.expire_in_steps(0, 10**9, number + 1):
                    pass
        for producer_id, left in offsets_of(producers).items():
            offsets = [offset for offset, producer in enumerate(log) if producer == producer_id]
            assert list(left) == offsets[len(offsets) - len(left) :]
            assert producers.get(producer_id) is not None
        assert set(log) <= offsets_of(producers).keys()
        assert all(offsets_of(state) == then for state, then in frozen)
    content = producers.snapshot()
    restored = Producers()
    restored.restore(read_snapshot(content), len(log), 0, 10**9)
    assert offsets_of(restored) == offsets_of(producers)
    assert restored.snapshot() == content


def test_producers_that_a_snapshot_brought_go_back_too() -> None:
    producers = Producers()
    for index in range(6):
        note(producers, header(index // 3, producer=index % 3), index)
    restored = Producers()
    restored.restore(read_snapshot(producers.snapshot()), 6, 0, 10**9)
    assert restored.truncate_to(2)
    assert {producer_id: entry.last_offset for producer_id, entry in restored.items()} == {0: 0, 1: 1}
    producers.transaction_ended(1, 0, Marker(True, 0, 2000), 6)
    restored.restore(read_snapshot(producers.snapshot()), 9, 0, 10**9, read_marked_to(producers.snapshot()))
    assert not restored.truncate_to(6), "the state before the marker isn't known any more"
    assert restored.truncate_to(7)
    restored.restore(read_snapshot(producers.snapshot()), 9, 0, 10**9)
    assert not restored.truncate_to(8), "Kafka's snapshots don't say where the marker is"


def test_a_marker_that_is_truncated_gives_its_producers_former_state_back() -> None:
    producers = Producers()
    note(producers, header(0, attributes=0x10), 0)
    producers.transaction_ended(7, 1, Marker(True, 3, 2000), 1)
    note(producers, header(0, epoch=1, attributes=0x10), 2)
    assert producers.truncate_to(2)
    entry = producers.get(7)
    assert entry is not None
    assert (entry.epoch, entry.last_sequence, entry.coordinator_epoch, entry.transaction_start) == (1, -1, 3, -1)
    note(producers, header(0, epoch=1, attributes=0x10), 2)
    assert producers.truncate_to(1)
    entry = producers.get(7)
    assert entry is not None
    assert (entry.epoch, entry.last_sequence, entry.coordinator_epoch, entry.transaction_start) == (0, 0, -1, 0)
    assert producers.check(header(0, attributes=0x10)) == Duplicate(0, 0, 1000)
    assert producers.transactions.open_transactions() == [(0, 7)]
    producers.transaction_ended(7, 1, Marker(True, 3, 2000), 1)
    producers.transaction_ended(8, 0, Marker(True, 3, 2000), 2)
    assert producers.truncate_to(2)
    assert producers.get(8) is None


def test_a_marker_below_the_high_watermark_is_no_reason_to_read_the_log() -> None:
    producers = Producers()
    note(producers, header(0, attributes=0x10), 0)
    producers.transaction_ended(7, 0, Marker(True, 3, 2000), 1)
    note(producers, header(1), 2)
    assert producers.first_unstable_offset(2) is None
    assert not producers.truncate_to(1), "the state before the marker isn't kept any more"
    assert producers.truncate_to(2)
    entry = producers.get(7)
    assert entry is not None
    assert (entry.last_sequence, entry.coordinator_epoch) == (0, 3)


def test_what_a_snapshot_of_kafkas_says_of_one_batch_only_is_read_from_the_log() -> None:
    """Kafka's snapshots have only the last batch of each producer. If a truncation drops this batch, only the log can
    say which batch is the producer's last one then.
    """
    producers = Producers()
    for index in range(3):
        note(producers, header(index), index)
    producers.get(7).batches = producers.get(7).batches[-1:]  # type: ignore[union-attr]
    restored = Producers()
    restored.restore(read_snapshot(producers.snapshot()), 3, 0, 10**9)
    assert not restored.truncate_to(2)
    assert restored.truncate_to(3)


def test_truncations_are_forgotten_once_every_entry_has_gone_back() -> None:
    """`expire_in_steps` visits every producer's entry. When it has ended, the truncations from before it are forgotten,
    even if entries are appended, frozen and truncated between its steps.
    """
    producers = Producers()
    for index in range(10):
        note(producers, header(0, producer=index), index)
    assert producers.truncate_to(5)
    steps = producers.expire_in_steps(0, 10**9, 2)
    next(steps)
    note(producers, header(0, producer=20), 5)
    frozen = producers.freeze()
    note(producers, header(0, producer=21), 6)
    assert producers.truncate_to(6)
    assert len(list(steps)) == 3
    assert len(producers._cuts) == 1
    assert {producer_id for producer_id, _ in producers.items()} == {0, 1, 2, 3, 4, 20}
    assert {producer_id for producer_id, _ in frozen.items()} == {0, 1, 2, 3, 4, 20}
    for _ in producers.expire_in_steps(0, 10**9, 2):
        pass
    assert not producers._cuts
    assert len(producers) == 6


@pytest.mark.parametrize("lost", ["ten batches", "a batch of each", "an epoch of each", "eight batches of each"])
def test_a_truncation_among_many_producers_holds_the_loop_for_none_of_them(lost: str) -> None:
    """Before the fix, a truncation that dropped batches of 50,000 producers took up to 1.3 s: it visited each
    producer's entry, or read the headers of the log. The log is read only if truncate_to returns False. The limit for
    the truncation is a fraction of the time of one walk over the 20,000 producers of this test.
    """
    producers = Producers()
    for producer in range(20_000):
        note(producers, header(0, producer=producer), producer)
    offset = end = 20_000 - (10 if lost == "ten batches" else 0)
    for sequence in range(1, {"ten batches": 1, "eight batches of each": 9}.get(lost, 2)):
        for producer in range(10_000):
            batch = (
                header(0, epoch=1, producer=producer)
                if lost == "an epoch of each"
                else header(sequence, producer=producer)
            )
            note(producers, batch, offset)
            offset += 1
    began = time.thread_time()
    assert producers.truncate_to(end)
    took = time.thread_time() - began
    began = time.thread_time()
    assert all(entry.last_offset < end for _, entry in producers.items())
    assert took < (time.thread_time() - began) / 20
