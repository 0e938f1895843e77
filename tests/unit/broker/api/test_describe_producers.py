"""A leader reports a partition's producers, however many there are."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.api import describe_producers
from ottla.broker.api.registry import Route
from ottla.broker.authorizer import AllowEverything
from ottla.broker.dispatch import Dispatcher
from ottla.broker.log.producers import FrozenProducers, Producers
from ottla.net.pending import Pending
from ottla.protocol.batches import TRANSACTIONAL, BatchHeader
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.markers import Marker
from ottla.protocol.messages import EncodedArray, read_response, write_request, write_response
from tests.unit.broker.api.stand_in import request_of
from tests.unit.broker.without_quotas import without_quotas

KEY = describe_producers.API.key


def producers_of(count: int) -> Producers:
    producers = Producers()
    for producer in range(count):
        wrote(producers, producer, 0)
    return producers


def wrote(producers: Producers, producer: int, sequence: int) -> None:
    header = BatchHeader(0, 49, 0, 2, 0, 0, 0, 0, 0, producer, 3, sequence, 1)
    producers.update(header, producer + 10 * sequence, 1_000 + sequence)


class Partitions:
    """The partitions of topic `t`. This broker leads all but `follows`."""

    def __init__(self, *producers: Producers, follows: int = -1) -> None:
        self._follows = follows
        self._held = [
            SimpleNamespace(check_leader_epoch=lambda epoch: None, log=SimpleNamespace(producers=each))
            for each in producers
        ]

    def find(self, topic: str, index: int) -> Any:
        if index == self._follows:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        return self._held[index]


def answer(partitions: Partitions, indexes: list[int], meanwhile: Callable[[], None] = lambda: None) -> Any:
    """The answer that a client reads. `meanwhile` is called in each iteration of the event loop until the answer has
    come."""
    asked = {"topics": [{"name": "t", "partition_indexes": indexes}]}
    frame = bytearray(struct.pack(">hhih", KEY, 0, 7, 2) + b"me" + b"\0" + write_request(KEY, 0, asked))
    client: Any = SimpleNamespace(
        listener=SimpleNamespace(name="PLAINTEXT"), id=1, principal="User:ANONYMOUS", client_host="127.0.0.1",
        answered=lambda: None, close=pytest.fail,
    )  # fmt: skip

    async def served() -> bytes:
        broker: Any = SimpleNamespace(
            authorizer=AllowEverything(),
            spawn=asyncio.get_running_loop().create_task,
            server=SimpleNamespace(memory=SimpleNamespace(answered=lambda key, size: None)),
            partitions=partitions,
        )
        dispatcher = Dispatcher(
            broker, {KEY: Route(describe_producers.API, describe_producers.handle)}, without_quotas()
        )
        pending = dispatcher.dispatch(client, frame, 0, len(frame))
        assert isinstance(pending, Pending)
        while pending.parts is None:
            meanwhile()
            await asyncio.sleep(0)
        meanwhile()
        return b"".join(map(bytes, pending.parts))

    return read_response(KEY, 0, asyncio.run(served()), 4 + 4 + 1)


def test_each_producer_is_told_of() -> None:
    read = answer(Partitions(producers_of(2), producers_of(1_001), producers_of(0), follows=3), [0, 1, 2, 3])
    (topic,) = read.topics
    assert topic.name == "t"
    assert [len(partition.active_producers) for partition in topic.partitions] == [2, 1_001, 0, 0]
    assert [partition.error_code for partition in topic.partitions] == [0, 0, 0, ErrorCode.not_leader_or_follower]
    assert [producer.producer_id for producer in topic.partitions[1].active_producers] == list(range(1_001))
    told = topic.partitions[0].active_producers[1]
    assert (told.producer_epoch, told.last_sequence, told.coordinator_epoch) == (3, 0, -1)
    assert (told.last_timestamp, told.current_txn_start_offset) == (1_000, -1)


def test_the_last_coordinator_and_the_open_transaction_are_told() -> None:
    producers = producers_of(2)
    producers.transaction_ended(0, 3, Marker(True, 12, 2_000), 40)
    producers.update(BatchHeader(0, 49, 0, 2, 0, TRANSACTIONAL, 0, 0, 0, 1, 3, 1, 1), 41, 3_000)
    (topic,) = answer(Partitions(producers), [0]).topics
    ended, opened = topic.partitions[0].active_producers
    assert (ended.last_timestamp, ended.coordinator_epoch, ended.current_txn_start_offset) == (2_000, 12, -1)
    assert (opened.last_timestamp, opened.coordinator_epoch, opened.current_txn_start_offset) == (3_000, -1, 41)


@pytest.mark.parametrize(
    "producers",
    [[20_000], [200] * 100, [1] * 2_000],
    ids=["of one partition", "of some partitions", "of many partitions"],
)
def test_few_producers_are_looked_up_in_a_turn(producers: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = before = 0
    turns: list[int] = []
    items = FrozenProducers.items

    def counted(frozen: FrozenProducers) -> Iterator[Any]:
        nonlocal looked_up
        for item in items(frozen):
            looked_up += 1
            yield item

    def turned() -> None:
        nonlocal before
        turns.append(looked_up - before)
        before = looked_up

    monkeypatch.setattr(FrozenProducers, "items", counted)
    answer(Partitions(*map(producers_of, producers)), list(range(len(producers))), turned)
    assert sum(turns) == sum(producers)
    assert max(turns) <= 250


def test_many_producers_are_answered_in_short_turns() -> None:
    """Before the fix, 100,000 producers blocked the event loop for 190 ms, mostly for the encoding. The turns are
    measured by the CPU time of the loop's thread."""
    partitions = Partitions(producers_of(20_000))
    turns: list[float] = []
    ended = time.thread_time()

    def turned() -> None:
        nonlocal ended
        now = time.thread_time()
        turns.append(now - ended)
        ended = now

    read = answer(partitions, [0], turned)
    assert len(read.topics[0].partitions[0].active_producers) == 20_000
    assert max(turns) < sum(turns) / 4


