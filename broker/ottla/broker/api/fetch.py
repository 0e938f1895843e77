"""Fetch (key 1), versions 4–18, with incremental sessions (KIP-227).

The records of an answer are file ranges, which the connection sends with `sendfile`; small ranges at the beginning of
an answer are read on the event loop instead. If a fetch finds fewer than `min_bytes` bytes, it waits until there are
enough, but no longer than `max_wait_ms`. The first batch of an answer is sent whole, even if it exceeds the limits
(KIP-74).

The answer of a consumer that is throttled is empty, so its consumer asks for the same records again. No answer is
larger than the consumer's quota allows at once.

If the event loop would have to wait for the disk to find a partition's records, a thread looks them up (`cold_reads`).
Until the look-up ends, the fetch finds nothing to read in this partition, and reads the other partitions as usual.

Other brokers fetch as followers. They read up to the log's end, and the leader learns from their fetch offsets which
records they have. If a follower's log diverges from the leader's, the answer has the last epoch that both logs may
have, and its end offset (KIP-595). The leader may refer a consumer to a follower in the consumer's rack (KIP-392); the
follower serves the records that it knows to be committed.

A consumer with isolation level 1 (read_committed) reads up to the last stable offset. Its answer names the aborted
transactions whose records are among those of the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Set
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from ottla.broker import ports, reading
from ottla.broker.api.declaration import Api
from ottla.broker.api.refusals import refused
from ottla.broker.current_leaders import CurrentLeaders
from ottla.broker.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, FetchPartition, FetchSession, PartitionKey
from ottla.broker.replica.selector import NONE, RACK_AWARE, preferred_replica
from ottla.broker.request import Request
from ottla.net.outgoing import READ_BYTES_MAX
from ottla.protocol.current_leader import FETCH_VERSION, fetch_leader_tags
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.fetch import NO_TAGS, TOPIC_IDS, PartitionAnswer, diverging_epoch_tags, success, write_fetch_answer
from ottla.protocol.fetch_request import CONSUMER, FetchRequest, read_fetch_request
from ottla.protocol.received import Memory
from ottla.protocol.rights import CLUSTER_NAME, AclOperation, ResourceType, Right

if TYPE_CHECKING:
    from ottla.broker.partition import Partition
    from ottla.broker.reading import Readable
    from ottla.net.server import Reply

API = Api(
    key=1,
    versions=(4, 18),
    needs=(Right(AclOperation.READ, ResourceType.TOPIC), Right(AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER)),
)
_Read = tuple[FetchPartition, PartitionAnswer, "Partition | None"]
FOLLOWER_FETCHES = 11  # the first version in which consumers may read from followers
ANSWER_BYTES = 60  # of the fields of an answer with one topic; Kafka counts the bytes of all fields
PARTITION_BYTES = 40
COLD_WAIT_MS = 500  # the least wait for a disk, because a client with max_wait_ms 0 would ask again and again


class Parts(
    ports.WithAuthorizer,
    ports.WithColdReads,
    ports.WithConfig,
    ports.WithFailedRequests,
    ports.WithFetchSessions,
    ports.WithFollowersFetches,
    ports.WithId,
    ports.WithImage,
    ports.WithIsrChanges,
    ports.WithPartitions,
    Protocol,
): ...


def serve(broker: Parts, request: Request, frame: Memory, position: int, end: int) -> Reply:
    """Answers at once if there is enough to read, else returns a Pending, which is answered later."""
    fetch = _Fetch(broker, request, read_fetch_request(request.api_version, frame, position, end))
    body = fetch.body
    try:
        fetch.open()
    except KafkaError as error:
        throttle_time = 0 if fetch.charge is None else fetch.charge.answered()
        return write_fetch_answer(request.api_version, request.correlation_id, error.code, 0, (), throttle_time)
    fetch.read()
    much = fetch.size >= body.min_bytes or fetch.cut
    enough = much or body.max_wait_ms <= 0 or fetch.failed or not fetch.wants_anything
    if enough and (fetch.size or fetch.failed or not fetch.cold):
        return fetch.answer()
    return _Waiting(fetch).pending


class _Fetch:
    """One request in progress: the partitions that it asks for, and the answers for the partitions read so far."""

    __slots__ = (
        "_asked",
        "_broker",
        "_guarded",
        "_incremental",
        "_known",
        "answers",
        "body",
        "charge",
        "cold",
        "cut",
        "failed",
        "follower",
        "follower_will_do",
        "max_bytes",
        "read_committed",
        "request",
        "session",
        "size",
    )

    def __init__(self, broker: Parts, request: Request, body: FetchRequest) -> None:
        self._broker = broker
        self.request = request
        self.body = body
        max_bytes = broker.config.fetch_bytes_max
        self.max_bytes = body.max_bytes if body.max_bytes < max_bytes else max_bytes
        self.read_committed = body.isolation_level == 1
        self.follower = body.replica_id > CONSUMER
        self.charge = request.charge
        if self.charge is not None and self._fetches_as_broker():
            self.charge.exempt = True
        elif self.charge is not None:
            self.max_bytes = self.charge.fetch_bytes_max(self.max_bytes)
            self.body = body._replace(min_bytes=min(body.min_bytes, self.max_bytes))
        self.follower_will_do = not self.follower and request.api_version >= FOLLOWER_FETCHES
        self._guarded = True  # whether the client's right to a topic must be checked
        self._known: Set[str | bytes] = frozenset()  # the topics that the client is known to be allowed to read
        self.session: FetchSession | None = None
        self._incremental = False
        self._asked: list[FetchPartition] = []
        # The answer for each partition, in order. In a session, the answer may be older than the request's wait, if the
        # partition hasn't had news since.
        self.answers: dict[PartitionKey, _Read] = {}
        self.size = 0
        self.failed = False
        self.cut = False  # whether more records can be read that aren't in memory
        self.cold: dict[asyncio.Future[None], None] = {}  # threads' look-ups, each done when its records can be read

    # ---- the session

    def open(self) -> None:
        """Finds the partitions to fetch: those that the request names, or those of its session. Raises KafkaError."""
        body = self.body
        epoch = body.session_epoch
        asked = self._asked
        for topic, partitions in body.topics:
            for partition in partitions:
                asked.append(FetchPartition(topic, *partition))
        if epoch == FINAL_EPOCH and not body.session_id:
            return
        sessions = self._broker.fetch_sessions
        by_id = self.request.api_version >= TOPIC_IDS
        now = asyncio.get_running_loop().time()
        if epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
            self.session = sessions.resume(body.session_id, epoch, by_id, now)
            self.session.asked_by(body.replica_epoch, self.read_committed)
            self.session.under_rights(self._broker.authorizer.changes)
            self.session.update(asked, [(topic, index) for topic, indexes in body.forgotten for index in indexes])
            self._incremental = True
            return
        if body.session_id:
            sessions.remove(body.session_id)
        if epoch == INITIAL_EPOCH and asked:
            self.session = sessions.create(_by_key(asked), body.replica_id, by_id, now)
            if self.session is not None:
                self.session.asked_by(body.replica_epoch, self.read_committed)
                self.session.under_rights(self._broker.authorizer.changes)

    def withdraw_session(self) -> None:
        """Ends the session that this request has begun, if any, because the client doesn't get the session's id."""
        if self.session is not None and not self._incremental:
            self._broker.fetch_sessions.remove(self.session.id)

    @property
    def wants_anything(self) -> bool:
        """Whether there is a partition to wait for."""
        return bool(self._asked if self.session is None else self.session.partitions)

    # ---- reading

    def read(self) -> None:
        """Reads the partitions anew. In a session, only partitions that may have news since the last read are read."""
        self.size = 0
        self.failed = self.cut = False
        authorizer = self._broker.authorizer
        self._guarded = authorizer.enforced
        if self._guarded:
            self._known = authorizer.known_topics(self.request, AclOperation.READ)
        if self.cold:
            self.cold = {}
        answers = self.answers
        session = self.session
        if session is None:
            answers.clear()
            for asked in self._asked:
                answers[asked.topic, asked.index] = self._read(asked)
            return
        for key in tuple(session.unread):
            asked = session.partitions[key]
            read = answers[key] = self._read(asked)
            _, answer, partition = read
            if answer.size:
                session.served(key)
            elif partition is not None and answer.tags == NO_TAGS and self._at_end(asked, partition):
                session.read_to_end(key, partition)

    def _at_end(self, asked: FetchPartition, partition: Partition) -> bool:
        """Whether the fetch offset is the end of the records that this fetch may read. If it isn't, an empty answer
        means that no record fitted into the answer, or that a thread still reads the records."""
        if self.follower:
            return asked.fetch_offset == partition.log.log_end_offset
        return asked.fetch_offset >= (partition.last_stable_offset if self.read_committed else partition.high_watermark)

    def _read(self, asked: FetchPartition) -> _Read:
        index = asked.index
        try:
            if self._guarded and (self.follower or asked.topic not in self._known):
                self._check_right(asked.topic)
            partition = self._broker.partitions.find(asked.topic, index)
            partition.check_leader_epoch(asked.current_leader_epoch, follower_will_do=self.follower_will_do)
            if asked.last_fetched_epoch >= 0:
                diverging = reading.diverges(partition, asked.last_fetched_epoch, asked.fetch_offset)
                if diverging is not None:
                    self.failed = True
                    return asked, self._diverging(index, partition, diverging), partition
            left = self.max_bytes - self.size
            limit = asked.max_bytes if asked.max_bytes < left else left
            minimum_one = self.size == 0 and left > 0
            if self.follower:
                readable = self._read_as_follower(asked, partition, limit, minimum_one)
            else:
                if self.body.rack_id and (nearer := self._nearer(partition, asked.fetch_offset)) != NONE:
                    return asked, self._sent_elsewhere(index, partition, nearer), partition
                offset = asked.fetch_offset
                prepared = self._broker.cold_reads.just_read(partition, offset, limit)
                small = READ_BYTES_MAX - self.size if self.size < READ_BYTES_MAX else 0
                try:
                    readable = reading.read(partition, offset, limit, minimum_one, self.read_committed, small)
                except BlockingIOError:
                    read = partial(reading.read, partition, offset, limit, minimum_one, self.read_committed)
                    readable = self._read_cold(partition, offset, partition.high_watermark, limit, prepared, read)
        except KafkaError as error:
            self.failed = True
            self._broker.failed_requests.count_fetch(asked.topic, error.code)
            return asked, PartitionAnswer(index, error.code), None
        ranges, size, high_watermark, last_stable_offset, log_start, cut, aborted = readable
        if cut:
            self.cut = True
        if self.follower:
            high_watermark = partition.high_watermark  # this fetch may have raised it
        self.size += size
        answer = success(index, high_watermark, last_stable_offset, log_start, ranges, size, aborted)
        return asked, answer, partition

    def _fetches_as_broker(self) -> bool:
        """Whether a follower fetches, and not a client that merely has a replica's id in its request."""
        action = AclOperation.CLUSTER_ACTION
        return self.follower and self._broker.authorizer.allows(
            self.request, action, ResourceType.CLUSTER, CLUSTER_NAME, quiet=True
        )

    def _check_right(self, topic: str | bytes) -> None:
        """Raises KafkaError if the client may not read the topic. A follower needs a right on the cluster; without that
        right, the answer doesn't say whether the topic exists."""
        authorizer = self._broker.authorizer
        if not self.follower:
            if not authorizer.allows_topic(self.request, AclOperation.READ, topic, partial(self._count_of, topic)):
                raise refused(ResourceType.TOPIC)
            return
        action = AclOperation.CLUSTER_ACTION
        if not authorizer.allows(self.request, action, ResourceType.CLUSTER, CLUSTER_NAME):
            raise refused(ResourceType.TOPIC)
        self._guarded = False

    def _count_of(self, topic: str | bytes) -> int:
        """How many partitions of the topic the client fetches."""
        asked = self._asked if self.session is None else self.session.partitions.values()
        return sum(each.topic == topic for each in asked)

    def _read_as_follower(self, asked: FetchPartition, partition: Partition, limit: int, minimum_one: bool) -> Readable:
        replica_id = self.body.replica_id
        if replica_id not in partition.replicas:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        offset = asked.fetch_offset
        throttle = self._broker.leader_throttle
        now = asyncio.get_running_loop().time()
        if replica_id not in partition.isr and throttle.pause_seconds(partition, 0, True, now):
            limit, minimum_one = 0, False
        prepared = self._broker.cold_reads.just_read(partition, offset, limit)
        small = READ_BYTES_MAX - self.size if self.size < READ_BYTES_MAX else 0
        try:
            readable = reading.read_as_follower(partition, offset, limit, minimum_one, small)
        except BlockingIOError:
            read = partial(reading.read_as_follower, partition, offset, limit, minimum_one)
            readable = self._read_cold(partition, offset, partition.log.log_end_offset, limit, prepared, read)
        throttle.pause_seconds(partition, readable.size, False, now)
        self._broker.replication_bytes_out += readable.size
        if partition.follower_fetched(replica_id, self.body.replica_epoch, offset, asked.follower_log_start):
            self._broker.isr_changes.outsider_fetched(partition, replica_id)
        return readable

    def _read_cold(
        self,
        partition: Partition,
        offset: int,
        limit_offset: int,
        limit: int,
        prepared: bool,
        read: Callable[[], Readable],
    ) -> Readable:
        """Lets a thread read the records that aren't in memory, and returns an empty result, as at the log's end.

        In two cases the event loop itself calls `read` and waits for the disk: where a thread has `prepared` this read,
        but the records aren't in memory again, or where the system gives the process no thread."""
        if prepared:
            return read()
        try:
            self.cold[self._broker.cold_reads.read_ahead(partition.log, offset, limit_offset, limit)] = None
        except OSError:
            return read()
        return reading.nothing(partition, self.read_committed)

    def _nearer(self, partition: Partition, offset: int) -> int:
        """The id of the replica in the consumer's rack from which the consumer should read, or NONE."""
        if partition.leading is None or self._broker.config.get_str("replica.selector.class") != RACK_AWARE:
            return NONE
        racks = {broker.id: broker.rack for broker in self._broker.image.brokers.values() if broker.electable}
        return preferred_replica(
            self.body.rack_id, racks, self._broker.id, offset, partition.leading.in_sync_followers()
        )

    def _sent_elsewhere(self, index: int, partition: Partition, replica: int) -> PartitionAnswer:
        self.failed = True  # whether a partition has an error, so that the answer doesn't wait for records
        high_watermark, log_start = partition.high_watermark, partition.log.log_start_offset
        stable, aborted = partition.last_stable_offset, () if self.read_committed else None
        return PartitionAnswer(index, 0, high_watermark, stable, log_start, (), 0, aborted, replica)

    @staticmethod
    def _diverging(index: int, partition: Partition, diverging: tuple[int, int]) -> PartitionAnswer:
        high_watermark, log_start = partition.high_watermark, partition.log.log_start_offset
        tags = diverging_epoch_tags(*diverging)
        return PartitionAnswer(index, 0, high_watermark, partition.last_stable_offset, log_start, tags=tags)

    # ---- answering

    def answer(self) -> list[Any]:
        """The response's parts. An incremental response has only partitions with news: records, an error, or offsets
        that the client doesn't know."""
        session = self.session
        throttle_time = 0
        if self.charge is not None and self.charge.exempt:
            self.charge.answered()
        elif self.charge is not None:
            throttle_time, empty = self.charge.fetched(self._answer_bytes())
            if empty:
                return self._empty_answer(throttle_time)
        topics: list[tuple[str | bytes, list[PartitionAnswer]]] = []
        last: object = None
        for asked, answer, partition in self.answers.values():
            if partition is not None:
                counters = partition.counters
                counters.fetch_requests += 1
                if not self.follower:
                    counters.bytes_out += answer.size
                    partition.bytes_out += answer.size
            if session is not None:
                news = asked.news(answer.error, answer.size, answer.high_watermark, answer.log_start_offset)
                told = news or answer.preferred_read_replica != NONE or answer.tags != NO_TAGS
                if self._incremental and not told:
                    continue
            if asked.topic != last:
                last = asked.topic
                answers: list[PartitionAnswer] = []
                topics.append((asked.topic, answers))
            answers.append(answer)
        session_id = 0 if session is None else session.id
        version, correlation_id = self.request.api_version, self.request.correlation_id
        if not self.failed or version < FETCH_VERSION:
            return write_fetch_answer(version, correlation_id, 0, session_id, topics, throttle_time)
        leaders = CurrentLeaders(self._broker.image, self.request.listener)
        topics = [(topic, leaders.beside(topic, answers, fetch_leader_tags)) for topic, answers in topics]
        return write_fetch_answer(version, correlation_id, 0, session_id, topics, throttle_time, leaders.tags)

    def _answer_bytes(self) -> int:
        """The size of the answer for a quota of bytes. The fields beside the records are estimated."""
        told = [answer for _, answer, _ in self.answers.values() if answer.size or answer.error or self.session is None]
        return self.size + ANSWER_BYTES + PARTITION_BYTES * len(told)

    def _empty_answer(self, throttle_time: int) -> list[Any]:
        """The response of a consumer that is throttled (ms), which gets nothing of what was read."""
        session = self.session
        if session is not None and not self._incremental:
            self.withdraw_session()
            session = None
        if session is not None:
            session.unread.update(dict.fromkeys(self.answers))  # they have news that the client doesn't know
        session_id = 0 if session is None else session.id
        version, correlation_id = self.request.api_version, self.request.correlation_id
        return write_fetch_answer(version, correlation_id, 0, session_id, (), throttle_time)


