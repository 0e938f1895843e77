"""Produce with transactional batches: the transaction's coordinator is asked before a transaction begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Set
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.api import produce
from ottla.broker.beginnings import Order, for_producer
from ottla.broker.transaction.initialization import Producer
from ottla.broker.transaction.metadata import TopicPartition
from ottla.metadata.image import Image
from ottla.protocol.batches import Record, build_batch
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import read_response
from tests.unit.broker.api.test_produce_and_fetch import PRODUCE, Stage, values
from tests.unit.broker.api.test_produce_in_turn import some_turns

V1_VERSION, V2_VERSION = 11, 12
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Coordinator:
    """The verifier of the broker. While `held` isn't set, answers wait. A partition's answer is its error in `errors`,
    else NONE."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Producer, set[TopicPartition], bool]] = []
        self.errors: dict[TopicPartition, ErrorCode] = {}
        self.held = asyncio.Event()
        self.held.set()

    async def confirm(
        self, transactional_id: str, producer: Producer, partitions: Set[TopicPartition], *, adds: bool
    ) -> dict[TopicPartition, ErrorCode]:
        self.asked.append((transactional_id, producer, set(partitions), adds))
        await self.held.wait()
        return {each: self.errors.get(each, ErrorCode.none) for each in partitions}

    def leader(self, transactional_id: str) -> int:
        return {"id": 1, "other": 2, "third": 3}[transactional_id]


Body = Callable[[Stage, Coordinator], Coroutine[Any, Any, None]]


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Body], None]:
    async def scene(body: Body) -> None:
        stage, coordinator = Stage(tmp_path), Coordinator()
        stage.broker.verifier, stage.broker.image, stage.broker.transactional_order = (
            coordinator,
            Image(),
            Order(1 << 28),
        )
        client: Any = stage.client
        client.listener = SimpleNamespace(name="PLAINTEXT")
        await body(stage, coordinator)
        await stage.settle()
        assert not stage.failures
        assert stage.broker.turns == 0
        assert not stage.broker.transactional_order.waits(stage.client)
        assert stage.client.memory.used_bytes == 0
        assert all(partition.last_turn is None for partition in stage.partitions)

    for index in (0, 1):
        (tmp_path / str(index)).mkdir()
    return lambda body: asyncio.run(scene(body))


def batch(value: bytes, sequence: int = 0, producer_id: int = 7, epoch: int = 3, transactional: bool = True) -> bytes:
    made = [Record(0, 1_000_000, b"k", value)]
    return build_batch(
        made,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence if producer_id >= 0 else -1,
        transactional=transactional,
    )


def send(
    stage: Stage, written: dict[int, bytes], name: str | None = "id", version: int = V2_VERSION, acks: int = 1
) -> Any:
    partitions = [{"index": index, "records": data} for index, data in written.items()]
    topics = [{"name": "t", "partition_data": partitions}]
    request = {"transactional_id": name, "acks": acks, "timeout": 1000, "topic_data": topics}
    return stage.ask(produce, PRODUCE, request, version)


async def codes(reply: Any, version: int = V2_VERSION) -> list[int]:
    """The error codes of a reply, which may come later."""
    for _ in range(100):
        if isinstance(reply, list) or reply.parts is not None:
            break
        await asyncio.sleep(0)
    parts = reply if isinstance(reply, list) else reply.parts
    answer = read_response(PRODUCE, version, b"".join(map(bytes, parts))[9:])
    return [each.error_code for topic in answer.responses for each in topic.partition_responses]


def test_a_transaction_begins_once_its_coordinator_has_confirmed_all_partitions(play: Any) -> None:
    async def body(stage: Stage, coordinator: Coordinator) -> None:
        coordinator.held.clear()
        reply = send(stage, {0: batch(b"a"), 1: batch(b"b")})
        await some_turns()
        assert (values(stage, 0), values(stage, 1)) == ([], [])
        coordinator.held.set()
        assert await codes(reply) == [0, 0]
        assert (values(stage, 0), values(stage, 1)) == ([b"a"], [b"b"])
        assert coordinator.asked == [("id", Producer(7, 3), {T0, T1}, True)]
        assert await codes(send(stage, {0: batch(b"c", 1)})) == [0], "the transaction goes on"
        assert len(coordinator.asked) == 1
        assert values(stage, 0) == [b"a", b"c"]

    play(body)


def test_a_client_of_the_older_protocol_has_its_partitions_verified_only(play: Any) -> None:
    async def body(stage: Stage, coordinator: Coordinator) -> None:
        assert await codes(send(stage, {0: batch(b"a")}, version=V1_VERSION), V1_VERSION) == [0]
        assert coordinator.asked == [("id", Producer(7, 3), {T0}, False)]

    play(body)


