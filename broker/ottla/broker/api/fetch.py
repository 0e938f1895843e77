"""Fetch (key 1), versions 4–18, with incremental sessions (KIP-227).

What can be sent is worked out as file ranges, which the connection sends with `sendfile`. A fetch that finds less than
its min bytes waits until a partition moves or its time is over. The first batch of an answer is sent whole, also beyond
the limits (KIP-74).

Other brokers fetch as followers: up to the log's end, and what they ask for tells how far they are. A follower whose
log took another turn is told where (KIP-595). Consumers may be sent to a nearer follower (KIP-392), which serves them
what it knows to be committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ottla.broker.api.registry import Api
from ottla.broker.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, FetchPartition, FetchSession, PartitionKey
from ottla.broker.replica.selector import NONE, RACK_AWARE, preferred_replica
from ottla.net.connection import Connection, Pending
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.fetch import NO_TAGS, TOPIC_IDS, PartitionAnswer, diverging_epoch_tags, write_fetch_answer
from ottla.protocol.fetch_request import CONSUMER, FetchRequest, read_fetch_request
from ottla.protocol.frames import RequestHeader

if TYPE_CHECKING:
    from ottla.broker.node import Broker
    from ottla.broker.partition import Partition, Readable
    from ottla.net.server import Reply

API = Api(
    key=1,
    versions=(4, 18),
    gaps=("READ_COMMITTED readers see the high watermark as last stable offset until transactions are there.",),
)
FOLLOWER_FETCHES = 11  # from this version on consumers may read from followers


def serve(
    broker: Broker, connection: Connection, header: RequestHeader, frame: bytearray, body: int, end: int
) -> Reply:
    """Answers at once if there is enough to read, else returns a Pending that waits for more."""
    request = read_fetch_request(header.api_version, frame, body, end)
    fetch = _Fetch(broker, header, request)
    try:
        fetch.open(request)
    except KafkaError as error:
        return write_fetch_answer(header.api_version, header.correlation_id, error.code, 0, ())
    fetch.read()
    if fetch.size >= fetch.min_bytes or fetch.max_wait_ms <= 0 or fetch.failed or not fetch.wants_anything:
        return fetch.answer()
    return fetch.wait(connection)


class _Fetch:
    """One request under way."""

    __slots__ = (
        "_answers",
        "_asked",
        "_broker",
        "_header",
        "_incremental",
        "_pending",
        "_rerun",
        "_timer",
        "_watched",
        "failed",
        "follower",
        "follower_will_do",
        "max_bytes",
        "max_wait_ms",
        "min_bytes",
        "rack_id",
        "read_committed",
        "replica_epoch",
        "replica_id",
        "session",
        "size",
    )

    def __init__(self, broker: Broker, header: RequestHeader, request: FetchRequest) -> None:
        self._broker = broker
        self._header = header
        self._pending: Pending | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._watched: list[Partition] = []
        self._rerun = False
        self._incremental = False
        # What was read, in order; in a session also what was read before the waiting, and hasn't moved since.
        self._answers: dict[PartitionKey, tuple[FetchPartition, PartitionAnswer, Partition | None]] = {}
        self.max_wait_ms = request.max_wait_ms
        self.min_bytes = request.min_bytes
        self.max_bytes = min(request.max_bytes, broker.config.get_int("fetch.max.bytes"))
        self.read_committed = request.isolation_level == 1
        self.replica_id = request.replica_id
        self.rack_id = request.rack_id
        self.replica_epoch = request.replica_epoch
        self.follower = request.replica_id > CONSUMER
        self.follower_will_do = not self.follower and header.api_version >= FOLLOWER_FETCHES
        self._asked: list[FetchPartition] = []
        self.session: FetchSession | None = None
        self.size = 0
        self.failed = False

    # ---- the session

    def open(self, request: FetchRequest) -> None:
        """Finds what is fetched: all that the request names, or its session's partitions. Raises KafkaError."""
        sessions = self._broker.fetch_sessions
        epoch = request.session_epoch
        by_id = self._header.api_version >= TOPIC_IDS
        asked = [FetchPartition(topic, *partition) for topic, partitions in request.topics for partition in partitions]
        if epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
            self.session = sessions.resume(request.session_id, epoch, by_id, asyncio.get_running_loop().time())
            self.session.asked_by(request.replica_epoch)
            self.session.update(asked, [(topic, index) for topic, indexes in request.forgotten for index in indexes])
            self._incremental = True
            return
        if request.session_id:
            sessions.remove(request.session_id)
        self._asked = asked
        if epoch == INITIAL_EPOCH and asked:
            now = asyncio.get_running_loop().time()
            self.session = sessions.create(_by_key(asked), self.replica_id, by_id, now)
            if self.session is not None:
                self.session.asked_by(request.replica_epoch)

    @property
    def wants_anything(self) -> bool:
        """Whether there is something to wait for."""
        return bool(self._asked if self.session is None else self.session.partitions)

    # ---- reading

    def read(self) -> None:
        """Works out the answer as things are now."""
        self.size = 0
        self.failed = False
        session = self.session
        if session is None:
            self._answers.clear()
            for asked in self._asked:
                self._read_next(asked)
            return
        for key in tuple(session.unread):
            asked = session.partitions[key]
            answer, partition = self._read_next(asked)
            if answer.size:
                session.served(asked)
            elif partition is not None and answer.tags == NO_TAGS and self._at_end(asked, partition):
                session.read_to_end(key, partition)

    def _at_end(self, asked: FetchPartition, partition: Partition) -> bool:
        """Whether nothing is left to read (and not only nothing that fitted)."""
        if self.follower:
            return asked.fetch_offset == partition.log.log_end_offset
        return asked.fetch_offset >= (partition.last_stable_offset if self.read_committed else partition.high_watermark)

    def _read_next(self, asked: FetchPartition) -> tuple[PartitionAnswer, Partition | None]:
        answer, partition = self._read_partition(asked, self.max_bytes - self.size)
        if answer.error:
            self.failed = True
        self.size += answer.size
        self._answers[asked.topic, asked.index] = (asked, answer, partition)
        return answer, partition

    def _read_partition(self, asked: FetchPartition, left: int) -> tuple[PartitionAnswer, Partition | None]:
        try:
            partition = self._broker.partitions.find(asked.topic, asked.index)
            partition.check_leader_epoch(asked.current_leader_epoch, follower_will_do=self.follower_will_do)
            if asked.last_fetched_epoch >= 0:
                diverging = partition.diverges(asked.last_fetched_epoch, asked.fetch_offset)
                if diverging is not None:
                    self.failed = True
                    return self._diverging(asked.index, partition, diverging), partition
            limit, minimum_one = min(asked.max_bytes, left), left > 0 and self.size == 0
            if self.follower:
                readable = self._read_as_follower(asked, partition, limit, minimum_one)
            else:
                if self.rack_id and (nearer := self._nearer(partition, asked.fetch_offset)) != NONE:
                    return self._sent_elsewhere(asked.index, partition, nearer), partition
                readable = partition.read(asked.fetch_offset, limit, minimum_one, self.read_committed)
        except KafkaError as error:
            self._broker.count_fetch_failure(asked.topic, error.code)
            return PartitionAnswer(asked.index, error.code), None
        ranges, size, high_watermark, last_stable_offset, log_start = readable
        aborted = () if self.read_committed else None
        answer = PartitionAnswer(asked.index, 0, high_watermark, last_stable_offset, log_start, ranges, size, aborted)
        return answer, partition

    def _read_as_follower(self, asked: FetchPartition, partition: Partition, limit: int, minimum_one: bool) -> Readable:
        if self.replica_id not in partition.replicas:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        offset = asked.fetch_offset
        readable = partition.read_as_follower(offset, limit, minimum_one)
        if partition.follower_fetched(self.replica_id, self.replica_epoch, offset, asked.follower_log_start):
            self._broker.isr_changes.joins(partition, self.replica_id)
        return readable._replace(high_watermark=partition.high_watermark)

    def _nearer(self, partition: Partition, offset: int) -> int:
        """The replica that the consumer should rather read from, or NONE."""
        if partition.leading is None or self._broker.config.get_str("replica.selector.class") != RACK_AWARE:
            return NONE
        racks = {broker.id: broker.rack for broker in self._broker.image.brokers.values() if broker.electable}
        return preferred_replica(self.rack_id, racks, self._broker.id, offset, partition.leading.in_sync_followers())

    def _sent_elsewhere(self, index: int, partition: Partition, replica: int) -> PartitionAnswer:
        self.failed = True  # nothing to wait for
        high_watermark, log_start = partition.high_watermark, partition.log.log_start_offset
        stable, aborted = partition.last_stable_offset, () if self.read_committed else None
        return PartitionAnswer(index, 0, high_watermark, stable, log_start, (), 0, aborted, replica)

    @staticmethod
    def _diverging(index: int, partition: Partition, diverging: tuple[int, int]) -> PartitionAnswer:
        high_watermark, log_start = partition.high_watermark, partition.log.log_start_offset
        tags = diverging_epoch_tags(*diverging)
        return PartitionAnswer(index, 0, high_watermark, partition.last_stable_offset, log_start, tags=tags)

    # ---- waiting

    def wait(self, connection: Connection) -> Pending:
        """Watches all partitions until there is enough."""
        self._pending = Pending(connection, API.key)
        self._pending.abandoned = self._stop
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.max_wait_ms / 1000, self._finish)
        if self.session is not None:
            for key, (_, _, partition) in self._answers.items():
                if partition is not None:
                    self.session.watch.add(key, partition)
            self.session.watch.request = self
            return self._pending
        for _, _, partition in self._answers.values():
            if partition is not None:
                partition.watchers(self.replica_id).append(self)
                self._watched.append(partition)
        return self._pending

    def moved(self, partition: Partition, new_bytes: int) -> None:
        """A watched partition has more to read, or can't be read any more."""
        self.size += new_bytes
        if not self._rerun and (self.size >= self.min_bytes or not new_bytes):
            self._rerun = True
            asyncio.get_running_loop().call_soon(self._finish)

    def watermark_moved(self, partition: Partition) -> None:
        """Followers are told with the next answer."""

    def _finish(self) -> None:
        pending = self._pending
        if pending is None:
            return
        self._stop()
        try:
            self.read()
            pending.answer(self.answer())
        finally:
            pending.close_connection()  # unless it has been answered

    def _stop(self) -> None:
        self._pending = None
        if self._timer is not None:
            self._timer.cancel()
        if self.session is not None and self.session.watch.request is self:
            self.session.watch.request = None
        for partition in self._watched:
            partition.watchers(self.replica_id).remove(self)
        self._watched.clear()

    # ---- answering

    def answer(self) -> list[Any]:
        """The response. An incremental one names only partitions that have news."""
        incremental = self._incremental
        topics: list[tuple[str | bytes, list[PartitionAnswer]]] = []
        last: object = None
        for asked, answer, partition in self._answers.values():
            if partition is not None:
                partition.counters.fetch_requests += 1
                partition.counters.bytes_out += answer.size
            if self.session is not None:
                news = asked.news(answer.error, answer.size, answer.high_watermark, answer.log_start_offset)
                if incremental and not (news or answer.preferred_read_replica != NONE or answer.tags != NO_TAGS):
                    continue
            if asked.topic != last:
                last = asked.topic
                topics.append((asked.topic, []))
            topics[-1][1].append(answer)
        session_id = 0 if self.session is None else self.session.id
        return write_fetch_answer(self._header.api_version, self._header.correlation_id, 0, session_id, topics)


def _by_key(asked: Iterable[FetchPartition]) -> dict[PartitionKey, FetchPartition]:
    return {(partition.topic, partition.index): partition for partition in asked}
