"""TxnOffsetCommit and OffsetFetch, over the coordinator of groups and a real partition: from a transaction's first
offset to its marker, and across changes of the leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Set
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest

from ottla.broker.api import offset_commit, offset_fetch, txn_offset_commit
from ottla.broker.authorizer import AllowEverything
from ottla.broker.cold_reads import ColdReads
from ottla.broker.counters import TopicCounters
from ottla.broker.group.effects import Join, Sync
from ottla.broker.group.partitioning import OFFSETS_TOPIC
from ottla.broker.group_service import GroupService
from ottla.broker.marker_sender import Marker
from ottla.broker.partition import Partition
from ottla.broker.transaction.initialization import Producer
from ottla.broker.transaction.metadata import V1, V2, TopicPartition
from ottla.metadata.model.partitions import Partition as PartitionState
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import read_request, read_response, write_request, write_response
from tests.simulation.machine import LoopThreads
from tests.unit.broker.api.stand_in import request_of
from tests.unit.broker.log.workbench import Workbench
from tests.unit.broker.test_group_service import SETTINGS, turns

TXN_OFFSET_COMMIT, OFFSET_COMMIT, OFFSET_FETCH = 28, 8, 9
HANDLERS: dict[int, Any] = {
    module.API.key: module.handle for module in (txn_offset_commit, offset_commit, offset_fetch)
}
TOPIC_ID = UUID(int=7)
PRODUCER = Producer(7, 0)
COORDINATOR_EPOCH = 3
OK, UNSTABLE = ErrorCode.none, ErrorCode.unstable_offset_commit


class Broker:
    """The handlers' broker: it coordinates all groups, in one partition. It stands in for the coordinators of
    transactions, whose answers are `refusals` until they are used up."""

    def __init__(self, folder: Path, *isr: int) -> None:
        self.isr = isr or (0,)
        self.log = Workbench(folder / "log").log()
        self.clock = 1_000_000
        self.authorizer = AllowEverything()
        topic = SimpleNamespace(name="t", id=TOPIC_ID, partitions={0: None, 1: None})
        self.image = SimpleNamespace(topics={"t": topic}, topics_by_id={TOPIC_ID: topic})
        self.verifier = self
        self.asked_for: list[tuple[str, Producer, TopicPartition, bool]] = []
        self.refusals: list[ErrorCode] = []
        self.answered = asyncio.Event()
        self.answered.set()
        self.lead(1)

    async def confirm(
        self, transactional_id: str, producer: Producer, partitions: Set[TopicPartition], *, adds: bool
    ) -> dict[TopicPartition, ErrorCode]:
        (partition,) = partitions
        self.asked_for.append((transactional_id, producer, partition, adds))
        await self.answered.wait()
        return {partition: self.refusals.pop(0) if self.refusals else ErrorCode.none}

    def lead(self, epoch: int) -> None:
        """Becomes the leader as another broker would: with the log, and without anything that is in memory."""
        self.partition = Partition(
            OFFSETS_TOPIC, TOPIC_ID, 0, self.log, TopicCounters(), lambda: self.clock, Mock(), lambda: 0.0
        )
        state = PartitionState(TOPIC_ID, 0, self.isr, self.isr, tuple(1 for _ in self.isr), 0, epoch)
        self.partition.become_leader(state)
        self.groups = GroupService(SETTINGS, lambda: 1, lambda: self.clock, ColdReads(LoopThreads()), lambda: True)
        self.groups.start()
        self.groups.became_leader(self.partition)

    async def fail_over(self, epoch: int) -> None:
        self.partition.resign("the test")
        await self.groups.stop()
        self.lead(epoch)
        self.replicate()
        for _ in range(1_000):
            if self.groups.partition_states()["active"]:
                return
            await asyncio.sleep(0.001)
        raise AssertionError("the log isn't loaded")

    def replicate(self) -> None:
        """The followers have the whole log."""
        for follower in self.isr[1:]:
            self.partition.follower_fetched(follower, 1, self.log.log_end_offset, 0)

    async def asked(self, key: int, version: int, /, **fields: Any) -> Any:
        """The answer to a request, as a client reads it."""
        body = read_request(key, version, write_request(key, version, fields))
        answer = await HANDLERS[key](self, request_of(key, version), body)
        return read_response(key, version, write_response(key, version, answer))

    async def commit(
        self, offset: int, *partitions: int, version: int = 5, topic: str = "t", **fields: Any
    ) -> list[ErrorCode]:
        """A TxnOffsetCommit of one offset for each of these partitions of a topic."""
        parts = [{"partition_index": index, "committed_offset": offset} for index in partitions or (0,)]
        asked = {"group_id": "g", "transactional_id": "id", "producer_id": PRODUCER.id, "producer_epoch": 0} | fields
        answer = await self.asked(TXN_OFFSET_COMMIT, version, topics=[{"name": topic, "partitions": parts}], **asked)
        return [part.error_code for each in answer.topics for part in each.partitions]

    async def commit_without_transaction(self, offset: int) -> ErrorCode:
        part = {"partition_index": 0, "committed_offset": offset}
        answer = await self.asked(OFFSET_COMMIT, 9, group_id="g", topics=[{"name": "t", "partitions": [part]}])
        error: ErrorCode = answer.topics[0].partitions[0].error_code
        return error

    async def fetch(self, *partitions: int, stable: bool = True) -> list[int | ErrorCode]:
        asked = {"group_id": "g", "topics": [{"name": "t", "partition_indexes": list(partitions or (0,))}]}
        answer = await self.asked(OFFSET_FETCH, 8, groups=[asked], require_stable=stable)
        return _offsets(answer)

    async def fetch_all(self, *, stable: bool = True) -> list[int | ErrorCode]:
        answer = await self.asked(OFFSET_FETCH, 8, groups=[{"group_id": "g", "topics": None}], require_stable=stable)
        return _offsets(answer)

    async def end(self, *, commit: bool = True, producer: Producer = PRODUCER, version: int = V1) -> ErrorCode:
        """Appends a marker; V2 markers have the epoch after the transaction's."""
        marker = Marker(producer.id, producer.epoch + (version == V2), commit, COORDINATOR_EPOCH, version)
        try:
            await self.groups.end_transaction(0, marker)
        except KafkaError as error:
            return error.code
        return OK