def test_only_the_partitions_that_are_confirmed_are_written(play: Any) -> None:
    async def body(stage: Stage, coordinator: Coordinator) -> None:
        coordinator.errors[T1] = ErrorCode.transaction_abortable
        reply = send(stage, {0: batch(b"a"), 1: batch(b"b")}, version=V1_VERSION)
        assert await codes(reply, V1_VERSION) == [0, ErrorCode.transaction_abortable]
        assert (values(stage, 0), values(stage, 1)) == ([b"a"], [])

    play(body)


def test_other_producers_do_not_wait_for_a_transactions_coordinator(play: Any) -> None:
    async def body(stage: Stage, coordinator: Coordinator) -> None:
        coordinator.held.clear()
        reply = send(stage, {0: batch(b"a")})
        await some_turns()
        assert await codes(send(stage, {0: batch(b"other", producer_id=-1, transactional=False)}, name=None)) == [0]
        assert values(stage, 0) == [b"other"]
        coordinator.held.set()
        assert await codes(reply) == [0]
        assert values(stage, 0) == [b"other", b"a"]

    play(body)


def test_a_batch_that_waits_while_its_transaction_ends_is_refused(play: Any) -> None:
    """The coordinator's answer is older than the marker. If the leader didn't notice this, the batch would begin a
    transaction that nobody ends."""

    async def body(stage: Stage, coordinator: Coordinator) -> None:
        coordinator.held.clear()
        reply = send(stage, {0: batch(b"late")}, version=V1_VERSION)
        await some_turns()
        partition = stage.partitions.find("t", 0)
        partition.append_marker(7, 3, 0, False, 1)
        end = partition.log.log_end_offset
        coordinator.held.set()
        assert await codes(reply, V1_VERSION) == [ErrorCode.invalid_txn_state]
        assert partition.log.log_end_offset == end, "no batch follows the marker"

    play(body)


def test_several_batches_of_a_producer_keep_their_order(play: Any) -> None:
    async def body(stage: Stage, coordinator: Coordinator) -> None:
        coordinator.held.clear()
        replies = [send(stage, {0: batch(b"%d" % number, number)}) for number in range(5)]
        await some_turns()
        coordinator.held.set()
        assert [await codes(reply) for reply in replies] == [[0]] * 5
        assert values(stage, 0) == [b"0", b"1", b"2", b"3", b"4"]

    play(body)


def test_a_later_batch_is_not_looked_at_while_an_earlier_one_waits_for_the_coordinator(play: Any) -> None:
    """The first batch begins the transaction. The coordinator is asked about the second batch, too, because the first
    one isn't written yet, but not about the third batch. Before the fix, the third batch was refused, and the producer
    took that for a loss of records."""

    async def body(stage: Stage, coordinator: Coordinator) -> None:
        coordinator.held.clear()
        first = send(stage, {0: batch(b"0")})
        await some_turns()
        held, coordinator.held = coordinator.held, asyncio.Event()
        second = send(stage, {0: batch(b"1", 1), 1: batch(b"x")})
        await some_turns()
        held.set()
        assert await codes(first) == [0]
        third = send(stage, {0: batch(b"2", 2)})
        await some_turns()
        assert values(stage, 0) == [b"0"]
        coordinator.held.set()
        assert [await codes(reply) for reply in (second, third)] == [[0, 0], [0]]
        assert values(stage, 0) == [b"0", b"1", b"2"]

    play(body)


