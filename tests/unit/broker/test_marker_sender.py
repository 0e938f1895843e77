"""The sender of markers, with leaders in memory: every partition gets its marker, whatever happens to its leader."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from ottla.broker.marker_sender import (
    AGAIN_S_MAX,
    UNCOMMITTED_AGAIN_MAX,
    UNCOMMITTED_AGAIN_S,
    WRITE_TXN_MARKERS,
    Marker,
    MarkerSender,
)
from ottla.broker.outbox import ANSWERED_S, IDLE_S
from ottla.broker.transaction.markers import Markers
from ottla.broker.transaction.metadata import EPOCH_MAX, V1, V2, TopicPartition, Transaction
from ottla.broker.transaction.states import State
from ottla.protocol.errors import ErrorCode
from ottla.protocol.frames import read_request_header, response_frame, skip_tagged_fields
from ottla.protocol.messages import read_request, write_response
from tests.unit.broker.leader_stand_in import WireInMemory
from tests.unit.broker.test_group_service import virtually

ME = 1
T0, T1, T2, U0 = (TopicPartition(topic, index) for topic, index in (("t", 0), ("t", 1), ("t", 2), ("u", 0)))


class Following:
    """The markers of a transaction with producer id `producer_id`."""

    coordinator_epoch = 9

    def __init__(self, producer_id: int, *partitions: TopicPartition) -> None:
        decided = Transaction(
            producer_id, 6, 60_000, State.PREPARE_COMMIT, frozenset(partitions), 0, 0, client_version=V2
        )
        self.markers = Markers(f"id {producer_id}", decided)
        self.coordinated = True
        self.progress = 0

    @property
    def is_wanted(self) -> bool:
        return self.coordinated and not self.markers.stopped

    def progressed(self) -> None:
        self.progress += 1


class Broker:
    """Another broker. A partition's answer is its error in `errors`, else NONE. While `held` isn't set, answers
    wait."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.errors: dict[TopicPartition, ErrorCode] = {}
        self.held = asyncio.Event()
        self.held.set()

    async def answer(self, frame: bytes) -> bytes:
        key, version, correlation_id, _, end = read_request_header(frame, 4)
        assert key == WRITE_TXN_MARKERS
        request = read_request(key, version, frame, skip_tagged_fields(frame, end))
        self.requests.append(request)
        await self.held.wait()
        markers = [
            {
                "producer_id": marker.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [
                            {
                                "partition_index": index,
                                "error_code": self.errors.get(TopicPartition(topic.name, index), ErrorCode.none),
                            }
                            for index in topic.partition_indexes
                        ],
                    }
                    for topic in marker.topics
                ],
            }
            for marker in request.markers
        ]
        return response_frame(key, version, correlation_id, write_response(key, version, {"markers": markers}))

    @property
    def asked(self) -> list[dict[int, set[TopicPartition]]]:
        """The partitions by producer id, of each request."""
        return [
            {
                marker.producer_id: {
                    TopicPartition(topic.name, index) for topic in marker.topics for index in topic.partition_indexes
                }
                for marker in request.markers
            }
            for request in self.requests
        ]


