"""The transaction coordinator's service, over partitions in memory: the test sets the high watermark, failures and
leader epochs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ottla.broker.cold_reads import ColdReads
from ottla.broker.marker_sender import Sending, marker_of
from ottla.broker.transaction.decision import Answer
from ottla.broker.transaction.ending import Ending
from ottla.broker.transaction.initialization import Init, Producer
from ottla.broker.transaction.listing import Wish
from ottla.broker.transaction.metadata import V1, V2, TopicPartition, created
from ottla.broker.transaction.partitioning import partition_for
from ottla.broker.transaction.records import read_value
from ottla.broker.transaction.shard import Change, TransactionShard
from ottla.broker.transaction.states import State
from ottla.broker.transaction_service import ANSWER_S, BEGUN_PER_TURN, LOOKED_AT_PER_TURN, TransactionService
from ottla.broker.verification import Guard
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.simulation.machine import LoopThreads
from tests.unit.broker.test_group_service import MemoryPartition, virtually

PARTITIONS = 3
A, B, C = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("t", 2)
SETTINGS: dict[str, Any] = {
    "transaction.max.timeout.ms": 900_000,
    "transactional.id.expiration.ms": 100_000,
    "transaction.two.phase.commit.enable": False,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 10_000,
    "transaction.remove.expired.transaction.cleanup.interval.ms": 3_600_000,
    "transaction.state.log.load.buffer.size": 4_096,
}


class Stage:
    """A started service that leads all partitions. Markers wait in `sent` until the test answers them."""

    def __init__(self, *partitions: MemoryPartition) -> None:
        self.wall_ms = 1_000_000
        self.level = 2
        self.sent: list[Sending] = []
        self.last_producer_id = 100
        self.no_producer_ids = False
        self.service = TransactionService(
            SETTINGS, lambda: PARTITIONS, lambda: self.level, self, self, lambda: self.wall_ms, ColdReads(LoopThreads())
        )
        self.partitions = partitions or tuple(MemoryPartition(index) for index in range(PARTITIONS))
        self.service.start()
        for partition in self.partitions:
            self.service.became_leader(partition)

    async def next(self) -> int:
        if self.no_producer_ids:
            await asyncio.Event().wait()
        self.last_producer_id += 1
        return self.last_producer_id

    def send(self, sending: Sending) -> None:
        self.sent.append(sending)

    def of(self, name: str) -> MemoryPartition:
        return self.partitions[partition_for(name, PARTITIONS)]

    async def init(self, name: str = "id", present: Producer | None = None) -> Producer:
        answer = await self.service.init_producer_id(name, Init(60_000, present))
        assert answer.error is ErrorCode.none
        return Producer(answer.producer_id, answer.epoch)

    async def begun(self, name: str = "id") -> Producer:
        producer = await self.init(name)
        assert await self.service.add_partitions(name, producer, {A, B}, V2) is ErrorCode.none
        return producer

    async def write_markers(self) -> None:
        sent, self.sent = self.sent, []
        for sending in sent:
            for partition in list(sending.markers.missing):
                sending.markers.answered(partition, ErrorCode.none)
            sending.progressed()
        for _ in range(5):
            await asyncio.sleep(0)

    def state(self, name: str = "id") -> State:
        return self.service.described(name).state

    def states_written(self, name: str = "id") -> list[State | None]:
        found: list[State | None] = []
        for record in self.of(name).records():
            transaction = None if record.value is None else read_value(record.value)
            found.append(None if transaction is None else transaction.state)
        return found


async def refused(awaitable: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as error:
        await awaitable
    return error.value.code


def test_a_transaction_from_its_producer_to_its_end() -> None:
    async def scene() -> None:
        stage = Stage()
        producer = await stage.begun()
        answer = await stage.service.end("id", Ending(*producer, True, V2))
        assert answer == Answer(ErrorCode.none, producer.id, 1)
        (sending,) = stage.sent
        assert tuple(marker_of(sending)) == (producer.id, 1, True, 1, V2)
        assert stage.state() is State.PREPARE_COMMIT
        busy = await stage.service.end("id", Ending(*producer, True, V2))
        assert busy.error is ErrorCode.concurrent_transactions
        await stage.write_markers()
        assert stage.state() is State.COMPLETE_COMMIT
        assert not sending.is_wanted
        assert await stage.service.end("id", Ending(*producer, True, V2)) == answer
        written = [State.EMPTY, State.ONGOING, State.PREPARE_COMMIT, State.COMPLETE_COMMIT]
        assert stage.states_written() == written
        await stage.service.stop()

    virtually(scene)


def test_transactions_whose_last_markers_are_answered_one_after_another_all_end() -> None:
    """The other answers come in the turn of the event loop in which the first transaction is being completed."""

    async def scene() -> None:
        stage = Stage()
        names = [f"id-{number}" for number in range(5)]
        for name in names:
            await stage.service.end(name, Ending(*await stage.begun(name), True, V2))
        first, *others = stage.sent
        for sending in stage.sent:
            for partition in list(sending.markers.missing):
                sending.markers.answered(partition, ErrorCode.none)
        first.progressed()
        await asyncio.sleep(0)
        for sending in others:
            sending.progressed()
        for _ in range(10):
            await asyncio.sleep(0)
        assert {stage.state(name) for name in names} == {State.COMPLETE_COMMIT}
        await stage.service.stop()

    virtually(scene)


def test_an_answer_waits_for_the_commit_and_ids_of_the_partition_dont_wait_for_each_other() -> None:
    async def scene() -> None:
        stage = Stage()
        producer = await stage.begun()
        stage.of("id").hold()
        ending = asyncio.ensure_future(stage.service.end("id", Ending(*producer, True, V2)))
        await asyncio.sleep(1)
        assert not ending.done()
        assert not stage.sent
        assert stage.state() is State.ONGOING
        stage.of("id").replicate()
        assert (await ending).error is ErrorCode.none
        assert len(stage.sent) == 1
        await stage.service.stop()

    virtually(scene)


def test_an_outcome_that_is_unknown_stays_under_way_until_the_commit() -> None:
    async def scene() -> None:
        stage = Stage()
        producer = await stage.begun()
        stage.of("id").hold()
        ending = Ending(*producer, True, V2)
        began = asyncio.get_running_loop().time()
        assert await refused(stage.service.end("id", ending)) is ErrorCode.coordinator_not_available
        assert asyncio.get_running_loop().time() - began == pytest.approx(ANSWER_S)
        assert (await stage.service.end("id", ending)).error is ErrorCode.concurrent_transactions
        await asyncio.sleep(1_000)
        assert (await stage.service.end("id", ending)).error is ErrorCode.concurrent_transactions
        stage.of("id").replicate()
        await asyncio.sleep(1)
        await stage.write_markers()
        assert await stage.service.end("id", ending) == Answer(ErrorCode.none, producer.id, 1)
        await stage.service.stop()

    virtually(scene)


def test_a_client_that_goes_away_doesnt_stop_its_transactions_markers() -> None:
    async def scene() -> None:
        stage = Stage()
        producer = await stage.begun()
        stage.of("id").hold()
        ending = asyncio.ensure_future(stage.service.end("id", Ending(*producer, True, V2)))
        await asyncio.sleep(1)
        ending.cancel()
        stage.of("id").replicate()
        await asyncio.sleep(1)
        assert len(stage.sent) == 1
        await stage.service.stop()

    virtually(scene)


def test_an_append_that_fails_has_changed_nothing() -> None:
    async def scene() -> None:
        stage = Stage()
        producer = await stage.begun()
        stage.of("id").failing = ErrorCode.not_enough_replicas
        ending = Ending(*producer, True, V2)
        assert await refused(stage.service.end("id", ending)) is ErrorCode.coordinator_not_available
        stage.of("id").failing = None
        assert stage.state() is State.ONGOING
        assert (await stage.service.end("id", ending)).error is ErrorCode.none
        stage.of("id").failing = ErrorCode.not_enough_replicas
        await stage.write_markers()
        assert stage.state() is State.PREPARE_COMMIT
        stage.of("id").failing = None
        await asyncio.sleep(5)
        assert stage.state() is State.COMPLETE_COMMIT
        await stage.service.stop()

    virtually(scene)


def test_the_next_coordinator_sends_all_markers_again() -> None:
    async def scene() -> None:
        stage = Stage()
        producer = await stage.begun()
        await stage.service.end("id", Ending(*producer, False, V2))
        (earlier,) = stage.sent
        earlier.markers.answered(A, ErrorCode.none)
        partition = stage.of("id")
        stage.service.lost_leadership(partition.index)
        assert not earlier.is_wanted
        assert await refused(stage.service.end("id", Ending(*producer, False, V2))) is ErrorCode.not_coordinator
        stage.sent.clear()
        partition.leader_epoch = 7
        stage.service.became_leader(partition)
        await asyncio.sleep(1)
        (again,) = stage.sent
        assert again.markers.missing == {A, B}
        assert again.coordinator_epoch == 7
        earlier.progressed()
        await stage.write_markers()
        assert stage.state() is State.COMPLETE_ABORT
        await stage.service.stop()

    virtually(scene)


def test_a_resigned_coordinator_answers_at_once_and_says_nothing_of_the_outcome() -> None:
    async def scene() -> None:
        stage = Stage()
        producer = await stage.begun()
        stage.of("id").hold()
        ending = asyncio.ensure_future(refused(stage.service.end("id", Ending(*producer, True, V2))))
        await asyncio.sleep(1)
        began = asyncio.get_running_loop().time()
        stage.service.lost_leadership(stage.of("id").index)
        assert await ending is ErrorCode.not_coordinator
        assert asyncio.get_running_loop().time() - began < 1
        assert not stage.sent
        await stage.service.stop()

    virtually(scene)


def test_a_producer_id_that_doesnt_come_has_a_deadline() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.no_producer_ids = True
        assert await refused(stage.service.init_producer_id("id", Init(1_000))) is ErrorCode.coordinator_not_available
        stage.no_producer_ids = False
        assert await stage.init() == Producer(101, 0)
        await stage.service.stop()

    virtually(scene)


def test_two_first_requests_get_one_producer_id() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.of("id").hold()
        asked = [asyncio.ensure_future(stage.service.init_producer_id("id", Init(1_000))) for _ in range(2)]
        await asyncio.sleep(1)
        stage.of("id").replicate()
        answers = [await each for each in asked]
        assert sorted(answer.error for answer in answers) == [ErrorCode.none, ErrorCode.concurrent_transactions]
        assert stage.states_written() == [State.EMPTY]
        await stage.service.stop()

    virtually(scene)


@pytest.mark.parametrize("level", [1, 2])
def test_an_overdue_transaction_is_aborted(level: int) -> None:
    async def scene() -> None:
        stage = Stage()
        producer = await stage.begun()
        stage.level = level
        stage.wall_ms += 59_999
        await asyncio.sleep(11)
        assert stage.state() is State.ONGOING
        stage.wall_ms += 2
        await asyncio.sleep(11)
        assert stage.state() is State.PREPARE_ABORT
        await stage.write_markers()
        assert stage.service.counters.time_outs == 1
        late = await stage.service.end("id", Ending(*producer, True, V1 if level == 1 else V2))
        assert late.error in (ErrorCode.producer_fenced, ErrorCode.invalid_txn_state)
        assert await stage.init() == Producer(producer.id, 2)
        await stage.service.stop()

    virtually(scene)


@pytest.mark.parametrize("epochs_used_up", [False, True])
@pytest.mark.parametrize("fails_over", [False, True])
def test_at_level_0_an_open_transaction_ends_and_no_other_begins(
    epochs_used_up: bool, fails_over: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the fix, a coordinator that took over between the decision and the end didn't know which producer id the
    client had been told."""

    async def scene() -> None:
        stage = Stage()
        producer = await stage.begun()
        if epochs_used_up:
            led = stage.service._led("id")
            led.core.transactions["id"] = replace(led.core.transactions["id"], epoch=32_766)
            producer = Producer(producer.id, 32_766)
        stage.level = 0
        assert await stage.service.add_partitions("id", producer, {C}, V2) is ErrorCode.none
        answer = await stage.service.end("id", Ending(*producer, True, V2))
        told = Producer(stage.last_producer_id, 0) if epochs_used_up else Producer(producer.id, 1)
        assert answer == Answer(ErrorCode.none, *told)
        if fails_over:
            await stage.service.stop()
            for partition in stage.partitions:
                partition.leader_epoch += 1
            last_producer_id = stage.last_producer_id
            stage = Stage(*stage.partitions)
            stage.level, stage.last_producer_id = 0, last_producer_id
            await asyncio.sleep(1)
        assert {each.markers.transaction.producer_id for each in stage.sent} == {producer.id}
        assert stage.sent[0].markers.missing == {A, B, C}
        await stage.write_markers()
        assert stage.state() is State.COMPLETE_COMMIT
        assert await stage.service.end("id", Ending(*producer, True, V2)) == answer, "a repeat"
        denied = ErrorCode.transactional_id_authorization_failed
        assert await refused(stage.service.add_partitions("id", told, {A}, V2)) is denied
        assert await refused(stage.service.init_producer_id("id", Init(60_000))) is denied
        assert "id: its next transaction can't begin, because the feature transaction.version has the" in caplog.text
        stage.level = 2
        assert await stage.service.add_partitions("id", told, {A}, V2) is ErrorCode.none
        await stage.service.stop()

    virtually(scene)