def test_a_coordinator_that_is_away_leaves_most_of_the_memory_to_other_producers(play: Any) -> None:
    """Requests that wait for one coordinator may have a quarter of the memory, and those that wait for any coordinator
    may have half of it. Another one is refused with an error at which its producer sends it again. Before the fix, all
    coordinators shared a quarter, so one of them could stop the producers of the others."""

    async def body(stage: Stage, coordinator: Coordinator) -> None:
        memory_bytes = 40_000
        stage.client.memory.limit_bytes = memory_bytes
        stage.broker.transactional_order = Order(memory_bytes)
        coordinator.held.clear()
        replies = [send(stage, {0: batch(b"v" * 3000, producer_id=number)}) for number in range(20)]
        await some_turns()
        waiting = [reply for reply in replies if not isinstance(reply, list)]
        assert len(waiting) == 3
        assert 9_000 < stage.client.memory.used_bytes <= memory_bytes / 4
        refused = [await codes(reply) for reply in replies if isinstance(reply, list)]
        assert refused == [[ErrorCode.not_enough_replicas]] * 17
        assert stage.client.memory.has_room(memory_bytes * 3 // 4), "no producer waits for memory"
        others = [
            send(stage, {0: batch(b"v" * 3000, producer_id=number)}, name)
            for number, name in enumerate(["other", "other", "other", "other", "third", "third"], 20)
        ]
        await some_turns()
        assert [isinstance(reply, list) for reply in others] == [False, False, False, True, True, True]
        assert stage.client.memory.used_bytes <= memory_bytes / 2
        waiting += others[:3]
        coordinator.held.set()
        assert [await codes(reply) for reply in waiting] == [[0]] * 6
        assert await codes(send(stage, {0: batch(b"v" * 3000, producer_id=19)})) == [0]

    play(body)


def test_a_request_larger_than_the_share_waits_if_no_other_one_does(play: Any) -> None:
    async def body(stage: Stage, coordinator: Coordinator) -> None:
        stage.broker.transactional_order = Order(4_000)
        assert await codes(send(stage, {0: batch(b"v" * 3000)})) == [0]

    play(body)


def test_transactional_batches_need_a_transactional_id_a_producer_and_only_one(play: Any) -> None:
    async def body(stage: Stage, coordinator: Coordinator) -> None:
        unnamed = ErrorCode.transactional_id_authorization_failed
        assert await codes(send(stage, {0: batch(b"a")}, name=None)) == [unnamed]
        assert await codes(send(stage, {0: batch(b"a")})) == [0]
        assert await codes(send(stage, {0: batch(b"b", 1)}, name=None)) == [unnamed], "the transaction is open already"
        assert await codes(send(stage, {0: batch(b"a", producer_id=-1)})) == [ErrorCode.invalid_txn_state]
        several = {0: batch(b"c", 1), 1: batch(b"c", producer_id=8)}
        assert await codes(send(stage, several)) == [ErrorCode.invalid_producer_id_mapping] * 2
        assert await codes(send(stage, {1: batch(b"d", transactional=False, producer_id=9)})) == [0]
        assert (values(stage, 0), values(stage, 1)) == ([b"a"], [b"d"])
        assert len(coordinator.asked) == 1

    play(body)


def test_a_fenced_producer_is_refused_without_a_question(play: Any) -> None:
    async def body(stage: Stage, coordinator: Coordinator) -> None:
        assert await codes(send(stage, {0: batch(b"a", epoch=4)})) == [0]
        assert await codes(send(stage, {0: batch(b"b", epoch=3)})) == [ErrorCode.invalid_producer_epoch]
        assert len(coordinator.asked) == 1

    play(body)


def test_with_acks_0_a_refused_batch_closes_the_connection(play: Any) -> None:
    async def body(stage: Stage, coordinator: Coordinator) -> None:
        coordinator.errors[T0] = ErrorCode.transaction_abortable
        send(stage, {0: batch(b"a")}, acks=0)
        await some_turns()
        assert stage.client.closed
        stage.client.closed = False
        several = {0: batch(b"c", 1), 1: batch(b"c", producer_id=8)}
        assert send(stage, several, acks=0) is None
        assert stage.client.closed

    play(body)


@pytest.mark.parametrize(
    ("error", "v1", "v2"),
    [
        ("none", "none", "none"),
        ("producer_fenced", "invalid_producer_epoch", "invalid_producer_epoch"),
        ("coordinator_load_in_progress", "not_enough_replicas", "not_enough_replicas"),
        ("coordinator_not_available", "not_enough_replicas", "not_enough_replicas"),
        ("not_coordinator", "not_enough_replicas", "not_enough_replicas"),
        ("network_exception", "not_enough_replicas", "not_enough_replicas"),
        ("operation_not_attempted", "not_enough_replicas", "not_enough_replicas"),
        ("concurrent_transactions", "not_enough_replicas", "concurrent_transactions"),
        ("transaction_abortable", "transaction_abortable", "transaction_abortable"),
        ("invalid_producer_id_mapping", "invalid_producer_id_mapping", "invalid_producer_id_mapping"),
    ],
)
def test_a_coordinators_error_as_a_producer_gets_it(error: str, v1: str, v2: str) -> None:
    """Which error code a producer gets for each error of a coordinator. Source: Kafka's AddPartitionsToTxnManager and
    ReplicaManager."""
    assert for_producer(ErrorCode[error], V1_VERSION).name == v1
    assert for_producer(ErrorCode[error], V2_VERSION).name == v2
    old = "invalid_txn_state" if error == "transaction_abortable" else v1
    assert for_producer(ErrorCode[error], 10).name == old