class Stage:
    """Broker 1 with a sender, and brokers 2 and 3. `leaders` are the partitions that the metadata has."""

    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, int] = {T0: 2, T1: 2, T2: 3, U0: ME}
        self.brokers = {2: Broker(), 3: Broker()}
        self.down: set[int] = set()
        self.error: Exception | None = None
        self.connections = 0
        self.written: list[tuple[Marker, list[TopicPartition]]] = []
        self.error_here = ErrorCode.none
        self.tasks: list[asyncio.Task[None]] = []

        def image() -> Any:
            return self.image

        self.sender = MarkerSender(ME, image, "inner", self, self.connect, self.spawn)

    @property
    def image(self) -> Any:
        topics: dict[str, Any] = {}
        for (topic, index), leader in self.leaders.items():
            topics.setdefault(topic, SimpleNamespace(partitions={})).partitions[index] = SimpleNamespace(leader=leader)
        endpoints = {ME: "one", 2: "two", 3: "three"}
        brokers = {
            each: SimpleNamespace(endpoints={"inner": SimpleNamespace(host=host, port=each)})
            for each, host in endpoints.items()
        }
        return SimpleNamespace(topics=topics, brokers=brokers)

    async def connect(self, host: str, port: int) -> Any:
        if self.error is not None:
            raise self.error
        if port in self.down:
            raise ConnectionRefusedError(f"{host} is down")
        self.connections += 1
        broker: Any = self.brokers[port]
        return WireInMemory(broker)

    def spawn(self, work: Any) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    async def append_markers(
        self, marker: Marker, partitions: Sequence[TopicPartition], *, patient: bool = False
    ) -> Mapping[TopicPartition, ErrorCode]:
        self.written.append((marker, list(partitions)))
        await asyncio.sleep(0.01)
        return dict.fromkeys(partitions, self.error_here)

    def stop(self) -> None:
        for task in self.tasks:
            task.cancel()


def test_each_leader_gets_the_markers_of_its_partitions() -> None:
    async def scene() -> None:
        stage = Stage()
        following = Following(7, T0, T1, T2, U0)
        stage.sender.send(following)
        await asyncio.sleep(1)
        assert not following.markers.missing
        assert following.progress == 3
        assert stage.brokers[2].asked == [{7: {T0, T1}}]
        assert stage.brokers[3].asked == [{7: {T2}}]
        assert stage.written == [(Marker(7, 6, True, 9, V2), [U0])]
        (marker,) = stage.brokers[3].requests[0].markers
        assert (marker.producer_epoch, marker.transaction_result) == (6, True)
        assert (marker.coordinator_epoch, marker.transaction_version) == (9, V2)
        stage.stop()

    virtually(scene)


def test_a_request_has_the_markers_that_came_up_during_the_last_one() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.brokers[2].held.clear()
        for producer_id in range(5):
            stage.sender.send(Following(producer_id, T0))
            await asyncio.sleep(0.1)
        assert len(stage.brokers[2].requests) == 1
        assert stage.sender.waiting_count == 4
        stage.brokers[2].held.set()
        await asyncio.sleep(1)
        assert [set(asked) for asked in stage.brokers[2].asked] == [{0}, {1, 2, 3, 4}]
        assert stage.connections == 1
        stage.stop()

    virtually(scene)


def test_a_leader_that_is_down_is_waited_for_and_its_successor_is_asked() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.down.add(2)
        following = Following(7, T0)
        stage.sender.send(following)
        await asyncio.sleep(60)
        assert following.markers.missing == {T0}
        stage.leaders[T0] = -1
        await asyncio.sleep(60)
        assert following.markers.missing == {T0}
        stage.leaders[T0] = 3
        await asyncio.sleep(AGAIN_S_MAX + 1)
        assert not following.markers.missing
        assert stage.brokers[3].asked == [{7: {T0}}]
        stage.stop()

    virtually(scene)


def test_only_the_partitions_that_were_refused_are_asked_again() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.brokers[2].errors[T1] = ErrorCode.not_leader_or_follower
        following = Following(7, T0, T1)
        stage.sender.send(following)
        await asyncio.sleep(0.03)
        assert following.markers.missing == {T1}
        stage.brokers[2].errors.clear()
        await asyncio.sleep(AGAIN_S_MAX)
        assert not following.markers.missing
        assert stage.brokers[2].asked == [{7: {T0, T1}}, {7: {T1}}]
        stage.stop()

    virtually(scene)


def test_a_partition_that_the_metadata_lacks_needs_no_marker() -> None:
    async def scene() -> None:
        stage = Stage()
        del stage.leaders[T2], stage.leaders[U0]
        following = Following(7, T2, U0)
        stage.sender.send(following)
        assert not following.markers.missing
        assert following.progress == 1
        stage.stop()

    virtually(scene)


