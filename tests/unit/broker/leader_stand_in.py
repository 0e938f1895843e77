"""A leader for tests of followers: real logs, real fetch sessions, and a connection in memory that can be held or
cut."""

from __future__ import annotations

import asyncio
import struct
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from random import Random
from uuid import UUID

from ottla.broker.fetch_session_cache import FetchSessionCache
from ottla.broker.fetch_sessions import INITIAL_EPOCH, FetchPartition
from ottla.broker.log.log import Log
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.fetch import NO_TAGS, PartitionAnswer, diverging_epoch_tags, write_fetch_answer
from ottla.protocol.fetch_request import FetchRequest, read_fetch_request
from ottla.protocol.frames import read_request_header, response_frame, skip_tagged_fields
from ottla.protocol.messages import read_request, write_response
from tests.unit.broker.log.workbench import Workbench

TOPIC_ID = UUID(int=7)
FETCH, LIST_OFFSETS = 1, 2
EARLIEST = -2


class LeaderStandIn:
    """Broker 1, which leads every partition of one topic in `epoch`. `errors` has the error codes that are answered in
    place of records, by partition. While `held` isn't set, answers wait. With `refusing` it accepts no connections."""

    def __init__(self, folder: Path, partitions: int) -> None:
        folder.mkdir()
        self.logs: list[Log] = [Workbench(folder / str(index)).log() for index in range(partitions)]
        self.epoch = 1
        self.errors: dict[int, int] = {}
        self.spoiled: set[int] = set()  # partitions whose records are damaged on the way to the follower
        self.requests: list[FetchRequest] = []
        self.listed = 0
        self.refusing = False
        self.takes_s = 0.002  # the time until an answer: as long as a fetch without new records waits
        self.held = asyncio.Event()
        self.held.set()
        self.asked = asyncio.Event()
        self.connections: list[WireInMemory] = []
        self.sessions = FetchSessionCache(10, 120.0, Random(3))

    async def connect(self, host: str, port: int) -> WireInMemory:
        if self.refusing:
            raise ConnectionRefusedError(f"{host}:{port} refuses")
        wire = WireInMemory(self)
        self.connections.append(wire)
        return wire

    @property
    def open_connections(self) -> int:
        return sum(not wire.closed for wire in self.connections)

    async def answer(self, frame: bytes) -> bytes:
        key, version, correlation_id, _, end = read_request_header(frame, 4)
        body = skip_tagged_fields(frame, end)
        if key == LIST_OFFSETS:
            self.listed += 1
            asked = read_request(key, version, frame, body)
            assert asked.replica_id == 0
            message = {"throttle_time": 0, "topics": [self._listed(topic) for topic in asked.topics]}
            return response_frame(key, version, correlation_id, write_response(key, version, message))
        request = read_fetch_request(version, frame, body, len(frame))
        self.requests.append(request)
        self.asked.set()
        if self.held.is_set():
            await asyncio.sleep(self.takes_s)
        await self.held.wait()
        return self._fetched(version, correlation_id, request)

    def _listed(self, topic: object) -> dict[str, object]:
        partitions = []
        for asked in topic.partitions:  # type: ignore[attr-defined]
            log = self.logs[asked.partition_index]
            offset = log.log_start_offset if asked.timestamp == EARLIEST else log.log_end_offset
            partitions.append({"partition_index": asked.partition_index, "offset": offset})
        return {"name": topic.name, "partitions": partitions}  # type: ignore[attr-defined]

    def _fetched(self, version: int, correlation_id: int, request: FetchRequest) -> bytes:
        asked = [FetchPartition(topic, *each) for topic, partitions in request.topics for each in partitions]
        try:
            if request.session_epoch == INITIAL_EPOCH:
                self.sessions.remove(request.session_id)
                by_key = OrderedDict(((each.topic, each.index), each) for each in asked)
                session = self.sessions.create(by_key, 0, True, 0.0)
            else:
                session = self.sessions.resume(request.session_id, request.session_epoch, True, 0.0)
                forgotten = [(topic, index) for topic, indexes in request.forgotten for index in indexes]
                session.update(asked, forgotten)
        except KafkaError as error:
            return b"".join(write_fetch_answer(version, correlation_id, error.code, 0, ()))
        assert session is not None
        answers = list(self._news(session.partitions.values(), request.session_epoch == INITIAL_EPOCH))
        return b"".join(write_fetch_answer(version, correlation_id, 0, session.id, [(TOPIC_ID.bytes, answers)]))

    def _news(self, partitions: object, every: bool) -> Iterator[PartitionAnswer]:
        for asked in partitions:  # type: ignore[attr-defined]
            answer = self._partition(asked)
            log = self.logs[asked.index]
            news = asked.news(answer.error, answer.size, log.log_end_offset, log.log_start_offset)
            if news or every or answer.tags != NO_TAGS:
                yield answer

    def _partition(self, asked: FetchPartition) -> PartitionAnswer:
        log = self.logs[asked.index]
        error = self.errors.get(asked.index, 0)
        if not error and asked.current_leader_epoch != self.epoch:
            error = ErrorCode.fenced_leader_epoch
        if error:
            return PartitionAnswer(asked.index, error)
        marks = (log.log_end_offset, log.log_end_offset, log.log_start_offset)
        if asked.last_fetched_epoch >= 0:
            epoch, end = log.epochs.end_offset_for(asked.last_fetched_epoch, log.log_end_offset)
            if epoch < asked.last_fetched_epoch or end < asked.fetch_offset:
                return PartitionAnswer(asked.index, 0, *marks, tags=diverging_epoch_tags(epoch, end))
        if not log.log_start_offset <= asked.fetch_offset <= log.log_end_offset:
            return PartitionAnswer(asked.index, ErrorCode.offset_out_of_range)
        data = bytearray(log.read_bytes(asked.fetch_offset, asked.max_bytes, log.log_end_offset))
        if data and asked.index in self.spoiled:
            data[-1] ^= 1
        return PartitionAnswer(asked.index, 0, *marks, [bytes(data)] if data else (), len(data))


class WireInMemory:
    """One connection to the leader of this module, in memory, with the interface of `ottla.net.streams.Stream`."""

    def __init__(self, leader: LeaderStandIn) -> None:
        self._leader = leader
        self._arrived = bytearray()
        self.closed = False
        self._news = asyncio.Event()
        self._serving: set[asyncio.Task[None]] = set()

    async def write(self, data: bytes) -> None:
        assert len(data) == 4 + struct.unpack_from(">i", data)[0]
        task = asyncio.ensure_future(self._serve(data))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, frame: bytes) -> None:
        self._arrived += await self._leader.answer(frame)
        self._news.set()

    async def read_exactly(self, into: memoryview) -> None:
        while len(self._arrived) < len(into):
            if self.closed:
                raise ConnectionResetError("cut")
            self._news.clear()
            await self._news.wait()
        into[:] = self._arrived[: len(into)]
        del self._arrived[: len(into)]

    def close(self) -> None:
        self.closed = True
        self._news.set()
        for task in self._serving:
            task.cancel()
