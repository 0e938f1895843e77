"""While a thread checks a batch, leadership changes, brokers stop, clients disconnect, and other clients write."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from ottla.broker import contents
from ottla.broker.admission import AdmissionRules
from ottla.broker.api import produce
from ottla.broker.inspectors import Inspectors
from ottla.broker.loop_quota import LOOP_MICROSECONDS, PLAIN_BATCH_BYTES, bytes_in
from ottla.metadata.model.partitions import Partition
from ottla.net.connection import POSTPONED
from ottla.net.memory import BufferedMemory
from ottla.protocol.codecs import Codec, compress
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import read_response
from ottla.protocol.record_walk import SLICE_BYTES
from tests.fuzz.made_batches import record, seal
from tests.unit.broker.api.test_produce_and_fetch import PRODUCE, TOPIC_ID, Client, Stage, batch_of, values

VERSION = 9


class HeldThreads(Executor):
    """An executor that does its oldest task when the test calls `go_on`."""

    def __init__(self) -> None:
        self.held: list[tuple[Future[Any], Callable[..., Any], tuple[Any, ...]]] = []

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **more: Any) -> Future[Any]:
        assert not more
        future: Future[Any] = Future()
        self.held.append((future, work, arguments))
        return future

    def go_on(self) -> None:
        future, work, arguments = self.held.pop(0)
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work(*arguments))
        except Exception as error:
            future.set_exception(error)


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Callable[[Stage, HeldThreads], Coroutine[Any, Any, None]]], None]:
    async def scene(body: Callable[[Stage, HeldThreads], Coroutine[Any, Any, None]]) -> None:
        stage, threads = Stage(tmp_path), HeldThreads()
        stage.broker.inspectors = Inspectors(threads, 4)
        await body(stage, threads)
        assert stage.broker.turns == 0
        assert stage.client.memory.used_bytes == 0
        assert all(partition.last_turn is None for partition in stage.partitions)

    for index in (0, 1):
        (tmp_path / str(index)).mkdir()
    return lambda body: asyncio.run(scene(body))


def large(mark: bytes) -> bytearray:
    """A compressed batch that unpacks to more than the event loop checks itself, and to more than a thread checks in
    one turn."""
    return batch_of([mark + bytes(4_000_000)], codec=Codec.lz4)


def marks(stage: Stage, index: int) -> list[bytes]:
    return [value.rstrip(b"\x00") for value in values(stage, index)]


def codes(pending: Any) -> list[int]:
    answer = read_response(PRODUCE, VERSION, b"".join(map(bytes, pending.parts))[9:])
    return [each.error_code for topic in answer.responses for each in topic.partition_responses]


async def some_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def look_through(threads: HeldThreads) -> None:
    """Lets the threads work until they have checked every batch."""
    await some_turns()
    while threads.held:
        threads.go_on()
        await some_turns()


def test_a_small_batch_that_unpacks_large_leaves_the_loop_and_is_not_overtaken(play: Any) -> None:
    async def body(stage: Stage, threads: HeldThreads) -> None:
        assert len(large(b"a")) < SLICE_BYTES, "a plain batch of that size wouldn't leave the loop"
        first = stage.produce({0: large(b"a")}, 1, VERSION)
        second = stage.produce({0: batch_of([b"b"])}, 1, VERSION)
        other = stage.produce({1: batch_of([b"c"])}, 1, VERSION)
        await some_turns()
        assert (marks(stage, 0), marks(stage, 1)) == ([], [b"c"]), "another partition's batch needn't wait"
        assert other is not None
        await look_through(threads)
        await stage.settle()
        assert marks(stage, 0) == [b"a", b"b"]
        assert (codes(first), codes(second)) == ([0], [0])
        assert stage.counters.produce_requests == 3

    play(body)


def test_without_acks_the_order_is_kept_and_a_bad_batch_cuts_off(play: Any) -> None:
    async def body(stage: Stage, threads: HeldThreads) -> None:
        stage.produce({0: large(b"a")}, 0, VERSION)
        stage.produce({0: batch_of([b"b"])}, 0, VERSION)
        bad = large(b"bad")
        bad[-1] ^= 1
        stage.produce({0: bad}, 0, VERSION)
        await look_through(threads)
        await stage.settle()
        assert marks(stage, 0) == [b"a", b"b"]
        assert stage.client.closed

    play(body)


def test_who_leads_no_longer_when_the_thread_is_done_appends_nothing(play: Any) -> None:
    async def body(stage: Stage, threads: HeldThreads) -> None:
        waiting = stage.produce({0: large(b"a"), 1: large(b"b")}, 1, VERSION)
        await some_turns()
        partition = stage.partitions.find("t", 0)
        partition.become_follower(Partition(TOPIC_ID, 0, (0, 1), (1,), (1,), 1, 5))
        await look_through(threads)
        await stage.settle()
        assert codes(waiting) == [ErrorCode.not_leader_or_follower, ErrorCode.none]
        assert (marks(stage, 0), marks(stage, 1)) == ([], [b"b"])

    play(body)


def test_an_isr_that_shrinks_meanwhile_is_noticed_before_the_append(play: Any) -> None:
    async def body(stage: Stage, threads: HeldThreads) -> None:
        partition = stage.partitions.find("t", 0)
        partition.min_isr = 2
        partition.become_leader(Partition(TOPIC_ID, 0, (0, 1), (0, 1), (1, 1), 0, 1))
        waiting = stage.produce({0: large(b"a")}, -1, VERSION)
        await some_turns()
        partition.become_leader(Partition(TOPIC_ID, 0, (0, 1), (0,), (1,), 0, 1, 1))
        await look_through(threads)
        await stage.settle()
        assert codes(waiting) == [ErrorCode.not_enough_replicas]
        assert marks(stage, 0) == []

    play(body)


def test_a_topic_made_anew_meanwhile_gets_nothing_of_the_old_ones(play: Any) -> None:
    async def body(stage: Stage, threads: HeldThreads) -> None:
        waiting = stage.produce({0: large(b"a")}, 1, VERSION)
        await some_turns()
        stage.partitions.remove(stage.partitions.find("t", 0))
        await look_through(threads)
        await stage.settle()
        assert codes(waiting) != [ErrorCode.none]
        assert marks(stage, 0) == []

    play(body)


def test_a_stop_while_a_thread_works_gives_everything_back(play: Any) -> None:
    async def body(stage: Stage, threads: HeldThreads) -> None:
        stage.produce({0: large(b"a"), 1: large(b"b")}, 1, VERSION)
        stage.produce({0: batch_of([b"c"])}, 1, VERSION)
        await some_turns()
        stage.cancel()
        await stage.settle()
        threads.go_on()
        assert (marks(stage, 0), marks(stage, 1)) == ([], [])

    play(body)


def test_a_client_that_hangs_up_has_its_batches_appended_all_the_same(play: Any) -> None:
    async def body(stage: Stage, threads: HeldThreads) -> None:
        stage.produce({0: large(b"a")}, 1, VERSION).forget()
        await some_turns()
        await look_through(threads)
        await stage.settle()
        assert marks(stage, 0) == [b"a"]

    play(body)


def test_a_request_that_finds_no_memory_has_not_begun(play: Any) -> None:
    async def body(stage: Stage, threads: HeldThreads) -> None:
        stage.client.memory = BufferedMemory(3 << 20)
        first = stage.produce({0: large(b"a")}, 1, VERSION)
        assert stage.produce({0: large(b"b"), 1: large(b"b")}, 1, VERSION) is not POSTPONED, "the memory suffices"
        other = Client()
        other.memory = stage.client.memory
        mine, stage.client = stage.client, other
        counted = stage.counters.produce_requests
        assert stage.produce({0: large(b"c")}, 1, VERSION) is POSTPONED
        assert (stage.broker.turns, stage.counters.produce_requests) == (3, counted), "a postponed request isn't noted"
        stage.client = mine
        await look_through(threads)
        await stage.settle()
        assert codes(first) == [0]
        assert marks(stage, 0) == [b"a", b"b"]
        stage.client = other
        third = stage.produce({0: large(b"c")}, 1, VERSION)
        await look_through(threads)
        await stage.settle()
        assert codes(third) == [0]

    play(body)


def test_each_partition_of_a_request_gets_its_own_answer(play: Any) -> None:
    """Only the second partition's batch needs a thread."""

    async def body(stage: Stage, threads: HeldThreads) -> None:
        waiting = stage.produce({0: batch_of([b"a"]), 1: large(b"b")}, 1, VERSION)
        await some_turns()
        assert (marks(stage, 0), marks(stage, 1)) == ([b"a"], [])
        await look_through(threads)
        await stage.settle()
        assert codes(waiting) == [0, 0]
        assert (marks(stage, 0), marks(stage, 1)) == ([b"a"], [b"b"])

    play(body)


