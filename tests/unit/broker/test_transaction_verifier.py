"""The questions to the coordinators of transactions, with coordinators in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Set
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.transaction.initialization import Producer
from ottla.broker.transaction.metadata import V2, TopicPartition
from ottla.broker.transaction.partitioning import TRANSACTIONS_TOPIC
from ottla.broker.transaction_verifier import ADD_PARTITIONS_TO_TXN, ANSWERED_S, QUESTIONS_MAX, TransactionVerifier
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.frames import read_request_header, response_frame, skip_tagged_fields
from ottla.protocol.messages import read_request, write_response
from tests.unit.broker.leader_stand_in import WireInMemory
from tests.unit.broker.test_group_service import virtually

ME, OTHER = 1, 2
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
PRODUCER = Producer(7, 3)


class OtherCoordinator:
    """Broker 2. A partition's answer is its error in `errors`, else NONE. While `held` isn't set, answers wait."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.errors: dict[TopicPartition, ErrorCode] = {}
        self.error = ErrorCode.none
        self.renamed = ""
        self.held = asyncio.Event()
        self.held.set()

    async def answer(self, frame: bytes) -> bytes:
        key, version, correlation_id, _, end = read_request_header(frame, 4)
        assert (key, version) == (ADD_PARTITIONS_TO_TXN, 5)
        request = read_request(key, version, frame, skip_tagged_fields(frame, end))
        self.requests.append(request)
        await self.held.wait()
        results = [
            {
                "transactional_id": self.renamed or each.transactional_id,
                "topic_results": [
                    {
                        "name": topic.name,
                        "results_by_partition": [
                            {
                                "partition_index": index,
                                "partition_error_code": self.errors.get(TopicPartition(topic.name, index), 0),
                            }
                            for index in topic.partitions
                        ],
                    }
                    for topic in each.topics
                ],
            }
            for each in request.transactions
        ]
        body = {"error_code": self.error, "results_by_transaction": [] if self.error else results}
        return response_frame(key, version, correlation_id, write_response(key, version, body))

    @property
    def asked(self) -> list[list[tuple[str, set[TopicPartition], bool]]]:
        """The (transactional id, partitions, only verified) of each request."""
        return [
            [
                (
                    each.transactional_id,
                    {TopicPartition(topic.name, index) for topic in each.topics for index in topic.partitions},
                    each.verify_only,
                )
                for each in request.transactions
            ]
            for request in self.requests
        ]