class _Waiting:
    """A request that found fewer than `min_bytes` bytes. It watches its partitions until there are enough, a partition
    can't be read any more, or the time to wait is over."""

    __slots__ = ("_cold", "_fetch", "_open", "_rerun", "_timer", "_watched", "pending")

    def __init__(self, fetch: _Fetch) -> None:
        self._fetch = fetch
        self._open = True
        self._rerun = False
        self._watched: list[Partition] = []
        self.pending = fetch.request.pending
        self.pending.abandoned = self._abandoned
        body = fetch.body
        self._cold = fetch.cold
        wait_ms = max(body.max_wait_ms, COLD_WAIT_MS) if self._cold else body.max_wait_ms
        self._timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._finish)
        for read in self._cold:
            read.add_done_callback(self._was_read)
        session = fetch.session
        for key, (_, _, partition) in fetch.answers.items():
            if partition is None:
                continue
            if session is not None:
                session.watch.add(key, partition)
            else:
                partition.watchers(body.replica_id, fetch.read_committed).append(self)
                self._watched.append(partition)
        if session is not None:
            session.watch.request = self

    def moved(self, partition: Partition, new_bytes: int) -> None:
        """Called when a watched partition has `new_bytes` more to read. 0 means that it has changed in another way,
        which ends the wait."""
        fetch = self._fetch
        fetch.size += new_bytes
        if not self._rerun and (fetch.size >= fetch.body.min_bytes or not new_bytes):
            self._rerun = True
            asyncio.get_running_loop().call_soon(self._finish)

    def watermark_moved(self, partition: Partition) -> None:
        """Does nothing: the client learns the high watermark from its next answer."""

    def _was_read(self, read: asyncio.Future[None]) -> None:
        """Called when a thread has brought records into memory: the request reads its partitions anew."""
        if not self._rerun:
            self._rerun = True
            asyncio.get_running_loop().call_soon(self._finish)

    def _finish(self) -> None:
        if not self._open:
            return
        self._stop()
        charge = self._fetch.charge
        try:
            with nullcontext() if charge is None else charge.meter:
                self._fetch.read()
                self.pending.answer(self._fetch.answer())
        finally:
            self.pending.close_connection()  # unless it has been answered

    def _abandoned(self) -> None:
        """Ends the request of a client that has disconnected. A session that the request has begun ends, too: the
        client doesn't get its id."""
        self._stop()
        self._fetch.withdraw_session()

    def _stop(self) -> None:
        self._open = False
        self._timer.cancel()
        for read in self._cold:
            read.remove_done_callback(self._was_read)
        fetch = self._fetch
        if fetch.session is not None and fetch.session.watch.request is self:
            fetch.session.watch.request = None
        for partition in self._watched:
            partition.watchers(fetch.body.replica_id, fetch.read_committed).remove(self)
        self._watched.clear()


def _by_key(asked: Iterable[FetchPartition]) -> dict[PartitionKey, FetchPartition]:
    return {(partition.topic, partition.index): partition for partition in asked}
