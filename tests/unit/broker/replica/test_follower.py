"""A follower's decisions, applied to model logs with any history of leaders, clean and unclean.

The test's reference knows both logs and compares them offset by offset; the follower sees only epochs and answers.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.broker.log.disk import Disk
from ottla.broker.log.epochs import LeaderEpochs
from ottla.broker.replica.follower import (
    Append,
    AskRange,
    CorruptBatch,
    Decision,
    Held,
    Pause,
    Restart,
    Told,
    Truncate,
    decide,
    out_of_range,
    truncation_point,
    whole_batches,
)
from ottla.protocol.batches import BatchHeader, Record, assign, build_batch, read_header
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.unit.examples import examples

OUT_OF_RANGE = ErrorCode.offset_out_of_range


class NoDisk:
    def write_atomically(self, path: str, data: bytes, fsync: bool = True) -> None:
        pass


def header(base: int, count: int, epoch: int, writer: int = -1) -> BatchHeader:
    """A batch header. By `writer`, which becomes the producer id, the test distinguishes batches that different leaders
    wrote.
    """
    return BatchHeader(base, 49, epoch, 2, 0, 0, count - 1, -1, -1, writer, -1, -1, count)


@dataclass
class Model:
    """A replica: its batches in order, its epochs, its log start and log end offset."""

    batches: list[BatchHeader] = field(default_factory=list)
    start: int = 0
    end: int = 0
    epochs: LeaderEpochs = field(default_factory=lambda: LeaderEpochs(cast(Disk, NoDisk()), ""))

    def append(self, batch: BatchHeader) -> None:
        assert batch.base_offset >= self.end
        if batch.leader_epoch > self.epochs.latest:
            self.epochs.assign(batch.leader_epoch, batch.base_offset)
        self.batches.append(batch)
        self.end = batch.last_offset + 1

    def truncate_to(self, offset: int) -> None:
        self.batches = [batch for batch in self.batches if batch.last_offset < offset]
        if offset < self.end:
            self.end = self.batches[-1].last_offset + 1 if self.batches else offset
        self.start = min(self.start, self.end)
        self.epochs.truncate_from_end(self.end)

    def restart_at(self, offset: int) -> None:
        self.batches = []
        self.start = self.end = offset
        self.epochs.clear()

    def delete_before(self, offset: int) -> None:
        self.start = max(self.start, min(offset, self.end))
        self.batches = [batch for batch in self.batches if batch.last_offset >= self.start]
        self.epochs.truncate_from_start(self.start)

    def held(self) -> Held:
        return Held(self.start, self.end, self.epochs.latest, self.epochs)

    def offsets(self) -> dict[int, tuple[int, int]]:
        """(epoch, writer) by offset."""
        return {
            offset: (batch.leader_epoch, batch.producer_id)
            for batch in self.batches
            for offset in range(max(batch.base_offset, self.start), batch.last_offset + 1)
        }

    def answer(self, offset: int, last_epoch: int, batches_max: int) -> Told:
        """A leader's answer to a follower's Fetch."""
        if last_epoch >= 0:
            epoch, end = self.epochs.end_offset_for(last_epoch, self.end)
            if end < 0:
                return Told(OUT_OF_RANGE, -1, -1, None, ())
            if epoch < last_epoch or end < offset:
                return Told(0, self.end, self.start, (epoch, end), ())
        if not self.start <= offset <= self.end:
            return Told(OUT_OF_RANGE, -1, -1, None, ())
        headers = [(0, batch) for batch in self.batches if batch.last_offset >= offset][:batches_max]
        return Told(0, self.end, self.start, None, headers)


def shared_end(leader: Model, follower: Model) -> int:
    """The test's reference: the offset up to which both logs, complete from 0 on, are equal."""
    theirs, ours = leader.offsets(), follower.offsets()
    offset = 0
    while offset < min(leader.end, follower.end) and theirs.get(offset) == ours.get(offset):
        offset += 1
    return offset


def carry_out(follower: Model, decision: Decision, leader: Model) -> None:
    match decision:
        case Append(headers, _, log_start, restart_at):
            if restart_at is not None:
                follower.restart_at(restart_at)
            for _, batch in headers:
                follower.append(batch)
            follower.delete_before(log_start)
        case Truncate(offset):
            follower.truncate_to(offset)
        case Restart(offset):
            follower.restart_at(offset)
        case AskRange():
            carry_out(follower, out_of_range(follower.held(), leader.start, leader.end), leader)
        case Pause(error):
            raise AssertionError(f"paused by {error}")