def test_a_batch_that_lies_about_its_size_leaves_the_loop_behind_what_is_appended_already(play: Any) -> None:
    async def body(stage: Stage, threads: HeldThreads) -> None:
        lying = batch_of([b"b" + bytes(8_000_000)], codec=Codec.gzip)
        lying[-4:] = (100).to_bytes(4, "little")  # the unpacked size that the gzip member claims
        struct.pack_into(">I", lying, 17, crc32c(memoryview(lying)[21:]))
        waiting = stage.produce({0: batch_of([b"a"]), 1: lying}, 1, VERSION)
        assert marks(stage, 0) == [b"a"]
        await look_through(threads)
        await stage.settle()
        assert codes(waiting) == [ErrorCode.none, ErrorCode.unknown_server_error]
        assert (marks(stage, 0), marks(stage, 1)) == ([b"a"], [])

    play(body)


def test_a_request_of_many_small_packed_batches_lets_the_loop_turn(play: Any) -> None:
    """Each batch is small enough to be checked on the event loop, but all of them together are too many for a single
    iteration of the loop."""

    async def body(stage: Stage, threads: HeldThreads) -> None:
        records = {0: batch_of([b"x" * 60_000], codec=Codec.gzip), 1: batch_of([b"y" * 60_000], codec=Codec.gzip)}
        sent = [{"index": index, "records": bytes(batch)} for _ in range(20) for index, batch in records.items()]
        request = {"acks": 1, "timeout": 1000, "topic_data": [{"name": "t", "partition_data": sent}]}
        stage.ask(produce, PRODUCE, request, VERSION)
        turns = 0
        while stage.broker.turns:
            appended = len(values(stage, 0)) + len(values(stage, 1))
            await asyncio.sleep(0)
            turns += 1
            more = len(values(stage, 0)) + len(values(stage, 1)) - appended
            assert more * 60_000 <= bytes_in(LOOP_MICROSECONDS, Codec.gzip) + 60_000, "more than a turn's share"
            if threads.held:
                threads.go_on()
        assert turns >= 40 * 60_000 // bytes_in(LOOP_MICROSECONDS, Codec.gzip)
        await stage.settle()
        assert len(values(stage, 0)) == len(values(stage, 1)) == 20

    play(body)