def _offsets(answer: Any) -> list[int | ErrorCode]:
    (group,) = answer.groups
    assert group.error_code is OK
    return [
        part.committed_offset if part.error_code is OK else part.error_code
        for topic in group.topics
        for part in topic.partitions
    ]


def run(scene: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scene()

    asyncio.run(bounded())


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_in_every_version(tmp_path: Path, version: int, commit: bool) -> None:
    async def scene() -> None:
        broker = Broker(tmp_path)
        assert await broker.commit_without_transaction(1) is OK
        assert await broker.commit(5, 0, 1, version=version) == [OK, OK]
        adds = version >= 5
        assert broker.asked_for == [("id", PRODUCER, TopicPartition(OFFSETS_TOPIC, 0), adds)]
        assert await broker.commit(6, 1, version=version) == [OK]
        assert len(broker.asked_for) == 1, "the transaction has begun in the partition"
        assert await broker.fetch(0, 1) == [UNSTABLE, UNSTABLE]
        assert await broker.fetch(0, 1, stable=False) == [1, -1]
        assert await broker.fetch_all() == [UNSTABLE, UNSTABLE]
        assert await broker.fetch_all(stable=False) == [1]
        assert await broker.end(commit=commit, version=V2 if adds else V1) is OK
        assert await broker.fetch(0, 1) == ([5, 6] if commit else [1, -1])
        assert await broker.fetch_all() == ([5, 6] if commit else [1])
        assert broker.groups.counters.offset_commits == 4
        await broker.groups.stop()

    run(scene)


def test_readers_see_a_marker_when_it_is_committed(tmp_path: Path) -> None:
    async def scene() -> None:
        broker = Broker(tmp_path, 0, 1)
        committing = asyncio.create_task(broker.commit(5))
        await turns()
        assert not committing.done()
        broker.replicate()
        assert await committing == [OK]
        ending = asyncio.create_task(broker.end())
        reading = asyncio.create_task(broker.fetch())
        await turns()
        assert not ending.done()
        assert not reading.done()
        assert await broker.fetch(stable=False) == [-1]
        broker.replicate()
        assert await ending is OK
        assert await reading == [5]
        await broker.groups.stop()

    run(scene)


def test_a_marker_that_comes_while_a_reader_waits_shows_it_no_offset_from_before(tmp_path: Path) -> None:
    """The reader has waited for all records that were appended when it asked. The marker is appended later, and isn't
    committed when the reader's wait ends."""

    async def scene() -> None:
        broker = Broker(tmp_path, 0, 1)
        committing = asyncio.create_task(broker.commit(5))
        await turns()
        reading = asyncio.create_task(broker.fetch())
        await turns()
        before_marker = broker.log.log_end_offset
        ending = asyncio.create_task(broker.end())
        await turns()
        broker.partition.follower_fetched(1, 1, before_marker, 0)
        assert await committing == [OK]
        assert await reading == [UNSTABLE]
        broker.replicate()
        assert await ending is OK
        assert await broker.fetch() == [5]
        await broker.groups.stop()

    run(scene)


def test_the_newest_record_counts(tmp_path: Path) -> None:
    async def scene() -> None:
        broker = Broker(tmp_path)
        other = Producer(8, 0)
        assert await broker.commit(5) == [OK]
        assert await broker.commit(6, transactional_id="other", producer_id=8) == [OK]
        assert await broker.end(producer=other) is OK
        assert await broker.fetch(stable=False) == [6]
        assert await broker.end() is OK
        assert await broker.fetch() == [6]
        assert await broker.commit(7) == [OK]
        assert await broker.commit_without_transaction(8) is OK
        assert await broker.fetch(stable=False) == [8]
        assert await broker.end() is OK
        assert await broker.fetch() == [8]
        await broker.fail_over(2)
        assert await broker.fetch() == [8]
        await broker.groups.stop()

    run(scene)


@pytest.mark.parametrize("commit", [True, False])
def test_another_leader_knows_what_is_undecided(tmp_path: Path, commit: bool) -> None:
    async def scene() -> None:
        broker = Broker(tmp_path, 0, 1)
        for number, work in enumerate((broker.commit_without_transaction(1), broker.commit(5, 0, 1))):
            task = asyncio.ensure_future(work)
            await turns()
            broker.replicate()
            assert await task in (OK, [OK, OK]), number
        await broker.fail_over(2)
        assert await broker.fetch(0, 1) == [UNSTABLE, UNSTABLE]
        ending = asyncio.create_task(broker.end(commit=commit))
        await turns()
        assert await broker.fetch(stable=False) == [1]
        await broker.fail_over(3)  # the marker wasn't committed, and the new leader has it
        assert await ending is ErrorCode.not_leader_or_follower
        assert await broker.fetch(0, 1) == ([5, 5] if commit else [1, -1])
        again = asyncio.create_task(broker.end(commit=commit))
        await turns()
        broker.replicate()
        assert await again is OK
        assert await broker.fetch(0, 1) == ([5, 5] if commit else [1, -1])
        await broker.groups.stop()

    run(scene)


def test_markers_of_coordinators_that_are_fenced_decide_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        broker = Broker(tmp_path)
        assert await broker.commit(5) == [OK]
        assert await broker.end(commit=False) is OK
        assert await broker.commit(6) == [OK]
        stale = Marker(PRODUCER.id, PRODUCER.epoch, True, COORDINATOR_EPOCH - 1, V1)
        with pytest.raises(KafkaError) as refusal:
            await broker.groups.end_transaction(0, stale)
        assert refusal.value.code is ErrorCode.transaction_coordinator_fenced
        assert await broker.fetch() == [UNSTABLE]
        assert await broker.end(producer=Producer(PRODUCER.id, -1)) is ErrorCode.invalid_producer_epoch
        assert await broker.fetch() == [UNSTABLE]
        await broker.groups.stop()

    run(scene)


def test_markers_for_a_partition_that_isnt_coordinated_here(tmp_path: Path) -> None:
    async def scene() -> None:
        broker = Broker(tmp_path)
        assert await broker.commit(5) == [OK]
        marker = Marker(PRODUCER.id, 0, True, COORDINATOR_EPOCH, V1)
        refused: list[Callable[[], object]] = [
            lambda: broker.groups.lost_leadership(0),  # NOT_COORDINATOR
            lambda: broker.groups.became_leader(broker.partition),  # COORDINATOR_LOAD_IN_PROGRESS
        ]
        for change in refused:
            change()
            with pytest.raises(KafkaError) as refusal:
                await broker.groups.end_transaction(0, marker)
            assert refusal.value.code is ErrorCode.not_leader_or_follower
        await broker.groups.stop()  # COORDINATOR_NOT_AVAILABLE
        with pytest.raises(KafkaError) as refusal:
            await broker.groups.end_transaction(0, marker)
        assert refusal.value.code is ErrorCode.not_leader_or_follower

    run(scene)


def test_a_marker_is_waited_for_as_long_as_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the fix, the wait ended, and the coordinator's next attempt appended the marker once more."""

    async def scene() -> None:
        broker = Broker(tmp_path, 0, 1)
        committing = asyncio.create_task(broker.commit(5))
        await turns()
        broker.replicate()
        assert await committing == [OK]
        ending = asyncio.create_task(broker.end())
        await asyncio.sleep(0.1)
        assert not ending.done()
        assert await broker.fetch(stable=False) == [-1]
        broker.replicate()
        assert await ending is OK
        assert await broker.fetch() == [5]
        await broker.groups.stop()

    monkeypatch.setitem(SETTINGS, "offsets.commit.timeout.ms", 20)
    run(scene)


# --- what the coordinator of the transaction says ---


@pytest.mark.parametrize(
    ("said", "answers"),
    [
        # By version 0 to 5.
        (ErrorCode.network_exception, "15 15 14 14 14 14"),
        (ErrorCode.coordinator_load_in_progress, "15 15 14 14 14 14"),
        (ErrorCode.not_coordinator, "16 16 16 16 16 16"),
        (ErrorCode.producer_fenced, "47 47 47 47 47 47"),
        (ErrorCode.invalid_producer_id_mapping, "49 49 49 49 49 49"),
        (ErrorCode.concurrent_transactions, "51 51 51 51 51 51"),
        (ErrorCode.transaction_abortable, "48 48 48 48 120 120"),
    ],
)
def test_the_coordinators_refusals(tmp_path: Path, said: ErrorCode, answers: str) -> None:
    async def scene() -> None:
        broker = Broker(tmp_path)
        for version, answer in enumerate(answers.split()):
            broker.refusals.append(said)
            assert await broker.commit(5, 0, 1, version=version) == [ErrorCode(int(answer))] * 2
        assert broker.log.log_end_offset == 0
        assert await broker.fetch() == [-1]
        await broker.groups.stop()

    run(scene)


def test_an_answer_that_is_out_of_date_lets_nothing_in(tmp_path: Path) -> None:
    """The transaction ends while its coordinator is asked: its marker comes before the offsets."""

    async def scene() -> None:
        broker = Broker(tmp_path)
        broker.answered.clear()
        committing = asyncio.create_task(broker.commit(5, version=3))
        await turns()
        assert await broker.end(commit=False) is OK
        broker.answered.set()
        assert await committing == [ErrorCode.invalid_txn_state]
        assert await broker.fetch() == [-1]
        await broker.groups.stop()

    run(scene)


def test_an_answer_that_comes_to_a_former_leader(tmp_path: Path) -> None:
    async def scene() -> None:
        broker = Broker(tmp_path)
        broker.answered.clear()
        committing = asyncio.create_task(broker.commit(5))
        await turns()
        broker.groups.lost_leadership(0)
        broker.answered.set()
        assert await committing == [ErrorCode.not_coordinator]
        await broker.groups.stop()

    run(scene)


def test_a_fenced_producer_is_not_asked_about(tmp_path: Path) -> None:
    async def scene() -> None:
        broker = Broker(tmp_path)
        assert await broker.commit(5) == [OK]
        assert await broker.end(version=V2) is OK
        assert await broker.commit(6) == [ErrorCode.invalid_producer_epoch]
        assert len(broker.asked_for) == 1
        await broker.groups.stop()

    run(scene)


# --- topics and groups ---


def test_unknown_partitions_are_refused_one_by_one(tmp_path: Path) -> None:
    unknown = ErrorCode.unknown_topic_or_partition

    async def scene() -> None:
        broker = Broker(tmp_path)
        assert await broker.commit(5, 0, 9, topic="gone") == [unknown, unknown]
        assert not broker.asked_for
        assert await broker.commit(5, 9, 1) == [unknown, OK]
        assert await broker.end() is OK
        assert await broker.fetch(9, 1) == [-1, 5]
        await broker.groups.stop()

    run(scene)


def test_a_topic_that_is_deleted_during_the_question_gets_no_offsets(tmp_path: Path) -> None:
    async def scene() -> None:
        broker = Broker(tmp_path)
        broker.answered.clear()
        committing = asyncio.create_task(broker.commit(5))
        await turns()
        del broker.image.topics["t"]
        broker.groups.topics_deleted(["t"])
        broker.answered.set()
        assert await committing == [ErrorCode.unknown_topic_or_partition]
        assert broker.log.log_end_offset == 0
        await broker.groups.stop()

    run(scene)


@pytest.mark.parametrize("commit", [True, False])
def test_offsets_of_a_topic_that_is_deleted_in_the_middle(tmp_path: Path, commit: bool) -> None:
    async def scene() -> None:
        broker = Broker(tmp_path)
        assert await broker.commit(5, 0, 1) == [OK, OK]
        broker.groups.topics_deleted(["t"])
        await turns()
        assert await broker.end(commit=commit) is OK
        assert await broker.fetch(0, 1) == [-1, -1]
        await broker.fail_over(2)
        assert await broker.fetch(0, 1) == [-1, -1]
        await broker.groups.stop()

    run(scene)


@pytest.mark.parametrize(
    ("version", "member", "generation", "error"),
    [
        (5, "mine", 1, OK),
        (5, "mine", 7, ErrorCode.illegal_generation),
        (5, "other", 1, ErrorCode.unknown_member_id),
        (5, "", 1, ErrorCode.unknown_member_id),
        (3, "", -1, OK),
        (2, "", -1, OK),  # these requests have no such fields
    ],
)
def test_a_group_with_members(tmp_path: Path, version: int, member: str, generation: int, error: ErrorCode) -> None:
    async def scene() -> None:
        broker = Broker(tmp_path)
        groups, protocols = broker.groups, (("range", b""),)
        join = Join(groups.ticket(), "", "new", "consumer", protocols, 10_000, 60_000, requires_known_id=False)
        mine = (await groups.join("g", join))["member_id"]
        assert (await groups.sync("g", Sync(groups.ticket(), mine, 1, {mine: b""})))["error_code"] is OK
        asked = {"member_id": mine if member == "mine" else member, "generation_id": generation}
        assert await broker.commit(5, version=version, **(asked if version >= 3 else {})) == [error]
        await groups.stop()

    run(scene)


def test_groups_that_dont_exist(tmp_path: Path) -> None:
    async def scene() -> None:
        broker = Broker(tmp_path)
        assert await broker.commit(5, group_id="") == [ErrorCode.invalid_group_id]
        assert await broker.commit(5, member_id="m", generation_id=1) == [ErrorCode.illegal_generation]
        assert await broker.commit(5) == [OK]
        await broker.groups.stop()

    run(scene)


def test_a_log_without_enough_replicas(tmp_path: Path) -> None:
    async def scene() -> None:
        broker = Broker(tmp_path, 0, 1)
        broker.partition.min_isr = 2
        broker.partition.isr = (0,)
        assert await broker.commit(5) == [ErrorCode.coordinator_not_available]
        assert await broker.end() is ErrorCode.not_enough_replicas
        await broker.groups.stop()

    run(scene)