@dataclass
class Cluster:
    """Three replicas and their history. `elect` makes any of them the leader, whatever records it lacks."""

    replicas: list[Model] = field(default_factory=lambda: [Model() for _ in range(3)])
    leader: int = 0
    epoch: int = 0

    def elect(self, replica: int) -> None:
        self.leader = replica
        self.epoch += 1
        self.replicas[replica].epochs.assign(self.epoch, self.replicas[replica].end)

    def write(self, count: int) -> None:
        leader = self.replicas[self.leader]
        leader.append(header(leader.end, count, self.epoch, self.leader))

    def copy(self, replica: int, rounds: int) -> None:
        """The follower fetches `rounds` times, which may end in the middle of its truncations."""
        if replica == self.leader:
            return
        leader, follower = self.replicas[self.leader], self.replicas[replica]
        for _ in range(rounds):
            carry_out(follower, decide(follower.held(), leader.answer(follower.end, follower.epochs.latest, 1)), leader)

    def delete(self, offset: int) -> None:
        self.replicas[self.leader].delete_before(offset)


steps = st.one_of(
    st.tuples(st.just("elect"), st.integers(0, 2)),
    st.tuples(st.just("write"), st.integers(1, 4)),
    st.tuples(st.just("write"), st.integers(1, 4)),
    st.tuples(st.just("copy"), st.integers(0, 2), st.integers(1, 4)),
    st.tuples(st.just("copy"), st.integers(0, 2), st.integers(1, 4)),
)
deletions = st.tuples(st.just("delete"), st.integers(0, 12))


def run(history: list[tuple]) -> Cluster:
    cluster = Cluster()
    cluster.elect(0)
    for name, *arguments in history:
        getattr(cluster, name)(*arguments)
    return cluster


def converge(cluster: Cluster, replica: int, batches_max: int) -> int:
    """Fetches until nothing changes, and compares the logs. Returns the lowest log end offset that the follower had
    meanwhile."""
    leader, follower = cluster.replicas[cluster.leader], cluster.replicas[replica]
    lowest = follower.end
    for _ in range(2 * cluster.epoch + len(leader.batches) + 5):
        told = leader.answer(follower.end, follower.epochs.latest, batches_max)
        decision = decide(follower.held(), told)
        if isinstance(decision, Append) and not decision.headers and follower.start >= leader.start:
            break
        carry_out(follower, decision, leader)
        lowest = min(lowest, follower.end)
    theirs = {offset: written for offset, written in leader.offsets().items() if offset >= follower.start}
    assert follower.end == leader.end
    assert follower.offsets() == theirs
    # a follower that has deleted more than its new leader doesn't fetch the deleted records again
    assert follower.start >= leader.start
    return lowest


@settings(max_examples=examples(400))
@given(st.lists(steps, max_size=40), st.integers(1, 3))
def test_after_any_history_a_follower_becomes_its_leaders_copy_and_keeps_what_both_share(history, batches_max):
    cluster = run(history)
    for replica in {0, 1, 2} - {cluster.leader}:
        shared = shared_end(cluster.replicas[cluster.leader], cluster.replicas[replica])
        assert converge(cluster, replica, batches_max) == shared


@settings(max_examples=examples(400))
@given(st.lists(steps | deletions, max_size=40), st.integers(1, 3))
def test_it_does_so_where_leaders_have_deleted_their_beginning(history, batches_max):
    cluster = run(history)
    for replica in {0, 1, 2} - {cluster.leader}:
        converge(cluster, replica, batches_max)


def test_a_leader_that_wrote_nothing_forgets_its_epoch() -> None:
    cluster = run([("write", 3), ("copy", 1, 2), ("elect", 1), ("elect", 0)])
    former = cluster.replicas[1]
    assert former.epochs.latest == 2
    assert converge(cluster, 1, 1) == 3
    assert former.epochs.latest == 1


def test_each_round_goes_back_by_one_epoch_where_leaders_took_turns_without_copying() -> None:
    turns = [step for _ in range(4) for step in (("elect", 1), ("write", 1), ("elect", 0), ("write", 1))]
    cluster = run([("write", 2), ("copy", 1, 3), *turns])
    assert converge(cluster, 1, 1) == 2


def test_kafkas_three_cases_of_a_truncation() -> None:
    epochs = LeaderEpochs(cast(Disk, NoDisk()), "")
    held = Held(0, 100, 7, epochs)
    assert truncation_point(held, 3, 40) == 40  # the follower knows no epochs
    for epoch, start in ((2, 0), (5, 50), (7, 80)):
        epochs.assign(epoch, start)
    assert truncation_point(held, 5, 60) == 60  # both know the epoch: the lower of the two ends
    assert truncation_point(held, 5, 95) == 80
    assert truncation_point(held, 6, 95) == 80  # the follower doesn't know the epoch: the end of the epoch before
    assert truncation_point(held, 4, 60) == 50


@pytest.mark.parametrize(
    ("error", "awaited"),
    [
        (ErrorCode.not_leader_or_follower, True),
        (ErrorCode.fenced_leader_epoch, True),
        (ErrorCode.unknown_leader_epoch, True),
        (ErrorCode.unknown_topic_id, True),
        (ErrorCode.kafka_storage_error, False),
        (ErrorCode.corrupt_message, False),
    ],
)
def test_errors_pause(error: ErrorCode, awaited: bool) -> None:
    held = Model().held()
    assert decide(held, Told(error, -1, -1, None, ())) == Pause(error, awaited)