@pytest.mark.parametrize("bad", [False, True])
@pytest.mark.parametrize("share", [0.25, 0.001])
def test_a_request_of_many_small_plain_batches_lets_the_loop_turn(play: Any, share: float, bad: bool) -> None:
    """The batches have no codec, and each is small enough to be checked where it arrives. `share` is the size of a
    batch, as a fraction of the bytes that one turn may check."""

    async def body(stage: Stage, threads: HeldThreads) -> None:
        batch = seal(record(0, value=bytes(int(SLICE_BYTES * share))), 1 + bad, 1_000_000)
        at_once = bytes_in(LOOP_MICROSECONDS, Codec.none) // (len(batch) + PLAIN_BATCH_BYTES)
        count = 10 * at_once
        sent = [{"index": number % 2, "records": batch} for number in range(count)]
        request = {"acks": 1, "timeout": 1000, "topic_data": [{"name": "t", "partition_data": sent}]}
        waiting = stage.ask(produce, PRODUCE, request, VERSION)
        assert stage.broker.turns == count, "all batches wait before the first is checked"
        turns = 0
        while stage.broker.turns:
            left = stage.broker.turns
            await asyncio.sleep(0)
            turns += 1
            assert left - stage.broker.turns <= at_once + 1, "the loop checks its share, a thread one batch"
            if threads.held:
                threads.go_on()
        assert turns >= 9
        await stage.settle()
        assert codes(waiting) == [ErrorCode.invalid_record if bad else ErrorCode.none] * count
        assert len(values(stage, 0)) + len(values(stage, 1)) == (0 if bad else count)

    play(body)


def test_many_plain_requests_in_one_turn_of_the_loop_share_its_quota_and_keep_their_order(play: Any) -> None:
    """The requests arrive together, as from a connection that has sent many without waiting for the answers."""

    async def body(stage: Stage, threads: HeldThreads) -> None:
        size = bytes_in(LOOP_MICROSECONDS, Codec.none) // 4
        answers = [stage.produce({0: batch_of([b"%d" % number + bytes(size)])}, 1, VERSION) for number in range(20)]
        assert 1 <= len(values(stage, 0)) <= 4
        await look_through(threads)
        await stage.settle()
        assert marks(stage, 0) == [b"%d" % number for number in range(len(answers))]

    play(body)


def test_small_requests_are_served_where_they_arrive_however_many_come_in_one_turn_of_the_loop(play: Any) -> None:
    """A thousand connections may send one request each. Handing a request to a thread would take the event loop five
    times as long as serving it.
    """

    async def body(stage: Stage, threads: HeldThreads) -> None:
        for number in range(1000):
            stage.produce({number % 2: batch_of([b"x" * 100])}, 1, VERSION)
            assert stage.broker.turns == 0
        sent = [{"index": number % 2, "records": bytes(batch_of([b"x"]))} for number in range(10)]
        request = {"acks": 1, "timeout": 1000, "topic_data": [{"name": "t", "partition_data": sent}]}
        stage.ask(produce, PRODUCE, request, VERSION)
        assert stage.broker.turns == 0
        assert len(values(stage, 0)) == len(values(stage, 1)) == 505

    play(body)


