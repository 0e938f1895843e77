"""Produce (key 0), versions 3–13 (0–2 are advertised and refused, as Kafka does for old librdkafka: KAFKA-18659).

Each partition's batch is admitted, patched and written in the buffer that received it. With acks=0 there is no answer,
and an error closes the connection. With acks=1 the answer is sent when all batches of the request are written, with
acks=all when they are committed. Batches with which transactions begin are confirmed by the transaction's coordinator
first (`beginnings.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ottla.broker.api.declaration import Api
from ottla.broker.api.refusals import refused
from ottla.broker.beginnings import Beginnings, Place, beginnings
from ottla.broker.contents import loop_cost, may_leave_loop
from ottla.broker.current_leaders import CurrentLeaders
from ottla.broker.loop_quota import PLAIN_BATCH_BYTES, TURN_BYTES, LoopQuota
from ottla.broker.ports import (
    WithAuthorizer,
    WithBatchChecks,
    WithFailedRequests,
    WithImage,
    WithPartitions,
    WithTasks,
    WithVerifier,
)
from ottla.broker.request import Request
from ottla.broker.throttling import metered
from ottla.broker.turns import Received, Turn, admit_in_turn, memory_bytes, needs_turn, take_turn
from ottla.broker.verification import NOT_NEEDED
from ottla.net.connection import POSTPONED
from ottla.protocol import batches
from ottla.protocol.current_leader import PRODUCE_VERSION, produce_leader_tags
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.produce import (
    PartitionAnswer,
    ProduceRequest,
    read_produce_request,
    success,
    write_produce_answer,
)
from ottla.protocol.received import Memory
from ottla.protocol.rights import AclOperation, ResourceType, Right

if TYPE_CHECKING:
    from ottla.broker.partition import Appended, Partition
    from ottla.net.memory import Work
    from ottla.net.server import Reply

API = Api(
    key=0,
    versions=(0, 13),
    needs=(Right(AclOperation.WRITE, ResourceType.TOPIC), Right(AclOperation.WRITE, ResourceType.TRANSACTIONAL_ID)),
    served=(3, 13),
    gaps=(
        "Versions 0 to 2 are advertised and refused, as Kafka does (KAFKA-18659).",
        "Some batches that Kafka accepts are refused (see below).",
    ),
)
ALL = -1
KNOWN_ACKS = (ALL, 0, 1)
INTERNAL_WRITER = "__admin_client"  # the only client id that Kafka allows to write to internal topics

Answers = list[tuple[str | bytes, list[PartitionAnswer]]]
_Wait = tuple[asyncio.Future[None], list[PartitionAnswer], int]  # a future, and the list and place of its answer


class Parts(
    WithAuthorizer, WithBatchChecks, WithFailedRequests, WithImage, WithPartitions, WithTasks, WithVerifier, Protocol
): ...


def serve(broker: Parts, request: Request, frame: Memory, position: int, end: int) -> Reply:
    """Appends the request's batches. Returns the response, or a Pending that is answered later, or None with acks=0, or
    POSTPONED if the request has to be dispatched again for lack of memory."""
    body = read_produce_request(request.api_version, frame, position, end)
    denied: Answers = []
    if broker.authorizer.enforced:
        if body.transactional_id is not None and not _may_use_its_id(broker, request, body, frame):
            return _Produce(broker, request, body, denied).refuse_all(refused(ResourceType.TRANSACTIONAL_ID))
        known = broker.authorizer.known_topics(request, AclOperation.WRITE)
        for topic, _ in body.topics:
            if topic not in known:
                body, denied = _allowed(broker, request, body)
                break
    produce = _Produce(broker, request, body, denied)
    guard = None
    if body.transactional_id is not None:
        guard = NOT_NEEDED
        try:
            begun = beginnings(body, frame, request.api_version, broker.partitions.find_or_none)
        except KafkaError as error:
            return produce.refuse_all(error)
        if begun is not None or broker.transactional_order.waits(request.connection):
            return produce.wait_for_coordinator(frame, begun)
    if _is_one_batch(body):
        pass  # `append` appends nothing if the batch needs a turn
    elif (
        _is_suspect(body, frame, end - position, broker.loop_quota) or broker.partitions.any_takes_turns or broker.turns
    ) and produce.takes_turns(frame):
        return produce.take_turns(frame, 0)
    version, quota = request.api_version, broker.loop_quota
    done = 0
    for topic, sets in body.topics:
        answers: list[PartitionAnswer] = []
        produce.answers.append((topic, answers))
        for index, start, stop in sets:
            try:
                partition = produce.find(topic, index)
                appended = partition.append(frame, start, stop, version, quota, guard)
                if appended is None:
                    return produce.take_turns(frame, done)
                answers.append(produce.appended(partition, appended, answers))
            except KafkaError as error:
                answers.append(produce.refused(topic, index, stop - start, error))
            done += 1
    if body.acks == 0:
        produce.end_unanswered()
        return None
    if not produce.waits:
        return [produce.response(produce.answers)]
    broker.spawn(produce.answer_later())
    return request.pending


def _may_use_its_id(broker: Parts, request: Request, body: ProduceRequest, frame: Memory) -> bool:
    """Whether the client may write as the request's transactional id. As in Kafka, the id counts only if one of the
    batches is transactional."""
    assert body.transactional_id is not None
    transactional = any(
        stop - start >= batches.HEADER_SIZE and batches.read_header(frame, start).attributes & batches.TRANSACTIONAL
        for _, sets in body.topics
        for _, start, stop in sets
    )
    kind = ResourceType.TRANSACTIONAL_ID
    return not transactional or broker.authorizer.allows(request, AclOperation.WRITE, kind, body.transactional_id)


def _allowed(broker: Parts, request: Request, body: ProduceRequest) -> tuple[ProduceRequest, Answers]:
    """The request without the topics to which the client may not write, and the answers for these topics, which are the
    same whether a topic exists or not."""
    denied: Answers = []
    for topic, sets in body.topics:
        if not broker.authorizer.allows_topic(request, AclOperation.WRITE, topic, sets.__len__):
            code = ErrorCode.topic_authorization_failed
            for _, start, stop in sets:
                broker.failed_requests.count_produce(topic, stop - start, code)
            denied.append((topic, [PartitionAnswer(index, code) for index, _, _ in sets]))
    if not denied:
        return body, denied
    names = {topic for topic, _ in denied}
    return body._replace(topics=[each for each in body.topics if each[0] not in names]), denied


def _is_one_batch(body: ProduceRequest) -> bool:
    return len(body.topics) == 1 and len(body.topics[0][1]) == 1


def _is_suspect(body: ProduceRequest, frame: Memory, size_bytes: int, quota: LoopQuota) -> bool:
    """Whether the check of one of the batches may exceed the time left in this turn of the event loop, or the check of
    all batches the time of a whole turn."""
    left = TURN_BYTES - size_bytes
    for _, partitions in body.topics:
        left -= len(partitions) * PLAIN_BATCH_BYTES
        if left < 0 or any(may_leave_loop(frame, start, stop, quota) for _, start, stop in partitions):
            return True
    return False


class _InTurn(NamedTuple):
    """A batch that wasn't appended when it was received. `turn` is its place in the partition's queue, None where the
    partition doesn't exist."""

    topic: str | bytes
    answers: list[PartitionAnswer]  # the answers for the topic's partitions
    index: int  # type: ignore[assignment]  # the name of this field hides tuple.index
    batch: Received
    turn: Turn | None


