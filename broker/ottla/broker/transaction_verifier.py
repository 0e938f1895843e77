"""Asks the coordinators of transactions whether partitions belong to the transactions that write to them.

A partition's leader asks before a transaction begins in the partition (`verification.py` says why). A client of
protocol V1 has added the partition before: the leader asks only whether that is so. A client of V2 hasn't: the leader
adds the partition by the same request. If this broker is the coordinator itself, no request is sent.

All questions that come up while a request to a coordinator is under way go into the next request (`outbox.py`). A
response tells answers by their transactional ids, so a request has one question for each id.

Source: KIP-890; Kafka's AddPartitionsToTxnManager, ReplicaManager.maybeSendPartitionsToTransactionCoordinator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Set
from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol

from ottla.broker.outbox import Dial, Outboxes, Spawn
from ottla.broker.transaction.initialization import Producer
from ottla.broker.transaction.metadata import V2, TopicPartition
from ottla.broker.transaction.partitioning import TRANSACTIONS_TOPIC, partition_for
from ottla.metadata.image import Image
from ottla.net.peer import Answer
from ottla.net.streams import Connect
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.messages import read_response, write_request

ADD_PARTITIONS_TO_TXN, _VERSION = 24, 5
ANSWERED_S = 10.0  # after which a question counts as unanswered
QUESTIONS_MAX = 1000  # of one request

Errors = Mapping[TopicPartition, ErrorCode]


class Coordinator(Protocol):
    """The coordinator of transactions in this broker."""

    async def add_partitions(
        self, transactional_id: str, producer: Producer, partitions: Set[TopicPartition], client_version: int
    ) -> ErrorCode:
        """Adds partitions to the transaction. Raises KafkaError."""

    def verify(self, transactional_id: str, producer: Producer, partitions: Set[TopicPartition]) -> Errors:
        """Checks whether the transaction has the partitions: returns an error code for each of them. Raises
        KafkaError."""


class Settings(Protocol):
    """The broker's settings by name."""

    def __getitem__(self, name: str, /) -> Any: ...


class TransactionVerifier:
    """The questions from this broker. All methods run on the event loop. `listener` is the brokers' inter-broker
    listener; `settings` returns the settings that are in force."""

    def __init__(
        self,
        broker_id: int,
        image: Callable[[], Image],
        listener: str,
        settings: Callable[[], Settings],
        coordinator: Coordinator,
        connect: Connect,
        spawn: Spawn,
    ) -> None:
        self.asked = 0
        self.failed = 0  # of the questions that were asked: those with an error for some partition
        self._id = broker_id
        self._image = image
        self._settings = settings
        self._coordinator = coordinator
        self._dial = Dial(image, listener, connect, f"broker-{broker_id}-transactions")
        self._outboxes: Outboxes[_Work] = Outboxes(self._dial, spawn, _Work)

    async def confirm(
        self, transactional_id: str, producer: Producer, partitions: Set[TopicPartition], *, adds: bool
    ) -> Errors:
        """Asks whether `partitions` belong to the producer's open transaction; with `adds` (a client of protocol V2),
        adds them to it. Returns an error code for each partition: those of Kafka's coordinator, and NETWORK_EXCEPTION
        if no answer came within `ANSWERED_S`. Raises nothing."""
        settings = self._settings()
        self.asked += 1
        if not adds and not settings["transaction.partition.verification.enable"]:
            return dict.fromkeys(partitions, ErrorCode.none)
        question = _Question(transactional_id, producer, frozenset(partitions), adds)
        try:
            async with asyncio.timeout(ANSWERED_S):
                errors = await self._answer(question, settings)
        except TimeoutError:
            errors = question.all(ErrorCode.network_exception)
        self.failed += any(error is not ErrorCode.none for error in errors.values())
        return errors

    async def _answer(self, question: _Question, settings: Settings) -> Errors:
        """The coordinator's answer. A client of V2 may begin its next transaction while markers of the last one are
        missing: the coordinator answers CONCURRENT_TRANSACTIONS then, and is asked again for a short while."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + settings["add.partitions.to.txn.retry.backoff.max.ms"] / 1000
        while True:
            errors = await self._ask(question)
            if not question.adds or ErrorCode.concurrent_transactions not in errors.values():
                return errors
            pause_s = min(settings["add.partitions.to.txn.retry.backoff.ms"] / 1000, deadline - loop.time())
            if pause_s <= 0:
                return errors
            await asyncio.sleep(pause_s)

    async def _ask(self, question: _Question) -> Errors:
        leader = self.leader(question.transactional_id)
        if leader == self._id:
            return await self._ask_here(question)
        if leader < 0:
            return question.all(ErrorCode.coordinator_not_available)
        return await self._outboxes.work(leader).add(question)

    def leader(self, transactional_id: str) -> int:
        """The id of the broker that coordinates the transactions of `transactional_id`; negative if there is no such
        broker at present, or if it has no known address."""
        topic = self._image().topics.get(TRANSACTIONS_TOPIC)
        if topic is None:
            return -1
        leader = topic.partitions[partition_for(transactional_id, len(topic.partitions))].leader
        return leader if leader == self._id or self._dial.knows(leader) else -1

    async def _ask_here(self, question: _Question) -> Errors:
        asked = question.transactional_id, question.producer, question.partitions
        try:
            if not question.adds:
                return self._coordinator.verify(*asked)
            return question.all(await self._coordinator.add_partitions(*asked, V2))
        except KafkaError as error:
            return question.all(error.code)


class _Question:
    """One question to a coordinator. `answer` is done when the answer has come, or won't come."""

    __slots__ = ("adds", "answer", "partitions", "producer", "transactional_id")

    def __init__(
        self, transactional_id: str, producer: Producer, partitions: frozenset[TopicPartition], adds: bool
    ) -> None:
        self.transactional_id = transactional_id
        self.producer = producer
        self.partitions = partitions
        self.adds = adds
        self.answer: asyncio.Future[Errors] = asyncio.get_running_loop().create_future()

    def all(self, error: ErrorCode) -> Errors:
        """Answers that have this error for each partition."""
        return dict.fromkeys(self.partitions, error)