def test_a_request_of_few_plain_batches_takes_no_turns(play: Any) -> None:
    async def body(stage: Stage, threads: HeldThreads) -> None:
        for _ in range(3):
            sent = [{"index": number % 2, "records": bytes(batch_of([b"x"]))} for number in range(20)]
            request = {"acks": 1, "timeout": 1000, "topic_data": [{"name": "t", "partition_data": sent}]}
            stage.ask(produce, PRODUCE, request, VERSION)
        assert stage.broker.turns == 0
        assert len(values(stage, 0)) == len(values(stage, 1)) == 30

    play(body)


def packed_zeros_with_a_wrong_count() -> bytes:
    """A batch that turns out to be malformed only after 800 KB were unpacked."""
    body = record(0, value=bytes(800_000))
    return seal(compress(Codec.zstd, body), 2, 1_000_000, codec=Codec.zstd)


def test_batches_that_are_refused_take_from_the_loops_quota(play: Any) -> None:
    """A request may have thousands of malformed batches, and the check of each takes as long as that of a sound one."""

    async def body(stage: Stage, threads: HeldThreads) -> None:
        bad = packed_zeros_with_a_wrong_count()
        assert len(bad) < SLICE_BYTES / 8
        sent = [{"index": index, "records": bad} for _ in range(20) for index in (0, 1)]
        request = {"acks": 1, "timeout": 1000, "topic_data": [{"name": "t", "partition_data": sent}]}
        waiting = stage.ask(produce, PRODUCE, request, VERSION)
        turns = 0
        while stage.broker.turns:
            left = stage.broker.turns
            await asyncio.sleep(0)
            turns += 1
            assert left - stage.broker.turns <= 4, "more than a turn's share"
            if threads.held:
                threads.go_on()
        assert turns >= 10
        await stage.settle()
        assert codes(waiting) == [ErrorCode.invalid_record] * 40

    play(body)


def test_a_batch_beyond_max_message_bytes_is_refused_before_anybody_looks_into_it(
    play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looks(*_: Any) -> int:
        raise AssertionError("the batch was unpacked")

    monkeypatch.setattr(contents, "claimed_bytes", looks)

    async def body(stage: Stage, threads: HeldThreads) -> None:
        large = bytearray(seal(bytes(2 << 20), 1, 1_000_000, codec=Codec.zstd))
        one = stage.produce({0: bytearray(large)}, 1, VERSION)
        two = stage.produce({0: bytearray(large), 1: bytearray(large)}, 1, VERSION)
        assert not threads.held
        for answer, count in ((one, 1), (two, 2)):
            found = read_response(PRODUCE, VERSION, b"".join(map(bytes, answer))[9:])
            of_each = [each.error_code for topic in found.responses for each in topic.partition_responses]
            assert of_each == [ErrorCode.message_too_large] * count

    play(body)


def test_many_requests_in_one_turn_of_the_loop_share_its_quota(play: Any) -> None:
    async def body(stage: Stage, threads: HeldThreads) -> None:
        size = bytes_in(LOOP_MICROSECONDS, Codec.gzip) // 3
        packed = batch_of([b"x" * size], codec=Codec.gzip)
        answers = [stage.produce({0: bytearray(packed)}, 1, VERSION) for _ in range(10)]
        at_once = len(values(stage, 0))
        assert 1 <= at_once <= 4
        await look_through(threads)
        await stage.settle()
        assert len(values(stage, 0)) == len(answers)

    play(body)


def test_what_waits_for_a_thread_keeps_its_frame_or_is_copied_from_memory_that_all_share(play: Any) -> None:
    async def body(stage: Stage, threads: HeldThreads) -> None:
        for shared in (False, True):
            stage.client.owns_frames = not shared
            stage.produce({0: large(b"b" if shared else b"a")}, 1, VERSION)
            await some_turns()
            if shared:
                stage.frame[:] = bytes(len(stage.frame))  # the next request's bytes overwrite the shared memory
            else:
                with pytest.raises(BufferError):
                    del stage.frame[:4]  # as a connection does with the bytes that are served
            await look_through(threads)
        await stage.settle()
        assert marks(stage, 0) == [b"a", b"b"]

    play(body)


def test_a_plain_batch_larger_than_a_slice_leaves_the_loop(play: Any) -> None:
    async def body(stage: Stage, threads: HeldThreads) -> None:
        for partition in stage.partitions:
            partition.rules = AdmissionRules(message_bytes_max=8 << 20)
        waiting = stage.produce({0: batch_of([b"a" * (SLICE_BYTES + 1000)])}, 1, VERSION)
        await some_turns()
        assert len(threads.held) == 1
        await look_through(threads)
        await stage.settle()
        assert codes(waiting) == [0]

    play(body)
