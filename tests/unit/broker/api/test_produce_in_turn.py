"""What happens while a thread looks at a batch: leadership goes, brokers stop, clients hang up, others write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from ottla.broker import contents as contents_of_batches
from ottla.broker.admission import AdmissionRules
from ottla.metadata import model
from ottla.net.connection import POSTPONED
from ottla.net.memory import BufferedMemory
from ottla.protocol.codecs import Codec
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import read_response
from ottla.protocol.record_walk import SLICE_BYTES
from tests.unit.broker.api.test_produce_and_fetch import PRODUCE, TOPIC_ID, Client, Stage, batch_of, values

VERSION = 9


class HeldThreads(Executor):
    """Does its work when it is told to."""

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
        stage.broker.inspectors = threads
        await body(stage, threads)
        assert stage.broker.turns == 0
        assert stage.client.memory.used_bytes == 0
        assert not any(partition.in_turns for partition in stage.partitions)

    for index in (0, 1):
        (tmp_path / str(index)).mkdir()
    return lambda body: asyncio.run(scene(body))


def large(mark: bytes) -> bytearray:
    """A packed batch that unpacks to more than the event loop looks at."""
    return batch_of([mark + bytes(400_000)], codec=Codec.lz4)


def marks(stage: Stage, index: int) -> list[bytes]:
    return [value.rstrip(b"\x00") for value in values(stage, index)]


def codes(pending: Any) -> list[int]:
    answer = read_response(PRODUCE, VERSION, b"".join(map(bytes, pending.parts))[9:])
    return [each.error_code for topic in answer.responses for each in topic.partition_responses]


async def some_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_small_batch_that_unpacks_large_leaves_the_loop_and_is_not_overtaken(play: Any) -> None:
    async def body(stage: Stage, threads: HeldThreads) -> None:
        assert len(large(b"a")) < contents_of_batches.SMALLEST_IN_TURN_BYTES
        first = stage.produce({0: large(b"a")}, 1, VERSION)
        second = stage.produce({0: batch_of([b"b"])}, 1, VERSION)
        other = stage.produce({1: batch_of([b"c"])}, 1, VERSION)
        await some_turns()
        assert (marks(stage, 0), marks(stage, 1)) == ([], [b"c"]), "another partition's needn't wait"
        assert other is not None
        threads.go_on()
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
        await some_turns()
        while threads.held:
            threads.go_on()
            await some_turns()
        await stage.settle()
        assert marks(stage, 0) == [b"a", b"b"]
        assert stage.client.closed

    play(body)


def test_who_leads_no_longer_when_the_thread_is_done_appends_nothing(play: Any) -> None:
    async def body(stage: Stage, threads: HeldThreads) -> None:
        waiting = stage.produce({0: large(b"a"), 1: large(b"b")}, 1, VERSION)
        await some_turns()
        partition = stage.partitions.find("t", 0)
        partition.become_follower(model.Partition(TOPIC_ID, 0, (0, 1), (1,), (1,), 1, 5))
        threads.go_on()
        await some_turns()
        threads.go_on()
        await stage.settle()
        assert codes(waiting) == [ErrorCode.not_leader_or_follower, ErrorCode.none]
        assert (marks(stage, 0), marks(stage, 1)) == ([], [b"b"])

    play(body)


def test_an_isr_that_shrinks_meanwhile_is_noticed_before_the_append(play: Any) -> None:
    async def body(stage: Stage, threads: HeldThreads) -> None:
        partition = stage.partitions.find("t", 0)
        partition.min_isr = 2
        partition.become_leader(model.Partition(TOPIC_ID, 0, (0, 1), (0, 1), (1, 1), 0, 1))
        waiting = stage.produce({0: large(b"a")}, -1, VERSION)
        await some_turns()
        partition.become_leader(model.Partition(TOPIC_ID, 0, (0, 1), (0,), (1,), 0, 1, 1))
        threads.go_on()
        await stage.settle()
        assert codes(waiting) == [ErrorCode.not_enough_replicas]
        assert marks(stage, 0) == []

    play(body)


def test_a_topic_made_anew_meanwhile_gets_nothing_of_the_old_ones(play: Any) -> None:
    async def body(stage: Stage, threads: HeldThreads) -> None:
        waiting = stage.produce({0: large(b"a")}, 1, VERSION)
        await some_turns()
        stage.partitions.remove(stage.partitions.find("t", 0))
        threads.go_on()
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
        threads.go_on()
        await stage.settle()
        assert marks(stage, 0) == [b"a"]

    play(body)


def test_a_request_that_finds_no_memory_has_not_begun(play: Any) -> None:
    async def body(stage: Stage, threads: HeldThreads) -> None:
        stage.client.memory = BufferedMemory(3 << 20)
        first = stage.produce({0: large(b"a")}, 1, VERSION)
        assert stage.produce({0: large(b"b"), 1: large(b"b")}, 1, VERSION) is not POSTPONED, "that fits"
        other = Client()
        other.memory = stage.client.memory
        mine, stage.client = stage.client, other
        counted = stage.counters.produce_requests
        assert stage.produce({0: large(b"c")}, 1, VERSION) is POSTPONED
        assert (stage.broker.turns, stage.counters.produce_requests) == (3, counted), "as if it had never come"
        stage.client = mine
        for _ in range(3):
            await some_turns()
            threads.go_on()
        await stage.settle()
        assert codes(first) == [0]
        assert marks(stage, 0) == [b"a", b"b"]
        stage.client = other
        third = stage.produce({0: large(b"c")}, 1, VERSION)
        await some_turns()
        threads.go_on()
        await stage.settle()
        assert codes(third) == [0]

    play(body)


def test_each_partition_of_a_request_gets_its_own_answer(play: Any) -> None:
    """The first is appended at once, the second leaves the loop, the third waits behind it."""

    async def body(stage: Stage, threads: HeldThreads) -> None:
        waiting = stage.produce({0: batch_of([b"a"]), 1: large(b"b")}, 1, VERSION)
        assert marks(stage, 0) == [b"a"]
        await some_turns()
        threads.go_on()
        await stage.settle()
        assert codes(waiting) == [0, 0]
        assert (marks(stage, 0), marks(stage, 1)) == ([b"a"], [b"b"])

    play(body)


def test_a_plain_batch_larger_than_a_slice_leaves_the_loop(play: Any) -> None:
    async def body(stage: Stage, threads: HeldThreads) -> None:
        for partition in stage.partitions:
            partition.rules = AdmissionRules(message_bytes_max=8 << 20)
        waiting = stage.produce({0: batch_of([b"a" * (SLICE_BYTES + 1000)])}, 1, VERSION)
        await some_turns()
        assert len(threads.held) == 1
        threads.go_on()
        await stage.settle()
        assert codes(waiting) == [0]

    play(body)