def test_ids_that_arent_used_expire() -> None:
    async def scene() -> None:
        stage = Stage()
        producer = await stage.init()
        await stage.begun("open")
        stage.wall_ms += 100_000
        await stage.service.expire()
        assert await refused(_described(stage, "id")) is ErrorCode.transactional_id_not_found
        assert stage.state("open") is State.ONGOING
        assert stage.service.counters.expirations == 1
        late = await stage.service.add_partitions("id", producer, {A}, V2)
        assert late is ErrorCode.invalid_producer_id_mapping
        assert (await stage.init()).id != producer.id
        await stage.service.stop()

    virtually(scene)


def test_the_ages_of_100_000_ids_are_looked_at_once_and_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the fix, the search for expired ids began anew with the first id for each batch of tombstones, and the
    search for overdue transactions held the event loop for all open ones."""
    looked_at: dict[str, list[int]] = {"overdue": [], "expire": []}

    def counted(name: str) -> None:
        method = getattr(TransactionShard, name)

        def counting(shard: TransactionShard, ids: Sequence[str], now_ms: int) -> Any:
            looked_at[name].append(len(ids))
            return method(shard, ids, now_ms)

        monkeypatch.setattr(TransactionShard, name, counting)

    async def scene() -> None:
        stage = Stage()
        cores = [led.core for led in stage.service._runtime.partitions.values()]
        for number in range(100_000):
            name = f"id-{number}"
            made = created(number, 60_000, stage.wall_ms)
            if number % 2:
                made = made.with_partitions({A}, V2, stage.wall_ms)
            cores[partition_for(name, PARTITIONS)]._apply(Change(name, made))
        stage.wall_ms += 59_000
        for name in looked_at:
            counted(name)
        await stage.service.sweep()
        assert sum(looked_at["overdue"]) == 50_000
        stage.wall_ms += 100_000
        await stage.service.expire()
        assert sum(looked_at["expire"]) == 100_000
        assert stage.service.counters.expirations == 50_000
        assert max(looked_at["overdue"] + looked_at["expire"]) <= LOOKED_AT_PER_TURN
        await stage.service.stop()

    virtually(scene)


async def _described(stage: Stage, name: str) -> object:
    return stage.service.described(name)


def test_a_load_that_is_under_way_answers_nothing_for_certain() -> None:
    async def scene() -> None:
        first = Stage()
        await first.begun()
        await first.service.stop()
        second = Stage(*first.partitions)
        second.of("id").hold()
        assert await refused(second.init()) is ErrorCode.coordinator_load_in_progress
        with pytest.raises(KafkaError) as error:
            await second.service.listed(Wish())
        assert error.value.code is ErrorCode.coordinator_load_in_progress
        await asyncio.sleep(1)
        second.of("id").replicate()
        await asyncio.sleep(1)
        assert second.state() is State.ONGOING
        assert [name for name, _ in await second.service.listed(Wish())] == ["id"]
        await second.service.stop()

    virtually(scene)


def test_an_id_that_no_record_can_hold_is_refused() -> None:
    async def scene() -> None:
        stage = Stage()
        for _ in range(2):
            name = "n" * 40_000
            assert await refused(stage.service.init_producer_id(name, Init(1_000))) is ErrorCode.unknown_server_error
        assert (await stage.service.init_producer_id("", Init(1_000))).error is ErrorCode.invalid_request
        await stage.service.stop()

    virtually(scene)


def test_an_unexpected_error_of_an_append_makes_the_log_be_read_again() -> None:
    async def scene() -> None:
        stage = Stage()
        producer = await stage.begun()
        partition: Any = stage.of("id")
        append = partition.append_batch

        def appends_and_fails(batch: bytearray, leader_epoch: int, guard: Guard | None) -> int:
            append(batch, leader_epoch)
            raise AssertionError("after the append")

        partition.append_batch = appends_and_fails
        with pytest.raises(AssertionError):
            await stage.service.end("id", Ending(*producer, True, V2))
        partition.append_batch = append
        await asyncio.sleep(1)
        assert stage.state() is State.PREPARE_COMMIT
        assert len(stage.sent) == 1
        await stage.service.stop()

    virtually(scene)


def test_the_answers_of_a_listing_are_committed_states() -> None:
    async def scene() -> None:
        stage = Stage()
        await stage.begun()
        await stage.init("other")
        wish = Wish(states=frozenset({State.ONGOING}))
        assert [name for name, _ in await stage.service.listed(wish)] == ["id"]
        assert [name for name, _ in await stage.service.listed(replace(wish, nothing=True))] == []
        await stage.service.stop()

    virtually(scene)


def test_thousands_of_overdue_transactions_leave_the_event_loop_to_others() -> None:
    async def scene() -> None:
        stage = Stage()
        for number in range(3 * BEGUN_PER_TURN):
            await stage.begun(f"id-{number}")
        stage.wall_ms += 61_000
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        other = asyncio.ensure_future(others())
        await stage.service.sweep()
        assert turns >= 2
        assert stage.service.counters.time_outs == 3 * BEGUN_PER_TURN
        for _ in range(20):
            await asyncio.sleep(0)
        await stage.write_markers()
        for _ in range(50):
            await asyncio.sleep(0)
        assert stage.service.counts() == {"open": 0, "ending": 0, "idle": 3 * BEGUN_PER_TURN}
        other.cancel()
        await stage.service.stop()

    virtually(scene)