def test_a_transaction_without_partitions_is_complete_at_once() -> None:
    async def scene() -> None:
        stage = Stage()
        following = Following(7)
        stage.sender.send(following)
        assert following.progress == 1
        stage.stop()

    virtually(scene)


def test_a_newer_coordinator_ends_the_attempts() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.brokers[2].errors[T0] = ErrorCode.transaction_coordinator_fenced
        following = Following(7, T0, T1)
        stage.sender.send(following)
        await asyncio.sleep(60)
        assert following.markers.stopped
        assert len(stage.brokers[2].requests) == 1
        stage.stop()

    virtually(scene)


def test_a_partition_that_knows_a_later_epoch_gets_a_marker_that_fences_the_producer_id() -> None:
    """Before the fix, no further marker was sent, and the id answered CONCURRENT_TRANSACTIONS for ever."""

    async def scene() -> None:
        stage = Stage()
        stage.brokers[2].errors[T1] = stage.error_here = ErrorCode.invalid_producer_epoch
        following = Following(7, T0, T1, U0)
        stage.sender.send(following)
        await asyncio.sleep(0.03)
        assert following.markers.missing == following.markers.overtaken == {T1, U0}
        stage.brokers[2].errors[T1] = stage.error_here = ErrorCode.none
        await asyncio.sleep(1)
        assert not following.markers.missing
        assert stage.brokers[2].asked == [{7: {T0, T1}}, {7: {T1}}]
        (fence,) = stage.brokers[2].requests[1].markers
        assert (fence.producer_epoch, fence.transaction_result) == (EPOCH_MAX, False)
        assert (fence.coordinator_epoch, fence.transaction_version) == (9, V1)
        assert stage.written == [(Marker(7, 6, True, 9, V2), [U0]), (Marker(7, EPOCH_MAX, False, 9, V1), [U0])]
        stage.stop()

    virtually(scene)


def test_one_request_has_both_markers_of_a_producer() -> None:
    async def scene() -> None:
        stage = Stage()
        following = Following(7, T0, T1)
        following.markers.overtaken.add(T1)
        stage.sender.send(following)
        await asyncio.sleep(1)
        assert not following.markers.missing
        (request,) = stage.brokers[2].requests
        assert sorted(marker.producer_epoch for marker in request.markers) == [6, EPOCH_MAX]
        stage.stop()

    virtually(scene)


def test_a_coordinator_that_resigned_sends_nothing_more() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.down.add(2)
        stage.error_here = ErrorCode.not_enough_replicas
        following = Following(7, T0, U0)
        stage.sender.send(following)
        await asyncio.sleep(1)
        following.coordinated = False
        written = len(stage.written)
        stage.down.clear()
        await asyncio.sleep(60)
        assert not stage.brokers[2].requests
        assert len(stage.written) == written
        stage.stop()

    virtually(scene)


def test_this_brokers_own_partitions_are_tried_again() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.error_here = ErrorCode.request_timed_out
        following = Following(7, U0)
        stage.sender.send(following)
        await asyncio.sleep(10)
        assert following.markers.missing == {U0}
        stage.error_here = ErrorCode.none
        await asyncio.sleep(AGAIN_S_MAX + 1)
        assert not following.markers.missing
        stage.stop()

    virtually(scene)


def test_a_partition_that_commits_nothing_does_not_hold_up_other_transactions() -> None:
    """The leader answers REQUEST_TIMED_OUT for its marker, which is sent again in peace."""

    async def scene() -> None:
        stage = Stage()
        stage.brokers[2].errors[T1] = ErrorCode.request_timed_out
        stuck, others = Following(7, T0, T1), [Following(producer_id, T0) for producer_id in range(8, 28)]
        stage.sender.send(stuck)
        for each in others:
            stage.sender.send(each)
            await asyncio.sleep(0.1)
            assert not each.markers.missing
        assert stuck.markers.missing == {T1}
        assert sum(7 in asked for asked in stage.brokers[2].asked) <= 2 / UNCOMMITTED_AGAIN_S + 1
        del stage.brokers[2].errors[T1]
        await asyncio.sleep(AGAIN_S_MAX + 0.1)
        assert not stuck.markers.missing
        stage.stop()

    virtually(scene)


