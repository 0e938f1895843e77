"""Produce and Fetch on real partitions: order under recompression, failing requests, sessions during a long wait."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest

from ottla.broker import reading
from ottla.broker.api import delete_records, fetch, produce
from ottla.broker.authorizer import AllowEverything
from ottla.broker.cold_reads import ColdReads
from ottla.broker.counters import ApiCounters, TopicCounters
from ottla.broker.failed_requests import FailedRequests
from ottla.broker.fetch_session_cache import FetchSessionCache
from ottla.broker.inspectors import Inspectors
from ottla.broker.loop_quota import LoopQuota
from ottla.broker.partition import Partition
from ottla.broker.partitions import PartitionTable
from ottla.broker.replica.selector import RACK_AWARE
from ottla.broker.request import Request
from ottla.metadata.image import INTERNAL_TOPICS, Image
from ottla.metadata.model.brokers import Broker, BrokerState, Endpoint
from ottla.metadata.model.partitions import Partition as PartitionState
from ottla.net.disk_threads import VolumeThreads
from ottla.net.memory import BufferedMemory, Work
from ottla.net.pending import Pending
from ottla.protocol.codecs import Codec
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import read_response, write_request
from ottla.protocol.received import Memory
from tests.unit.broker.api.stand_in import request_of
from tests.unit.broker.log.workbench import Workbench, contents
from tests.unit.broker.log.workbench import batch_of as plain_batch_of

PRODUCE, FETCH, DELETE_RECORDS = 0, 1, 21
VERSION = 12
FOLLOWERS_VERSION = 15  # the first version in which a follower gives the epoch of its registration
TOPIC_ID = UUID(int=7)


class Client:
    """The client's end of a connection: the number of answers, and whether it was closed."""

    def __init__(self) -> None:
        self.closed = False
        self.answered_count = 0

        self.memory = BufferedMemory(1 << 28)
        self.owns_frames = True

    def begin_work(self, size_bytes: int, *, postponable: bool = True) -> Work | None:
        if postponable and not self.memory.reserve_work(self, size_bytes, 0.0, lambda: None):
            return None
        return self.memory.begin_work(self, size_bytes, 0.0)

    def owns(self, frame: Memory) -> bool:
        return self.owns_frames

    def close(self, reason: str = "") -> None:
        self.closed = True

    def answered(self) -> None:
        self.answered_count += 1


class Stage:
    """Two partitions of one topic, and the objects of a broker that the handlers of Produce and Fetch need."""

    def __init__(self, folder: Path) -> None:
        self.counters = TopicCounters()
        self.partitions = PartitionTable()
        self.logs = []
        for index in (0, 1):
            log = Workbench(folder / str(index)).log()
            partition = Partition("t", TOPIC_ID, index, log, self.counters, lambda: 1_000_000, Mock())
            partition.become_leader(PartitionState(TOPIC_ID, index, (0,), (0,), (1,), 0))
            self.partitions.add(partition)
            self.logs.append(log)
        self.sessions = FetchSessionCache(10, 120.0, Random(1))
        self.client = Client()
        self.frame = bytearray()  # the bytes of the last request
        self.failures: list[BaseException] = []
        self._tasks: list[asyncio.Task[None]] = []
        self.broker: Any = SimpleNamespace(
            authorizer=AllowEverything(),
            partitions=self.partitions,
            fetch_sessions=self.sessions,
            cold_reads=ColdReads(VolumeThreads()),
            inspectors=Inspectors(ThreadPoolExecutor(1), 1),
            loop_quota=LoopQuota(lambda renew: asyncio.get_running_loop().call_soon(renew)),
            turns=0,
            config=SimpleNamespace(fetch_bytes_max=1 << 20),
            spawn=lambda coroutine: self._tasks.append(asyncio.ensure_future(coroutine)),
            replication_bytes_out=0,
            leader_throttle=SimpleNamespace(pause_seconds=lambda partition, size, behind, now: 0.0),
            failed_requests=FailedRequests(ApiCounters(), ApiCounters(), lambda topic: None),
        )

    def recompress_to(self, codec: Codec) -> None:
        for partition in self.partitions:
            partition.target_codec = codec
        self.partitions.any_takes_turns = True

    def ask(self, module: Any, key: int, request: dict[str, Any], version: int = VERSION) -> Any:
        self.frame = body = bytearray(write_request(key, version, request))
        return module.serve(self.broker, Request(key, version, 1, "me", self.client), body, 0, len(body))

    def produce(self, written: dict[int, bytearray], acks: int = 1, version: int = VERSION) -> Any:
        partitions = [{"index": index, "records": bytes(batch)} for index, batch in written.items()]
        topics = [{"name": "t", "partition_data": partitions}]
        return self.ask(produce, PRODUCE, {"acks": acks, "timeout": 1000, "topic_data": topics}, version)

    def fetch(self, version: int = VERSION, **request: Any) -> Any:
        return self.ask(fetch, FETCH, {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20} | request, version)

    def cancel(self) -> None:
        """Cancels the running tasks, as a broker's stop does."""
        for task in self._tasks:
            task.cancel()

    async def settle(self) -> None:
        self.failures += [
            problem
            for problem in await asyncio.gather(*self._tasks, return_exceptions=True)
            if isinstance(problem, BaseException)
        ]