def test_out_of_range_goes_by_what_the_leader_has() -> None:
    held = Held(0, 50, 1, LeaderEpochs(cast(Disk, NoDisk()), ""))
    assert decide(held, Told(OUT_OF_RANGE, -1, -1, None, ())) == AskRange()
    assert out_of_range(held, 0, 30) == Truncate(30)
    assert out_of_range(held, 70, 90) == Restart(70)
    assert out_of_range(held, 0, 90) == Pause(OUT_OF_RANGE, False)


def test_a_truncation_below_what_is_compacted_starts_anew_where_nobody_elects_this_replica() -> None:
    epochs = LeaderEpochs(cast(Disk, NoDisk()), "")
    epochs.assign(1, 0)
    diverging = Told(0, 90, 5, (1, 30), ())
    for compacted_to, electable, expected in (
        (30, False, Truncate(30)),
        (31, False, Restart(5)),
        (31, True, Truncate(30)),
    ):
        held = Held(0, 50, 1, epochs, compacted_to, electable)
        assert decide(held, diverging) == expected
        assert out_of_range(held, 5, 30) == expected


def test_a_batch_that_begins_below_the_end_is_taken_where_there_is_nothing_to_keep() -> None:
    headers = [(0, header(10, 5, 1))]
    empty, filled = Held(12, 12, -1, Model().epochs), Held(3, 12, 1, Model().epochs)
    assert decide(empty, Told(0, 15, 12, None, headers)) == Append(headers, 15, 12, 10)
    # the leader has deleted all of the follower's records
    assert decide(filled, Told(0, 15, 12, None, headers)) == Append(headers, 15, 12, 10)
    assert decide(filled, Told(0, 15, 11, None, headers)) == Pause(ErrorCode.corrupt_message, False)


# ---- the bytes of batches


def batch(base: int, count: int, epoch: int) -> bytearray:
    data = bytearray(build_batch([Record(i, 1000, b"k", b"value") for i in range(count)]))
    assign(data, 0, base, epoch)
    return data


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=6), st.integers(0, 400))
def test_whole_batches_are_found_and_the_rest_is_dropped(gaps, cut):
    data, bounds, offset = bytearray(), [0], 0
    for gap, count in gaps:
        data += batch(offset + gap, count, 3)
        offset += gap + count
        bounds.append(len(data))
    end = max(len(data) - cut, 0)
    found = whole_batches(memoryview(data)[:end], 3, 0)
    assert [position for position, _ in found] == [start for start, stop in pairwise(bounds) if stop <= end]
    assert all(read_header(data, position) == read for position, read in found)
    assert whole_batches(memoryview(data)[:end], 3, 0, 2) == found[:2]


def test_a_later_epoch_ends_an_answer() -> None:
    data = batch(0, 2, 3) + batch(2, 2, 4) + batch(4, 1, 3)
    assert [read.base_offset for _, read in whole_batches(data, 3, 0)] == [0]
    assert len(whole_batches(data[: 2 * len(batch(0, 2, 3))], 4, 0)) == 2


@settings(max_examples=examples(300))
@given(st.integers(0, 10_000), st.integers(1, 255))
def test_one_wrong_byte_is_noticed_wherever_the_crc_covers_it(place, flip):
    data = batch(0, 2, 3)
    at = 16 + place % (len(data) - 16)  # the magic, the CRC, and the bytes that it covers
    data[at] ^= flip
    with pytest.raises(CorruptBatch) as raised:
        whole_batches(data, 3, 0)
    assert raised.value.code == ErrorCode.corrupt_message
    assert raised.value.offset == 0


@pytest.mark.parametrize(
    ("at", "flip", "reason"),
    [
        (70, 0xFF, "the batch has a wrong CRC"),
        (16, 0xFF, "there is no batch"),
        (8, 0x80, "a batch states a length of"),
    ],
    ids=["content", "magic", "length"],
)
def test_what_a_leader_sends_damaged_has_an_offset(at: int, flip: int, reason: str) -> None:
    """Before the fix, the message had only the error's name, without the offset."""
    data = batch(10, 2, 3) + batch(12, 3, 3)
    data[len(batch(10, 2, 3)) + at] ^= flip
    with pytest.raises(CorruptBatch, match=reason) as raised:
        whole_batches(data, 3, 10)
    assert raised.value.offset == 12
    with pytest.raises(CorruptBatch) as raised:
        whole_batches(data[len(batch(10, 2, 3)) :], 3, 12)
    assert raised.value.offset == 12


@pytest.mark.parametrize("second", [batch(1, 2, 3), batch(0, 1, 3)])
def test_offsets_that_go_back_are_refused(second: bytearray) -> None:
    with pytest.raises(KafkaError):
        whole_batches(batch(0, 2, 3) + second, 3, 0)


def test_any_bytes_give_batches_or_an_error() -> None:
    dice = random.Random(5)
    for _ in range(2000):
        data = bytearray(dice.randbytes(dice.randrange(200)))
        with suppress(KafkaError):
            whole_batches(data, 3, 0)