def test_no_more_producers_are_looked_up_when_the_client_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request may name a partition many times, so its answer may take long."""
    looked_up = 0
    items = FrozenProducers.items

    def counted(frozen: FrozenProducers) -> Iterator[Any]:
        nonlocal looked_up
        for item in items(frozen):
            looked_up += 1
            yield item

    monkeypatch.setattr(FrozenProducers, "items", counted)
    broker: Any = SimpleNamespace(partitions=Partitions(producers_of(5_000)), authorizer=AllowEverything())
    request = request_of(KEY, 0)
    body = SimpleNamespace(topics=[SimpleNamespace(name="t", partition_indexes=[0] * 10)])

    async def scene() -> None:
        answering = asyncio.ensure_future(describe_producers.handle(broker, request, body))
        for _ in range(5):
            await asyncio.sleep(0)
        assert looked_up
        request.pending.forget()
        await answering

    asyncio.run(scene())
    assert looked_up <= 5 * 250


def test_the_answer_is_of_one_moment() -> None:
    """The answer leaves out all batches that are written while it is made. So does Kafka's, because Kafka locks the log
    meanwhile."""
    producers = producers_of(2_000)
    turn = 0

    def write() -> None:
        nonlocal turn
        turn += 1
        if turn == 3:
            for producer in range(2_010):
                wrote(producers, producer, 1)
            assert producers.truncate_to(5)

    told = answer(Partitions(producers), [0], write).topics[0].partitions[0].active_producers
    assert turn > 5
    assert [(producer.producer_id, producer.last_sequence) for producer in told] == [(id, 0) for id in range(2_000)]


@pytest.mark.parametrize("count", [0, 1, 126, 127, 20_000])
def test_an_array_that_is_encoded_bit_by_bit_reads_as_the_list(count: int) -> None:
    told = [{"producer_id": producer, "producer_epoch": 1, "last_sequence": producer} for producer in range(count)]
    encoded = EncodedArray(KEY, 0, "topics.partitions.active_producers")
    encoded.extend(told[: count // 3])
    encoded.extend(told[count // 3 :])

    def body(producers: object) -> bytes:
        partition = {"partition_index": 1, "active_producers": producers, "error_message": None}
        return write_response(KEY, 0, {"topics": [{"name": "t", "partitions": [partition]}]})

    assert body(encoded) == body(told)