@pytest.fixture
def play(tmp_path: Path) -> Callable[[Callable[[Stage], Coroutine[Any, Any, None]]], None]:
    async def scene(body: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
        await body(Stage(tmp_path))

    for index in (0, 1):
        (tmp_path / str(index)).mkdir()
    return lambda body: asyncio.run(scene(body))


def batch_of(values: list[bytes], codec: Codec = Codec.none) -> bytearray:
    return plain_batch_of(values, timestamp=1_000_000, codec=codec)


def values(stage: Stage, index: int) -> list[bytes]:
    return [value for _, value in contents(stage.logs[index])]


def test_no_batch_overtakes_one_that_is_recompressed(play: Any) -> None:
    """The topic's codec is lz4. A thread recompresses each uncompressed batch, while a batch that is compressed with
    lz4 could be appended immediately, before earlier batches. One producer may send both kinds: librdkafka sends a
    batch uncompressed if compression doesn't make the batch smaller."""

    async def body(stage: Stage) -> None:
        stage.recompress_to(Codec.lz4)
        plain, packed = Codec.none, Codec.lz4
        stage.produce({0: batch_of([b"0a"], codec=plain), 1: batch_of([b"1a"], codec=plain)})
        stage.produce({1: batch_of([b"1b"], codec=packed)})
        stage.produce({1: batch_of([b"1c"], codec=plain), 0: batch_of([b"0b"], codec=packed)})
        stage.produce({0: batch_of([b"0c"], codec=packed)})
        await stage.settle()
        assert stage.failures == []
        assert values(stage, 0) == [b"0a", b"0b", b"0c"]
        assert values(stage, 1) == [b"1a", b"1b", b"1c"]
        for partition in stage.partitions:
            assert partition.last_turn is None, "no request waits any more"
        assert stage.broker.turns == 0
        assert stage.client.memory.used_bytes == 0

    play(body)


def test_a_recompression_that_breaks_cuts_off_its_client_and_nobody_else(
    play: Any,
) -> None:
    class BreaksOnce(ThreadPoolExecutor):
        broken = False

        def submit(self, work: Any, /, *arguments: Any, **more: Any) -> Any:
            if not self.broken:
                self.broken = True
                raise RuntimeError("broken")
            return super().submit(work, *arguments, **more)

    async def body(stage: Stage) -> None:
        stage.recompress_to(Codec.lz4)
        stage.broker.inspectors = Inspectors(BreaksOnce(1), 1)
        stage.produce({0: batch_of([b"lost"]), 1: batch_of([b"lost too"])})
        other = stage.client = Client()
        stage.produce({1: batch_of([b"1"]), 0: batch_of([b"0"])})
        await stage.settle()
        assert [str(problem) for problem in stage.failures] == ["broken"]
        assert other.answered_count == 1
        assert not other.closed
        assert (values(stage, 0), values(stage, 1)) == ([b"0"], [b"1"])

    play(body)


def asked(index: int, offset: int = 0) -> dict[str, Any]:
    return {"partition": index, "fetch_offset": offset, "partition_max_bytes": 1 << 20}


def answer_of(parts: Any, version: int = VERSION) -> Any:
    data = b"".join(
        bytes(part) if isinstance(part, (bytes, bytearray)) else part.file.pread(part.size, part.position)
        for part in parts
    )
    return read_response(FETCH, version, data[9:])


def test_a_first_fetch_that_waits_is_answered_in_full(play: Any) -> None:
    async def body(stage: Stage) -> None:
        topics = [{"topic": "t", "partitions": [asked(0), asked(1)]}]
        pending = stage.fetch(max_wait=50, session_epoch=0, topics=topics)
        assert isinstance(pending, Pending)
        # Another request continues the session meanwhile, but this answer still has to name every partition.
        [session] = stage.sessions._sessions.values()
        stage.sessions.resume(session.id, 1, uses_topic_ids=False, now=0.0)
        await asyncio.sleep(0.1)
        [topic] = answer_of(pending.parts).responses
        assert [partition.partition_index for partition in topic.partitions] == [0, 1]
        assert stage.counters.fetch_requests == 2, "each partition counts once, however often it was read"

    play(body)


def test_bytes_are_counted_as_they_are_sent(play: Any) -> None:
    async def body(stage: Stage) -> None:
        batch = batch_of([b"x" * 100])
        stage.produce({0: batch})
        topics = [{"topic": "t", "partitions": [asked(0)]}]
        stage.fetch(max_wait=20, min_bytes=10_000, session_epoch=-1, topics=topics)
        assert stage.counters.bytes_out == 0
        await asyncio.sleep(0.1)
        assert stage.counters.bytes_out == len(batch)

    play(body)


def test_a_disk_that_breaks_under_a_waiting_fetch_is_told(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(stage: Stage) -> None:
        topics = [{"topic": "t", "partitions": [asked(0)]}]
        pending = stage.fetch(max_wait=20, session_epoch=-1, topics=topics)

        def broken(*arguments: Any) -> Any:
            raise OSError(errno.EIO, "broken")

        monkeypatch.setattr(type(stage.logs[0]), "read", broken)
        stage.logs[0].log_end_offset = 1  # as if a record had been appended
        stage.partitions.find("t", 0).high_watermark = 1
        await asyncio.sleep(0.1)
        [topic] = answer_of(pending.parts).responses
        assert topic.partitions[0].error_code == 56

    play(body)


def session_of(parts: Any, version: int = VERSION) -> int:
    return int(answer_of(parts, version).session_id)


def test_a_session_reads_only_what_moved(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(stage: Stage) -> None:
        read: list[int] = []
        real = reading.read

        def counted(partition: Partition, *arguments: Any) -> Any:
            read.append(partition.index)
            return real(partition, *arguments)

        monkeypatch.setattr(reading, "read", counted)
        topics = [{"topic": "t", "partitions": [asked(0), asked(1)]}]
        session = session_of(stage.fetch(session_epoch=0, topics=topics))
        assert read == [0, 1]
        stage.fetch(session_id=session, session_epoch=1)
        assert read == [0, 1], "no partition has new records"
        stage.produce({1: batch_of([b"1"])})
        for epoch in (2, 3):  # the client asks for the same offset again, so the records are sent again
            [topic] = answer_of(stage.fetch(session_id=session, session_epoch=epoch)).responses
            assert [partition.partition_index for partition in topic.partitions] == [1]
            assert topic.partitions[0].records
        assert read == [0, 1, 1, 1]
        taken = [{"topic": "t", "partitions": [asked(1, 1)]}]
        assert not answer_of(stage.fetch(session_id=session, session_epoch=4, topics=taken)).responses
        stage.fetch(session_id=session, session_epoch=5)
        assert read == [0, 1, 1, 1, 1]

    play(body)


def test_what_did_not_fit_is_read_again(play: Any) -> None:
    async def body(stage: Stage) -> None:
        stage.produce({0: batch_of([b"0" * 5000]), 1: batch_of([b"1" * 5000])})
        topics = [{"topic": "t", "partitions": [asked(0), asked(1)]}]
        first = stage.fetch(session_epoch=0, max_bytes=5000, topics=topics)
        assert [bool(partition.records) for partition in answer_of(first).responses[0].partitions] == [True, False]
        taken = [{"topic": "t", "partitions": [asked(0, 1)]}]
        session = session_of(first)
        [topic] = answer_of(stage.fetch(session_id=session, session_epoch=1, max_bytes=5000, topics=taken)).responses
        assert [partition.partition_index for partition in topic.partitions if partition.records] == [1]

    play(body)


def test_a_waiting_session_hears_of_partitions_it_has_read_and_of_those_it_has_not(play: Any) -> None:
    async def body(stage: Stage) -> None:
        stage.produce({0: batch_of([b"0"])})
        topics = [{"topic": "t", "partitions": [asked(0), asked(1)]}]
        session = session_of(stage.fetch(session_epoch=0, topics=topics))
        for epoch, index, enough in ((1, 0, 100), (2, 1, 180)):
            pending = stage.fetch(session_id=session, session_epoch=epoch, max_wait=10_000, min_bytes=enough)
            assert pending.parts is None
            stage.produce({index: batch_of([b"more"])})
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert pending.parts is not None

    play(body)


def test_an_abandoned_session_costs_the_writers_nothing(play: Any) -> None:
    async def body(stage: Stage) -> None:
        topics = [{"topic": "t", "partitions": [asked(0), asked(1)]}]
        session = session_of(stage.fetch(session_epoch=0, topics=topics))
        assert [len(partition.waiters) for partition in stage.partitions] == [1, 1]
        stage.produce({0: batch_of([b"0"])})
        assert [len(partition.waiters) for partition in stage.partitions] == [0, 1]
        stage.sessions.remove(session)
        assert [len(partition.waiters) for partition in stage.partitions] == [0, 0]

    play(body)


def test_a_session_whose_client_hung_up_before_it_knew_of_it_is_not_kept(play: Any) -> None:
    async def body(stage: Stage) -> None:
        topics = [{"topic": "t", "partitions": [asked(0), asked(1)]}]
        for _ in range(3):
            waiting = stage.fetch(session_epoch=0, topics=topics, max_wait=10_000)
            assert len(stage.sessions) == 1
            waiting.forget()
            assert len(stage.sessions) == 0
            assert [len(partition.waiters) for partition in stage.partitions] == [0, 0]
        session = session_of(stage.fetch(session_epoch=0, topics=topics))
        stage.fetch(session_id=session, session_epoch=1, max_wait=10_000).forget()
        assert len(stage.sessions) == 1, "the client knows the session's id, and may still end it"

    play(body)


class Follower:
    """Replica 1 of both partitions, whose leader is replica 0. `outside` has the indexes of the partitions that this
    replica fetched while it wasn't in the ISR."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.outside: list[int] = []
        stage.broker.isr_changes = SimpleNamespace(outsider_fetched=self._outsider_fetched)
        for partition in stage.partitions:
            partition.become_leader(PartitionState(TOPIC_ID, partition.index, (0, 1), (0, 1), (1, 1), 0, 1))

    def _outsider_fetched(self, partition: Partition, replica: int) -> None:
        assert replica == 1
        self.outside.append(partition.index)

    def fetch(self, *offsets: tuple[int, int, int], **request: Any) -> Any:
        """Fetches these partitions, each given as (index, offset, last fetched epoch)."""
        partitions = [
            asked(index, offset) | {"last_fetched_epoch": epoch, "current_leader_epoch": 1}
            for index, offset, epoch in offsets
        ]
        topics = [{"topic_id": TOPIC_ID, "partitions": partitions}] if partitions else []
        state = {"replica_id": 1, "replica_epoch": 1}
        return self.stage.fetch(FOLLOWERS_VERSION, replica_state=state, topics=topics, **request)


def test_followers_read_up_to_the_end_and_commit_what_they_have(play: Any) -> None:
    async def body(stage: Stage) -> None:
        follower = Follower(stage)
        partition = stage.partitions.find("t", 0)
        waiting = stage.produce({0: batch_of([b"0"])}, acks=-1)
        assert (
            answer_of(follower.fetch((0, 0, -1), session_epoch=-1), FOLLOWERS_VERSION)
            .responses[0]
            .partitions[0]
            .records
        )
        assert partition.high_watermark == 0
        assert (stage.counters.bytes_out, stage.broker.replication_bytes_out > 0) == (0, True)
        consumer = [{"topic": "t", "partitions": [asked(0)]}]
        assert not answer_of(stage.fetch(session_epoch=-1, topics=consumer)).responses[0].partitions[0].records
        [told] = answer_of(follower.fetch((0, 1, 1), session_epoch=-1), FOLLOWERS_VERSION).responses[0].partitions
        assert (partition.high_watermark, told.high_watermark) == (1, 1)
        await stage.settle()
        assert waiting.parts is not None
        assert answer_of(stage.fetch(session_epoch=-1, topics=consumer)).responses[0].partitions[0].records

    play(body)


def test_acks_all_needs_the_minimum_of_replicas_in_sync_and_acks_1_does_not(play: Any) -> None:
    """Without enough replicas in sync the batch is refused before it is appended. If the ISR shrinks afterwards, the
    answer doesn't say that the batch is committed."""

    async def body(stage: Stage) -> None:
        def lead(partition_epoch: int, *isr: int, replicas: tuple[int, ...] = (0, 1)) -> None:
            state = PartitionState(TOPIC_ID, 0, replicas, isr, (1,) * len(isr), 0, 1, partition_epoch)
            stage.partitions.find("t", 0).become_leader(state)

        def send(value: bytes, acks: int) -> Any:
            return stage.produce({0: batch_of([value])}, acks, 9)

        def code(parts: Any) -> int:
            [topic] = read_response(PRODUCE, 9, b"".join(map(bytes, parts))[9:]).responses
            return int(topic.partition_responses[0].error_code)

        partition = stage.partitions.find("t", 0)
        partition.min_isr = 2
        lead(0, 0)
        assert code(send(b"refused", -1)) == ErrorCode.not_enough_replicas
        assert partition.log.log_end_offset == 0
        assert code(send(b"one", 1)) == ErrorCode.none
        assert send(b"none", 0) is None
        assert (partition.log.log_end_offset, partition.high_watermark) == (2, 0), "appended, and not committed"

        lead(1, 0, 1)
        waiting = send(b"all", -1)
        lead(2, 0)
        await stage.settle()  # until the producer's time-out
        assert code(waiting.parts) == ErrorCode.request_timed_out
        assert partition.high_watermark == 0
        lead(3, 0, replicas=(0,))
        assert partition.high_watermark == 3, "with a single replica, min.insync.replicas=2 asks for one only"
        assert code(send(b"alone", -1)) == ErrorCode.none

    play(body)


def test_a_follower_on_another_branch_is_told_where_it_began_and_commits_nothing(play: Any) -> None:
    async def body(stage: Stage) -> None:
        stage.produce({0: batch_of([b"0"])})  # in epoch 0
        follower = Follower(stage)
        stage.produce({0: batch_of([b"1"])})  # in epoch 1
        [told] = answer_of(follower.fetch((0, 2, 0), session_epoch=-1), FOLLOWERS_VERSION).responses[0].partitions
        assert (told.diverging_epoch.epoch, told.diverging_epoch.end_offset) == (0, 1)
        assert not told.records
        assert stage.partitions.find("t", 0).high_watermark == 1, "the fetch that diverges commits nothing"
        [told] = answer_of(follower.fetch((0, 1, 0), session_epoch=-1), FOLLOWERS_VERSION).responses[0].partitions
        assert told.diverging_epoch.epoch == -1
        assert told.records

    play(body)


def test_a_followers_session_learns_of_the_high_watermark(play: Any) -> None:
    async def body(stage: Stage) -> None:
        follower = Follower(stage)
        session = session_of(follower.fetch((0, 0, -1), (1, 0, -1), session_epoch=0), FOLLOWERS_VERSION)
        stage.produce({0: batch_of([b"0"])})
        follower.fetch(session_id=session, session_epoch=1)
        follower.fetch((0, 1, 1), session_id=session, session_epoch=2)
        partition = stage.partitions.find("t", 0)
        assert partition.high_watermark == 1
        assert partition.leading is not None
        stage.sessions.resume(session, 3, uses_topic_ids=True, now=1e12)
        stage.produce({0: batch_of([b"1"])})
        assert partition.leading.followers[1].caught_up_at == 1e12, "the follower had every record until the append"

    play(body)


def test_a_follower_that_registered_anew_is_looked_at_again(play: Any) -> None:
    async def body(stage: Stage) -> None:
        follower = Follower(stage)
        for partition in stage.partitions:
            partition.become_leader(PartitionState(TOPIC_ID, partition.index, (0, 1), (0,), (1,), 0, 2))
        topics = [{"topic_id": TOPIC_ID, "partitions": [asked(0) | {"current_leader_epoch": 2}]}]
        state = {"replica_id": 1, "replica_epoch": 1}
        session = answer_of(
            stage.fetch(FOLLOWERS_VERSION, session_epoch=0, topics=topics, replica_state=state), FOLLOWERS_VERSION
        ).session_id
        assert follower.outside == [0]
        stage.fetch(FOLLOWERS_VERSION, session_id=session, session_epoch=1, replica_state=state)
        assert follower.outside == [0], "a second fetch isn't reported"
        state["replica_epoch"] = 7
        stage.fetch(FOLLOWERS_VERSION, session_id=session, session_epoch=2, replica_state=state)
        assert follower.outside == [0, 0]
        leading = stage.partitions.find("t", 0).leading
        assert leading is not None
        assert leading.followers[1].broker_epoch == 7

    play(body)


def test_a_throttled_follower_gets_nothing_while_it_is_behind(play: Any) -> None:
    async def body(stage: Stage) -> None:
        follower = Follower(stage)
        stage.produce({0: batch_of([b"0"]), 1: batch_of([b"1"])})
        counted: list[tuple[int, int]] = []

        def pause_seconds(partition: Partition, size: int, behind: bool, now: float) -> float:
            counted.append((partition.index, size))
            return 1.0 if behind else 0.0

        stage.broker.leader_throttle.pause_seconds = pause_seconds
        stage.partitions.find("t", 0).become_leader(PartitionState(TOPIC_ID, 0, (0, 1), (0,), (1,), 0, 1))
        first = follower.fetch((0, 0, -1), (1, 0, -1), session_epoch=0)
        [topic] = answer_of(first, FOLLOWERS_VERSION).responses
        assert [bool(partition.records) for partition in topic.partitions] == [False, True]
        assert [index for index, size in counted if size] == [1], "an in-sync replica isn't throttled, but counted"
        stage.broker.leader_throttle.pause_seconds = lambda partition, size, behind, now: 0.0
        session = session_of(first, FOLLOWERS_VERSION)
        [topic] = answer_of(follower.fetch(session_id=session, session_epoch=1), FOLLOWERS_VERSION).responses
        assert [partition.partition_index for partition in topic.partitions if partition.records] == [0, 1]

    play(body)


def test_a_follower_does_not_send_a_consumer_back_to_the_beginning(play: Any) -> None:
    async def body(stage: Stage) -> None:
        partition = stage.partitions.find("t", 0)
        partition.become_follower(PartitionState(TOPIC_ID, 0, (0, 1), (0, 1), (1, 1), 1, 3))
        for offset, error in ((0, 0), (5, 78)):
            topics = [{"topic": "t", "partitions": [asked(0, offset)]}]
            [answer] = answer_of(stage.fetch(session_epoch=-1, topics=topics)).responses[0].partitions
            assert answer.error_code == error

    play(body)


@pytest.mark.parametrize(("selector", "sent_to"), [(RACK_AWARE, 1), (None, -1)])
def test_a_consumer_is_sent_to_the_replica_in_its_rack(play: Any, selector: str | None, sent_to: int) -> None:
    """KIP-392. The consumer stays at the leader if the replica in the consumer's rack lacks the requested offset, or if
    no replica selector is set."""

    async def body(stage: Stage) -> None:
        follower = Follower(stage)
        stage.broker.id = 0
        stage.broker.config.get_str = {"replica.selector.class": selector}.get
        racks = {id: Broker(id, 1, {}, rack=rack, state=BrokerState.RUNNING) for id, rack in ((0, "a"), (1, "b"))}
        stage.broker.image = SimpleNamespace(brokers=racks)
        stage.produce({0: batch_of([b"0"])})
        follower.fetch((0, 1, 1), session_epoch=-1)
        stage.produce({0: batch_of([b"1"])})  # the follower hasn't got this record yet
        found = []
        for rack, offset in (("b", 0), ("a", 0), ("", 0), ("b", 2)):
            topics = [{"topic": "t", "partitions": [asked(0, offset)]}]
            [part] = answer_of(stage.fetch(rack_id=rack, session_epoch=-1, topics=topics)).responses[0].partitions
            found.append((part.error_code, part.preferred_read_replica, bool(part.records)))
        assert found == [(0, sent_to, sent_to < 0), (0, -1, True), (0, -1, True), (0, -1, False)]

    play(body)


def test_who_asks_the_wrong_broker_is_told_the_right_one(play: Any) -> None:
    async def body(stage: Stage) -> None:
        state = PartitionState(TOPIC_ID, 0, (0, 7), (0, 7), (1, 1), 7, 3)
        elsewhere = Broker(7, 1, {"CLIENTS": Endpoint("CLIENTS", "there", 9092)}, rack="r")
        topic = SimpleNamespace(id=TOPIC_ID)
        stage.broker.image = SimpleNamespace(
            topics={"t": topic}, topics_by_id={TOPIC_ID: topic}, brokers={7: elsewhere},
            partition=lambda topic_id, index: state if index == 0 else None,
        )  # fmt: skip
        stage.client.listener = SimpleNamespace(name="CLIENTS")  # type: ignore[attr-defined]
        stage.partitions.find("t", 0).become_follower(state)
        records = [{"index": index, "records": bytes(batch_of([b"x"]))} for index in (0, 1)]
        written = {"acks": 1, "timeout": 1000, "topic_data": [{"name": "t", "partition_data": records}]}
        frame = b"".join(map(bytes, stage.ask(produce, PRODUCE, written, 12)))
        answer = read_response(PRODUCE, 12, frame[9:])
        moved, kept = answer.responses[0].partition_responses
        assert (moved.error_code, moved.current_leader.leader_id, moved.current_leader.leader_epoch) == (6, 7, 3)
        assert (kept.error_code, kept.current_leader.leader_id) == (0, -1)
        asked_again = [{"topic_id": TOPIC_ID, "partitions": [asked(0) | {"current_leader_epoch": 2}]}]
        fetched = answer_of(stage.fetch(17, session_epoch=-1, topics=asked_again), 17)
        [partition] = fetched.responses[0].partitions
        assert (partition.error_code, partition.current_leader.leader_id) == (74, 7)
        for response in (answer, fetched):
            [node] = response.node_endpoints
            assert (node.node_id, node.host, node.port, node.rack) == (7, "there", 9092, "r")

    play(body)


def test_a_partition_that_is_lost_fails_alone(play: Any) -> None:
    async def body(stage: Stage) -> None:
        follower = Follower(stage)
        records = [{"index": index, "records": bytes(batch_of([b"x"]))} for index in (0, 1)]
        written = {"acks": -1, "timeout": 1000, "topic_data": [{"name": "t", "partition_data": records}]}
        waiting = stage.ask(produce, PRODUCE, written, 9)
        follower.fetch((1, 1, -1), session_epoch=-1)
        stage.partitions.find("t", 0).resign("another one leads")
        await stage.settle()
        [topic] = read_response(PRODUCE, 9, b"".join(map(bytes, waiting.parts))[9:]).responses
        assert [(part.error_code, part.base_offset) for part in topic.partition_responses] == [(6, -1), (0, 0)]

    play(body)


@pytest.mark.parametrize(
    ("policy", "code"),
    [("compact", ErrorCode.policy_violation), ("compact,delete", None), ("delete", None), ("", None)],
)
def test_records_of_a_topic_that_is_only_compacted_cant_be_deleted(play: Any, policy: str, code: int | None) -> None:
    """Apache Kafka 4.3.1 gives the same answers to the same requests."""

    async def body(stage: Stage) -> None:
        stage.produce({0: batch_of([b"x"])})
        log = stage.partitions.find("t", 0).log
        log.config = replace(log.config, cleanup_policy=frozenset(policy.split(",")))
        for offset in (-1, 1):
            assert await _deleted(stage, "t", 0, offset) == (code, -1 if code else 1)
        assert log.log_start_offset == (0 if code else 1)
        out_of_range = code or ErrorCode.offset_out_of_range
        assert await _deleted(stage, "t", 0, 7) == (out_of_range, -1)

    play(body)


@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
def test_records_of_internal_topics_cant_be_deleted(play: Any, topic: str) -> None:
    """The answer for a partition of an internal topic is INVALID_TOPIC_EXCEPTION, whichever broker leads it. If the
    partition doesn't exist, the answer is UNKNOWN_TOPIC_OR_PARTITION."""

    async def body(stage: Stage) -> None:
        partition = stage.partitions.find("t", 0)
        stage.broker.image = SimpleNamespace(topics={topic: SimpleNamespace(partitions=[0, 1])})
        led = Partition(topic, UUID(int=9), 0, partition.log, TopicCounters(), lambda: 0, Mock())
        led.become_leader(PartitionState(UUID(int=9), 0, (0,), (0,), (1,), 0))
        stage.partitions.add(led)
        stage.produce({0: batch_of([b"x"])})
        assert await _deleted(stage, topic, 0, -1) == (ErrorCode.invalid_topic_exception, -1)
        assert await _deleted(stage, topic, 1, -1) == (ErrorCode.invalid_topic_exception, -1)
        stage.partitions.image = Image()
        stage.broker.image = Image()
        assert await _deleted(stage, topic, 1, -1) == (ErrorCode.unknown_topic_or_partition, -1)
        assert led.log.log_start_offset == 0

    play(body)


async def _deleted(stage: Stage, topic: str, index: int, offset: int) -> tuple[int | None, int]:
    """The error code and the low watermark in one partition's answer."""
    partitions = [SimpleNamespace(partition_index=index, offset=offset)]
    body = SimpleNamespace(topics=[SimpleNamespace(name=topic, partitions=partitions)], timeout=timedelta(seconds=5))
    answer = await delete_records.handle(stage.broker, request_of(DELETE_RECORDS, 2), body)
    [partition] = answer["topics"][0]["partitions"]
    return partition.get("error_code"), partition["low_watermark"]


def test_records_deleted_where_this_broker_leads_no_longer_when_the_others_are(play: Any) -> None:
    async def body(stage: Stage) -> None:
        stage.produce({0: batch_of([b"x"]), 1: batch_of([b"x"])})
        moved, kept = stage.partitions.find("t", 0), stage.partitions.find("t", 1)
        kept.become_leader(PartitionState(TOPIC_ID, 1, (0, 1), (0, 1), (1, 1), 0))
        partitions = [SimpleNamespace(partition_index=index, offset=1) for index in (0, 1)]
        deletion = SimpleNamespace(
            topics=[SimpleNamespace(name="t", partitions=partitions)], timeout=timedelta(seconds=5)
        )
        request = request_of(DELETE_RECORDS, 2)
        asking = asyncio.ensure_future(delete_records.handle(stage.broker, request, deletion))
        await asyncio.sleep(0)
        moved.resign("another one leads")
        kept.follower_fetched(1, 1, 1, 1)
        [topic] = (await asking)["topics"]
        codes = [(part.get("error_code"), part["low_watermark"]) for part in topic["partitions"]]
        assert codes == [(ErrorCode.not_leader_or_follower, -1), (None, 1)]

    play(body)