class Stage:
    """Broker 1 with a verifier. `leader` leads the only partition of `__transaction_state`."""

    def __init__(self, leader: int = OTHER) -> None:
        self.leader = leader
        self.other = OtherCoordinator()
        self.down = False
        self.settings: dict[str, Any] = {
            "transaction.partition.verification.enable": True,
            "add.partitions.to.txn.retry.backoff.max.ms": 100,
            "add.partitions.to.txn.retry.backoff.ms": 20,
        }
        self.here: list[tuple[str, Producer, Set[TopicPartition], int]] = []
        self.errors_here: list[ErrorCode] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.verifier = TransactionVerifier(
            ME, lambda: self.image, "inner", lambda: self.settings, self, self.connect, self.spawn
        )

    @property
    def image(self) -> Any:
        topic = SimpleNamespace(partitions={0: SimpleNamespace(leader=self.leader)})
        endpoints = {"inner": SimpleNamespace(host="two", port=2)}
        return SimpleNamespace(
            topics={TRANSACTIONS_TOPIC: topic}, brokers={OTHER: SimpleNamespace(endpoints=endpoints)}
        )

    async def connect(self, host: str, port: int) -> Any:
        if self.down:
            raise ConnectionRefusedError(f"{host} is down")
        other: Any = self.other
        return WireInMemory(other)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    async def add_partitions(
        self, transactional_id: str, producer: Producer, partitions: Set[TopicPartition], client_version: int
    ) -> ErrorCode:
        self.here.append((transactional_id, producer, partitions, client_version))
        return self.errors_here.pop(0) if self.errors_here else ErrorCode.none

    def verify(
        self, transactional_id: str, producer: Producer, partitions: Set[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        raise KafkaError(ErrorCode.coordinator_load_in_progress)

    def ask(self, name: str, *partitions: TopicPartition, adds: bool = True) -> asyncio.Future[Any]:
        return asyncio.ensure_future(self.verifier.confirm(name, PRODUCER, set(partitions), adds=adds))

    def stop(self) -> None:
        for task in self.tasks:
            task.cancel()


def test_another_brokers_answer_has_an_error_for_each_partition() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.other.errors[T1] = ErrorCode.transaction_abortable
        assert await stage.ask("a", T0, T1, adds=False) == {T0: ErrorCode.none, T1: ErrorCode.transaction_abortable}
        assert stage.other.asked == [[("a", {T0, T1}, True)]]
        (sent,) = stage.other.requests[0].transactions
        assert (sent.producer_id, sent.producer_epoch) == PRODUCER
        stage.stop()

    virtually(scene)


def test_questions_that_come_up_during_a_request_share_the_next_one_but_an_id_is_asked_once_in_each() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.other.held.clear()
        asked = [stage.ask("a", T0)]
        await asyncio.sleep(0.01)
        asked += [stage.ask("b", T0), stage.ask("c", T1), stage.ask("b", T1)]
        await asyncio.sleep(0.01)
        stage.other.held.set()
        assert [set(await answer) for answer in asked] == [{T0}, {T0}, {T1}, {T1}]
        assert [[name for name, _, _ in request] for request in stage.other.asked] == [["a"], ["b", "c"], ["b"]]
        stage.stop()

    virtually(scene)


def test_a_question_that_is_given_up_is_not_asked_and_the_order_of_the_others_stays() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.other.held.clear()
        first = stage.ask("a", T0)
        await asyncio.sleep(0.01)
        asked = [stage.ask(str(number), T0) for number in range(QUESTIONS_MAX + 10)]
        await asyncio.sleep(0.01)
        asked.pop(3).cancel()
        await asyncio.sleep(0.01)
        stage.other.held.set()
        await asyncio.gather(first, *asked)
        names = [str(number) for number in range(QUESTIONS_MAX + 10) if number != 3]
        assert [[name for name, _, _ in request] for request in stage.other.asked] == [
            ["a"],
            names[:QUESTIONS_MAX],
            names[QUESTIONS_MAX:],
        ]
        stage.stop()

    virtually(scene)


def test_this_brokers_own_coordinator_is_asked_without_a_request() -> None:
    async def scene() -> None:
        stage = Stage(leader=ME)
        assert await stage.ask("a", T0) == {T0: ErrorCode.none}
        assert stage.here == [("a", PRODUCER, {T0}, V2)]
        assert await stage.ask("a", T0, adds=False) == {T0: ErrorCode.coordinator_load_in_progress}
        assert not stage.tasks
        stage.stop()

    virtually(scene)


@pytest.mark.parametrize("answers", [1, 4, 50])
def test_a_transaction_whose_predecessor_is_being_ended_is_asked_for_again_for_a_short_while(answers: int) -> None:
    async def scene() -> None:
        stage = Stage(leader=ME)
        stage.errors_here = [ErrorCode.concurrent_transactions] * answers
        began = asyncio.get_running_loop().time()
        errors = await stage.ask("a", T0)
        took = asyncio.get_running_loop().time() - began
        assert errors == {T0: ErrorCode.none if answers < 5 else ErrorCode.concurrent_transactions}
        assert took == pytest.approx(min(answers * 0.02, 0.1))
        stage.stop()

    virtually(scene)


def test_no_question_stays_unanswered() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.down = True
        assert await stage.ask("a", T0) == {T0: ErrorCode.network_exception}
        stage.down = False
        stage.other.held.clear()
        began = asyncio.get_running_loop().time()
        assert await stage.ask("a", T0) == {T0: ErrorCode.network_exception}
        assert asyncio.get_running_loop().time() - began == ANSWERED_S
        stage.leader = -1
        assert await stage.ask("a", T0) == {T0: ErrorCode.coordinator_not_available}
        stage.leader = 3  # it isn't registered
        assert await stage.ask("a", T0) == {T0: ErrorCode.coordinator_not_available}
        stage.stop()

    virtually(scene)


def test_an_error_for_the_whole_request_and_an_answer_about_other_ids_are_answers_too() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.other.error = ErrorCode.cluster_authorization_failed
        assert await stage.ask("a", T0) == {T0: ErrorCode.cluster_authorization_failed}
        stage.other.error, stage.other.renamed = ErrorCode.none, "z"
        assert await stage.ask("a", T0) == {T0: ErrorCode.network_exception}
        stage.stop()

    virtually(scene)


def test_without_verification_only_partitions_that_are_added_are_asked_for() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.settings["transaction.partition.verification.enable"] = False
        assert await stage.ask("a", T0, adds=False) == {T0: ErrorCode.none}
        assert not stage.other.requests
        assert await stage.ask("a", T0) == {T0: ErrorCode.none}
        assert len(stage.other.requests) == 1
        stage.stop()

    virtually(scene)