class _Produce:
    """One request in progress, with the answers so far."""

    __slots__ = ("_body", "_broker", "_denied", "_request", "acks", "answers", "failed", "waits")

    def __init__(self, broker: Parts, request: Request, body: ProduceRequest, denied: Answers) -> None:
        """`denied` are the answers for topics to which the client may not write; `body` has the other topics."""
        self._broker = broker
        self._request = request
        self._body = body
        self.acks = body.acks
        if request.charge is not None:
            request.charge.unanswered = body.acks == 0
        self.answers: Answers = []
        self.waits: list[_Wait] = []
        self.failed = bool(denied)
        self._denied = denied

    def find(self, topic: str | bytes, index: int) -> Partition:
        """The partition, if this request may write to it. Raises KafkaError."""
        partition = self._broker.partitions.find(topic, index)
        if partition.internal and self._request.client_id != INTERNAL_WRITER:
            raise KafkaError(ErrorCode.invalid_topic_exception, f"clients may not write to {partition.topic}")
        if self.acks not in KNOWN_ACKS:
            raise KafkaError(ErrorCode.invalid_required_acks)
        if self.acks == ALL and partition.leading is not None and partition.under_min_isr:
            raise KafkaError(ErrorCode.not_enough_replicas)
        return partition

    def appended(self, partition: Partition, appended: Appended, answers: list[PartitionAnswer]) -> PartitionAnswer:
        """The answer for a batch that was written, which the caller adds to `answers`. Notes the futures for which the
        answer has to wait."""
        log = partition.log
        base_offset, last_offset, append_time = appended
        if self.acks == ALL and last_offset >= partition.high_watermark:
            self.waits.append((partition.committed(last_offset), answers, len(answers)))
        if log.flush_overdue:
            self.waits.append((partition.flushes.flush(), answers, len(answers)))
        return success(partition.index, base_offset, append_time, log.log_start_offset)

    def refused(self, topic: str | bytes, index: int, size_bytes: int, error: KafkaError) -> PartitionAnswer:
        """The answer for a batch that wasn't written."""
        self.failed = True
        self._broker.failed_requests.count_produce(topic, size_bytes, error.code)
        return PartitionAnswer(index, error.code, message=error.message or None, record_errors=error.record_errors)

    def refuse_all(self, error: KafkaError) -> Reply:
        """Answers `error` for each partition."""
        for topic, sets in self._body.topics:
            refused = [self.refused(topic, index, stop - start, error) for index, start, stop in sets]
            self.answers.append((topic, refused))
        if self.acks == 0:
            self.end_unanswered()
            return None
        return [self.response(self.answers)]

    def end_unanswered(self) -> None:
        """Ends a request with acks=0. If one of its batches was refused, closing the connection is the only answer."""
        if self.failed:
            self._request.connection.close("a Produce request with acks=0 failed: closing is the only answer")

    def takes_turns(self, frame: Memory) -> bool:
        """Whether one of the batches needs a thread, or waits behind a batch that does, or all of them are too much for
        a turn of the event loop."""
        return not self._broker.loop_quota.fits(self._loop_costs(frame))

    def _loop_costs(self, frame: Memory) -> Iterator[tuple[int, int] | None]:
        get, quota = self._broker.partitions.find_or_none, self._broker.loop_quota
        plain_left = quota.plain_left_at_arrival
        for topic, partitions in self._body.topics:
            for index, start, stop in partitions:
                partition = get(topic, index)
                if partition is None or start < 0:
                    continue
                batch = memoryview(frame)[start:stop]
                yield None if needs_turn(partition, batch) else loop_cost(batch, partition.rules, quota, plain_left)

    def wait_for_coordinator(self, frame: Memory, begun: Beginnings | None) -> Reply:
        """Takes a turn for each batch once the transaction's coordinator has confirmed or refused the batches that
        begin transactions (`begun`), and the connection's earlier transactional requests have taken their turns.
        Returns POSTPONED if there isn't enough memory for the batches now. Answers NOT_ENOUGH_REPLICAS if the requests
        that wait for coordinators have their share of the memory already."""
        return self.take_turns(frame, 0, begun, waits=True)

    def take_turns(self, frame: Memory, done: int, begun: Beginnings | None = None, *, waits: bool = False) -> Reply:
        """Takes a turn for each batch after the first `done`, in the order of the request. Returns POSTPONED if there
        isn't enough memory for the batches now. With `waits`, the turns are taken as late as `wait_for_coordinator`
        says.

        The frame is kept until all batches are appended, if the connection owns the frame, and these batches are more
        than half of it. Otherwise the batches are copied, because the frame's memory is reused when `serve` returns."""
        broker, get = self._broker, self._broker.partitions.find_or_none
        sets = [
            (place, topic, index, Received(frame, start, stop))
            for place, (topic, partitions) in enumerate(self._body.topics)
            for index, start, stop in partitions
        ][done:]
        size = beside = 0
        for _, topic, index, batch in sets:
            size += len(batch.view)
            if (partition := get(topic, index)) is not None:
                beside = max(beside, memory_bytes(partition, batch.view))
        connection = self._request.connection
        kept = connection.owns(frame) and 2 * size > len(frame)
        held = (len(frame) if kept else size) + beside
        coordinator = -1
        if waits:
            assert self._body.transactional_id is not None
            coordinator = broker.verifier.leader(self._body.transactional_id)
        if waits and not broker.transactional_order.has_room(held, coordinator):
            sentence = "the requests that wait for coordinators of transactions have their share of the memory already"
            return self.refuse_all(KafkaError(ErrorCode.not_enough_replicas, sentence))
        work = connection.begin_work(held, postponable=not done)
        if work is None:
            return POSTPONED
        if not done:
            self.answers = []
        for topic, _ in self._body.topics[len(self.answers) :]:
            self.answers.append((topic, []))
        left = deque[_InTurn]()
        for place, topic, index, batch in sets:
            left.append(_InTurn(topic, self.answers[place][1], index, batch if kept else batch.copied(), None))
        broker.turns += len(left)
        behind = broker.transactional_order.join(connection, held, coordinator) if waits else None
        if behind is None:
            self._queue(left)
        broker.spawn(metered(self._request.charge, self._append_in_turn(left, work, begun, behind)))
        return self._request.pending

    def _queue(self, left: deque[_InTurn]) -> None:
        """Puts each batch into its partition's queue: the batch is appended when its turn comes."""
        for place, waiting in enumerate(left):
            partition = self._broker.partitions.find_or_none(waiting.topic, waiting.index)
            if partition is not None:
                left[place] = waiting._replace(turn=take_turn(partition))

    async def _append_in_turn(
        self, left: deque[_InTurn], work: Work, begun: Beginnings | None, place: Place | None
    ) -> None:
        """Appends one batch after the other, each when its turn in its partition comes. Then answers. If there is a
        `place` among the connection's requests, the turns are taken only when that place comes."""
        pending = self._request.pending
        try:
            try:
                if place is not None:
                    if begun is not None:
                        await begun.confirm(self._broker.verifier)
                    await place.comes()
                    self._queue(left)
                    place.leave()
                while left:
                    turn = left[0].turn
                    if turn is not None:
                        await turn.comes()
                    await self._append_one(left[0], begun)
                    self._ended(left.popleft())
            finally:
                if place is not None:
                    place.leave()
                while left:
                    self._ended(left.popleft())
                work.end(asyncio.get_running_loop().time())
            if self._body.acks != 0:
                await self.answer_later()
                return
            if self.failed:
                pending.close_connection()
            pending.answer(())
        finally:
            pending.close_connection()  # unless it has been answered

    def _ended(self, batch: _InTurn) -> None:
        self._broker.turns -= 1
        if batch.turn is not None:
            batch.turn.end()

    async def _append_one(self, waiting: _InTurn, begun: Beginnings | None) -> None:
        topic, answers, index, batch, _ = waiting
        try:
            partition = self.find(topic, index)
            guard = None
            if self._body.transactional_id is not None:
                guard = NOT_NEEDED if begun is None else begun.guard(partition)
            admitted = await admit_in_turn(
                partition,
                batch,
                self._request.api_version,
                self._broker.loop_quota,
                self._broker.inspectors,
                self._request.connection,
            )
            # The topic was deleted and created anew while a thread checked the batch.
            if self.find(topic, index) is not partition:
                raise KafkaError(ErrorCode.not_leader_or_follower)
            partition.check_leader_epoch(-1)
            answers.append(self.appended(partition, partition.append_admitted(*admitted, guard), answers))
        except KafkaError as error:
            answers.append(self.refused(topic, index, len(batch.view), error))

    async def answer_later(self) -> None:
        """Answers when all batches are committed and flushed, or when the request's time-out is over. REQUEST_TIMED_OUT
        means that the outcome is unknown."""
        pending = self._request.pending
        try:
            pending.answer([await self._outcome()])
        finally:
            pending.close_connection()  # unless it has been answered

    async def _outcome(self) -> bytes | bytearray:
        """The response, with an outcome for each partition: a producer repeats the batches that failed, and must not
        repeat the others."""
        if self.waits:
            await asyncio.wait([future for future, _, _ in self.waits], timeout=max(self._body.timeout, 0) / 1000)
        for future, answers, at in self.waits:
            error = ErrorCode.request_timed_out
            if future.done():
                problem = future.exception()
                if problem is None:
                    continue
                error = problem.code if isinstance(problem, KafkaError) else ErrorCode.kafka_storage_error
            self.failed = True
            answers[at] = PartitionAnswer(answers[at].index, error)
        return self.response(self.answers)

    def response(self, answers: Answers) -> bytes | bytearray:
        """The response's frame. It names the leader of each partition that this broker doesn't lead (KIP-951)."""
        version, correlation_id, charge = self._request.api_version, self._request.correlation_id, self._request.charge
        throttle_time = 0 if charge is None else charge.produced()
        if self._denied:
            answers = [*answers, *self._denied]
        if not self.failed or version < PRODUCE_VERSION:
            return write_produce_answer(version, correlation_id, answers, throttle_time=throttle_time)
        leaders = CurrentLeaders(self._broker.image, self._request.listener)
        told = [(topic, leaders.beside(topic, partitions, produce_leader_tags)) for topic, partitions in answers]
        return write_produce_answer(version, correlation_id, told, leaders.tags, throttle_time)