Batch = dict[str, _Question]


class _Work:
    """The questions for one other broker."""

    def __init__(self) -> None:
        self._waiting: dict[_Question, None] = {}  # in the order of the questions

    def __len__(self) -> int:
        return len(self._waiting)

    async def add(self, question: _Question) -> Errors:
        """Asks a question with the next request that can take it, and waits for the answer."""
        question.answer = asyncio.get_running_loop().create_future()
        self._waiting[question] = None
        try:
            return await question.answer
        finally:
            self._waiting.pop(question, None)  # it was taken, unless the asker has given up

    def take(self) -> Batch | None:
        """Takes the questions for the next request, at most one for each transactional id; see `outbox.Work`."""
        batch: Batch = {}
        for question in self._waiting:
            batch.setdefault(question.transactional_id, question)
            if len(batch) == QUESTIONS_MAX:
                break
        for question in batch.values():
            del self._waiting[question]
        return batch or None

    def request_of(self, batch: Batch) -> tuple[int, int, bytes]:
        """The AddPartitionsToTxn request with the questions of `batch`; see `outbox.Work`."""
        body = {"transactions": [_entry(question) for question in batch.values()]}
        return ADD_PARTITIONS_TO_TXN, _VERSION, write_request(ADD_PARTITIONS_TO_TXN, _VERSION, body)

    def answered(self, batch: Batch, answer: Answer) -> None:
        """Gives each question of `batch` its part of the coordinator's answer; see `outbox.Work`."""
        told = read_response(ADD_PARTITIONS_TO_TXN, _VERSION, bytes(answer.frame[: answer.end]), answer.start)
        if told.error_code:
            self._end(batch, told.error_code)
            return
        results = {each.transactional_id: each.topic_results for each in told.results_by_transaction}
        if results.keys() != batch.keys():
            raise ProtocolError("the answer to AddPartitionsToTxn has other transactional ids than the request")
        for transactional_id, question in batch.items():
            errors = {
                TopicPartition(topic.name, each.partition_index): each.partition_error_code
                for topic in results[transactional_id]
                for each in topic.results_by_partition
            }
            _settle(question, {each: errors.get(each, ErrorCode.unknown_server_error) for each in question.partitions})

    def unanswered(self, batch: Batch, failures: int) -> None:
        """Answers each question of `batch` with NETWORK_EXCEPTION, because no answer has come."""
        self._end(batch, ErrorCode.network_exception)

    def _end(self, batch: Batch, error: ErrorCode) -> None:
        for question in batch.values():
            _settle(question, question.all(error))


def _settle(question: _Question, errors: Errors) -> None:
    if not question.answer.done():
        question.answer.set_result(errors)


def _entry(question: _Question) -> dict[str, Any]:
    return {
        "transactional_id": question.transactional_id,
        "producer_id": question.producer.id,
        "producer_epoch": question.producer.epoch,
        "verify_only": not question.adds,
        "topics": _topics(question.partitions),
    }


def _topics(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [
        {"name": topic, "partitions": [each.partition for each in group]}
        for topic, group in groupby(sorted(partitions), attrgetter("topic"))
    ]