def test_a_marker_is_sent_again_less_and_less_often_while_its_partition_commits_nothing() -> None:
    """Before the fix, it was sent again every half second without an end."""

    async def scene() -> None:
        stage = Stage()
        stage.brokers[2].errors[T0] = stage.error_here = ErrorCode.request_timed_out
        following = Following(7, T0, U0)
        stage.sender.send(following)
        await asyncio.sleep(60)
        assert 60 / AGAIN_S_MAX <= len(stage.brokers[2].requests) <= 60 / AGAIN_S_MAX + 3
        assert 60 / AGAIN_S_MAX <= len(stage.written) <= 60 / AGAIN_S_MAX + 3
        following.coordinated = False
        await asyncio.sleep(AGAIN_S_MAX)
        assert not stage.sender._uncommitted
        stage.stop()

    virtually(scene)


def test_the_markers_of_a_partition_that_commits_nothing_are_few_requests_until_it_commits_again() -> None:
    """Before the fix, each of these markers was sent again every half second."""

    async def scene() -> None:
        stage = Stage()
        other = stage.brokers[2]
        other.errors[T0] = ErrorCode.request_timed_out
        several = [Following(producer_id, T0) for producer_id in range(3 * UNCOMMITTED_AGAIN_MAX)]
        for each in several:
            stage.sender.send(each)
        await asyncio.sleep(1)
        before = sum(map(len, other.asked))
        await asyncio.sleep(60)
        assert sum(map(len, other.asked)) - before <= (60 / AGAIN_S_MAX + 3) * UNCOMMITTED_AGAIN_MAX
        assert all(each.markers.missing for each in several)
        other.errors.clear()
        await asyncio.sleep(AGAIN_S_MAX + 0.5)
        assert not any(each.markers.missing for each in several)
        await asyncio.sleep(2 * AGAIN_S_MAX)
        assert not stage.sender._uncommitted
        stage.stop()

    virtually(scene)


def test_an_idle_connection_is_closed_and_a_later_marker_opens_another() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.sender.send(Following(1, T0))
        await asyncio.sleep(IDLE_S / 2)
        stage.sender.send(Following(2, T0))
        await asyncio.sleep(IDLE_S / 2)
        assert stage.connections == 1
        await asyncio.sleep(IDLE_S)
        assert all(task.done() for task in stage.tasks)
        following = Following(3, T0)
        stage.sender.send(following)
        await asyncio.sleep(1)
        assert not following.markers.missing
        assert stage.connections == 2
        stage.stop()

    virtually(scene)


def test_markers_that_wait_for_a_broker_that_vanished_go_to_the_new_leader() -> None:
    """Before the fix, they were sent to the vanished broker once more, and were held up twice as long."""

    async def scene() -> None:
        stage = Stage()
        stage.brokers[2].held.clear()
        first, second = Following(1, T0), Following(2, T0)
        stage.sender.send(first)
        await asyncio.sleep(1)
        stage.sender.send(second)
        stage.leaders[T0] = 3
        await asyncio.sleep(ANSWERED_S + AGAIN_S_MAX)
        assert not first.markers.missing | second.markers.missing
        assert len(stage.brokers[2].requests) == 1
        stage.stop()

    virtually(scene)


def test_an_unexpected_error_loses_no_marker() -> None:
    async def scene() -> None:
        stage = Stage()
        stage.error = UnicodeError("label empty or too long")
        following = Following(1, T0)
        stage.sender.send(following)
        await asyncio.sleep(10)
        assert following.markers.missing
        stage.error = None
        await asyncio.sleep(AGAIN_S_MAX + 1)
        assert not following.markers.missing
        stage.stop()

    virtually(scene)
