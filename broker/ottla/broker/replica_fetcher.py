"""Copies partitions from one leader broker: sends one Fetch at a time, within an incremental session, and carries out
the decision of `replica.follower` for each partition of the answer. Rules:

1. An answer counts for a partition only if, when it is applied, the partition is still followed in the leader epoch of
   the request, and its log still ends at the request's offset. No other task runs between this check and the change of
   the log.
2. After any error of the connection or of the session, the session begins anew.
3. After an error of one partition, only that partition pauses. `Replicas` unfollows a partition whose log directory
   failed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Protocol

from ottla.broker import follower_log
from ottla.broker.event_rate import EventRate
from ottla.broker.leader_connection import EARLIEST, LATEST, AskedPartition, LeaderConnection
from ottla.broker.replica.fetch_session import FollowerSession, Key, Position, Request
from ottla.broker.replica.follower import (
    Append,
    AskRange,
    CorruptBatch,
    Decision,
    Held,
    Pause,
    Restart,
    Told,
    Truncate,
    decide,
    out_of_range,
    whole_batches,
)
from ottla.net.peer import Answer
from ottla.protocol import follower_fetch
from ottla.protocol.batches import BatchHeader
from ottla.protocol.errors import ErrorCode, KafkaError, ProtocolError
from ottla.protocol.follower_fetch import FetchedPartition, FetchLimits, write_follower_fetch

if TYPE_CHECKING:
    from ottla.broker.log.log import Log
    from ottla.broker.partition import Partition
    from ottla.broker.replication_throttle import ReplicationThrottle
    from ottla.metadata.image import Image
    from ottla.net.streams import Connect
    from ottla.settings.config import BrokerConfig

logger = logging.getLogger(__name__)

_BACK_OFF_SECONDS_MIN = 0.02
_APPLIED_AT_ONCE_BYTES = 1 << 20  # bytes of an answer that are applied before the event loop serves other tasks
_BATCHES_AT_ONCE = 1024  # batches of a partition, which are applied in some milliseconds
_LISTED_AT_ONCE_MAX = 500  # partitions in one ListOffsets request, which takes the leader some milliseconds
_NAMED_AT_ONCE_MAX = 1000  # partitions; with more, no fetch is given up: each one named costs both brokers tens of µs
_ELECTIONS_SECONDS = 1.0  # more new partitions are expected within this time after one
_ELECTIONS_WAIT_MS = 50  # the longest wait of fetches within that time, so that new partitions are named soon
_IDLE_SECONDS = 60.0


class Owner(Protocol):
    """The methods of the broker's `Replication`, which owns the fetcher, that the fetcher calls."""

    bytes_in: int  # replicated bytes; only grows

    @property
    def broker_id(self) -> int: ...
    @property
    def broker_epoch(self) -> Callable[[], int]: ...
    @property
    def image(self) -> Callable[[], Image]: ...
    @property
    def config(self) -> Callable[[], BrokerConfig]: ...
    @property
    def connect(self) -> Connect: ...
    @property
    def throttle(self) -> ReplicationThrottle: ...
    @property
    def shortened(self) -> Callable[[Log], None]: ...

    def ended(self, leader: int) -> None:
        """Called when the fetcher of `leader` follows no partition any more."""


class Followed:
    """One partition that is followed under one leader in one leader epoch."""

    __slots__ = ("epoch", "failures", "lag", "partition", "paused_until", "refused", "told")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.epoch = partition.epoch
        self.lag = 0
        self.paused_until = 0.0
        self.failures = 0  # failures in a row
        self.told = False  # whether a log message has reported the pause
        self.refused: CorruptBatch | None = None  # the damaged batch that stops the copying


class ReplicaFetcher:
    """The partitions that are copied from one leader broker, and the task that copies them."""

    def __init__(self, owner: Owner, leader: int) -> None:
        self.task: asyncio.Task[Any] | None = None
        self.followed: dict[Key, Followed] = {}
        self.failed: set[Key] = set()  # partitions whose copying ended in this epoch by an unexpected error
        self._owner = owner
        self._leader = leader
        self._session = FollowerSession()
        self._connection = LeaderConnection(owner.broker_id, leader, owner.image, owner.config, owner.connect)
        self._own_epoch = -1  # the epoch of this broker's registration when the session began
        self._interrupted = False  # whether the fetch under way was given up
        self._interrupted_at = float("-inf")
        self._answered = True  # whether the leader has answered a fetch since the last interruption
        self._followed_at = float("-inf")
        self._paused: list[tuple[float, Key]] = []
        self._news = asyncio.Event()
        self._failures = 0
        self._rate = EventRate(self._now())

    # ---- called by Replication

    def follows(self, partition: Partition) -> bool:
        """Whether exactly this `Partition` object is followed, in its present leader epoch."""
        followed = self.followed.get(key_of(partition))
        return followed is not None and followed.partition is partition and followed.epoch == partition.epoch

    def follow(self, partition: Partition) -> None:
        """Begins to copy the partition from its log's end on."""
        followed = self.followed[key_of(partition)] = Followed(partition)
        self.failed.discard(key_of(partition))
        self._want(key_of(partition), followed)
        self._news.set()
        self._followed_at = self._now()
        self._interrupt()

    def _interrupt(self) -> None:
        """Gives up the fetch under way, because it may wait at the leader and doesn't name the partitions that are
        followed since then; a new fetch is sent immediately. A fetch isn't given up too often, and not where thousands
        of partitions are followed, because the new fetch names every partition. Nor is a fetch given up before the
        leader has answered since the last interruption: otherwise a slow leader could never answer while more and more
        partitions are followed. A fetch is always given up if the leader has registered anew, since the process that
        would answer is gone."""
        now = self._now()
        pause = self._owner.config().get_int("replica.fetch.wait.max.ms") / 1000
        few = len(self._session.wanted) <= _NAMED_AT_ONCE_MAX
        due = few and self._answered and now - self._interrupted_at >= pause
        if (due or self._connection.registered_anew()) and self._connection.give_up():
            self._interrupted_at = now
            self._interrupted = True
            self._answered = False

    def unfollow(self, key: Key) -> None:
        """Ends the copying of a partition. If an answer is under way, its part for this partition is ignored."""
        if self.followed.pop(key, None) is not None:
            self.failed.discard(key)
            self._session.drop(key)
            self._news.set()

    @property
    def fetches_per_second(self) -> float:
        """How many fetches a second were sent, over about the last minute."""
        return self._rate.per_second(self._now())

    # ---- the task

    async def run(self) -> None:
        """Fetches until no partition is followed any more."""
        try:
            while self.followed:
                self._resume_paused()
                if not self._session.wanted:
                    await self._wait(self._paused[0][0] - self._now() if self._paused else _IDLE_SECONDS)
                    continue
                self._news.clear()
                try:
                    await self._fetch()
                    self._answered = True
                    if self._failures:
                        logger.info("broker %d answers fetches again", self._leader)
                    self._failures = 0
                except (OSError, ProtocolError) as error:
                    self._connection.close()
                    self._session.begin_anew()
                    if not self._interrupted:
                        await self._back_off(error)
                self._interrupted = False
            self._owner.ended(self._leader)
        finally:
            self._connection.close()

    async def _fetch(self) -> None:
        """Sends one Fetch and applies its answer."""
        config = self._owner.config()
        if self._own_epoch != self._owner.broker_epoch():
            # Only by a request that names a partition does the leader find out under which registration the partition
            # was copied.
            self._own_epoch = self._owner.broker_epoch()
            self._session.begin_anew()
        wait_ms = config.get_int("replica.fetch.wait.max.ms")
        if len(self._session.wanted) > _NAMED_AT_ONCE_MAX and self._now() - self._followed_at < _ELECTIONS_SECONDS:
            wait_ms = min(wait_ms, _ELECTIONS_WAIT_MS)
        limits = FetchLimits(
            wait_ms,
            config.get_int("replica.fetch.min.bytes"),
            config.get_int("replica.fetch.response.max.bytes"),
        )
        request = self._session.request()
        self._rate.count(self._now())
        body = self._body(request, limits, config.get_int("replica.fetch.max.bytes"))
        answer = await self._connection.request(follower_fetch.FETCH, follower_fetch.VERSION, body)
        head = follower_fetch.read_fetch_answer(answer.frame, answer.start, answer.end)
        if not self._session.answered(head.error, head.session_id):
            logger.info("broker %d: the fetch session begins anew: error %d", self._leader, head.error)
            if not self._session.id:
                return
            raise ConnectionAbortedError(f"the broker answered the fetch with error {head.error}")
        await self._apply(answer, head.topics_at)

    def _body(self, request: Request, limits: FetchLimits, partition_bytes: int) -> bytes:
        topics = [
            (topic, [_asked(index, request.asked[topic, index], partition_bytes) for index in indexes])
            for topic, indexes in follower_fetch.by_topic(request.asked)
        ]
        replica = (self._owner.broker_id, self._owner.broker_epoch())
        forgotten = follower_fetch.by_topic(request.forgotten)
        return write_follower_fetch(replica, limits, request.session, topics, forgotten)

    async def _apply(self, answer: Answer, position: int) -> None:
        applied = 0
        out_of_range: list[Key] = []
        for fetched in follower_fetch.read_fetched_partitions(answer.frame, position, answer.end):
            start, end = fetched.records
            with self._failing_alone((fetched.topic, fetched.index)):
                await self._apply_to_partition(fetched, memoryview(answer.frame)[start:end], out_of_range)
            applied += end - start
            if applied >= _APPLIED_AT_ONCE_BYTES:
                applied = 0
                await asyncio.sleep(0)
        for some in range(0, len(out_of_range), _LISTED_AT_ONCE_MAX):  # the answer's memory has been released
            await self._find_ranges(out_of_range[some : some + _LISTED_AT_ONCE_MAX])

    async def _apply_to_partition(
        self, fetched: FetchedPartition, records: memoryview, out_of_range: list[Key]
    ) -> None:
        """Applies one partition's part of the answer: many small batches in several steps, between which the event loop
        serves other tasks."""
        key = (fetched.topic, fetched.index)
        followed = self._still_valid(key)
        while followed is not None:
            headers: list[tuple[int, BatchHeader]] = []
            error = fetched.error
            if records and not error:
                try:
                    headers = whole_batches(
                        records, followed.epoch, followed.partition.log.log_end_offset, _BATCHES_AT_ONCE
                    )
                except CorruptBatch as corrupt:
                    followed.refused = corrupt
                    error = corrupt.code
            told = Told(error, fetched.high_watermark, fetched.log_start_offset, fetched.diverging, headers)
            decision = decide(self._held(followed.partition), told)
            if isinstance(decision, AskRange):
                out_of_range.append(key)
                return
            size = headers[-1][0] + headers[-1][1].size if headers else 0
            self._carry_out(key, followed, decision, records[:size])
            if len(headers) < _BATCHES_AT_ONCE:
                return
            records = records[size:]
            await asyncio.sleep(0)
            partition, end = followed.partition, headers[-1][1].last_offset + 1
            if not self.follows(partition) or self.followed[key] is not followed or partition.log.log_end_offset != end:
                return

    @contextmanager
    def _failing_alone(self, key: Key) -> Iterator[None]:
        """Confines an unexpected error to one partition: this partition isn't copied any more until it has another
        leader or leader epoch, and the other partitions go on (as in Kafka's `AbstractFetcherThread`)."""
        try:
            yield
        except (OSError, ProtocolError):
            raise  # an error of the connection concerns all partitions
        except Exception:
            if (followed := self.followed.get(key)) is not None:
                logger.exception(
                    "%r: copying from broker %d failed, and is tried again only once another leader is elected",
                    followed.partition, self._leader,
                )  # fmt: skip
                self.failed.add(key)
                self._session.drop(key)

    def _still_valid(self, key: Key) -> Followed | None:
        """The followed partition, if an answer to the last request may still be applied to it (rule 1); else None."""
        asked = self._session.in_force.get(key)
        followed = self.followed.get(key)
        if followed is not None and asked is not None:
            partition = followed.partition
            if asked.leader_epoch == followed.epoch == partition.epoch and asked.offset == partition.log.log_end_offset:
                return followed
        self._session.unheard(key)
        return None

    def _carry_out(self, key: Key, followed: Followed, decision: Decision, records: memoryview) -> None:
        partition = followed.partition
        before = self._held(partition)
        log = partition.log
        was = log.recovery_point, log.compacted_to, log.generation
        try:
            match decision:
                case Append():
                    self._append(followed, decision, records)
                case Truncate(offset):
                    logger.info("%r: truncates to %d, from %d", partition, offset, partition.log.log_end_offset)
                    follower_log.truncate_to(partition, offset)
                case Restart(offset):
                    logger.info("%r: starts anew at %d, the leader's start", partition, offset)
                    follower_log.restart_at(partition, offset)
                case Pause(error, awaited):
                    self._pause_after(key, followed, error, awaited)
                    return
        except KafkaError as error:
            # A full disk may have room later; where the log directory failed, `Replicas` unfollows the partition.
            self._tell_if_shortened(log, *was)
            self._pause_after(key, followed, error.code, False)
            return
        self._tell_if_shortened(log, *was)
        if not isinstance(decision, Append):
            # The answer's high watermark was for the log before the change, so the leader has to send it again.
            if isinstance(decision, Truncate):
                self._session.unheard(key)
            else:
                self._session.begin_anew()
            if self._held(partition) == before:
                # No leader that follows the rules causes this. Without a pause, the fetcher would ask again and again,
                # without end.
                self._pause_after(key, followed, ErrorCode.unknown_server_error, False)
                return
        followed.failures = 0
        followed.told = False
        followed.refused = None
        self._want(key, followed)
        throttled = self._owner.throttle.pause_seconds(partition, len(records), followed.lag > 0, self._now())
        if throttled:
            self._pause(key, followed, throttled)

    def _tell_if_shortened(self, log: Log, recovery_point: int, compacted_to: int, generation: int) -> None:
        """Reports to the owner that the log was truncated, if offsets in the checkpoints may lie beyond the log's end
        now. The owner then writes the checkpoints anew."""
        again = log.generation != generation and log.unsynced.compacted_to  # an earlier sync doesn't count
        if again or (log.recovery_point, log.compacted_to) != (recovery_point, compacted_to):
            self._owner.shortened(log)

    def _append(self, followed: Followed, decision: Append, records: memoryview) -> None:
        partition = followed.partition
        headers = decision.headers
        if decision.restart_at is not None:
            follower_log.restart_at(partition, decision.restart_at)
        follower_log.append_replicated(partition, records, headers, decision.high_watermark, decision.log_start_offset)
        followed.lag = max(decision.high_watermark - partition.log.log_end_offset, 0)
        self._owner.bytes_in += len(records)

    async def _find_ranges(self, keys: Iterable[Key]) -> None:
        """Asks for the start and end offsets of the leader's logs, for partitions whose fetch offsets the leader
        doesn't have. One request names all of these partitions, because nothing is fetched meanwhile: after a long
        absence of this broker, there may be thousands."""
        asking = {key: followed for key in keys if (followed := self._still_valid(key)) is not None}
        if not asking:
            return
        asked = {key: _asked_offsets(followed) for key, followed in asking.items()}
        starts = await self._connection.list_offsets(asked, EARLIEST)
        ends = await self._connection.list_offsets(asked, LATEST)
        for key, followed in asking.items():
            await asyncio.sleep(0)
            if self._still_valid(key) is not followed:
                continue
            (start_error, start), (end_error, end) = starts[key], ends[key]
            if error := start_error or end_error:
                decision: Decision = Pause(error, False)
            else:
                decision = out_of_range(self._held(followed.partition), start, end)
            with self._failing_alone(key):
                self._carry_out(key, followed, decision, memoryview(b""))

    # ---- partitions

    def _want(self, key: Key, followed: Followed) -> None:
        log = followed.partition.log
        position = Position(log.log_end_offset, followed.epoch, log.last_leader_epoch, log.log_start_offset)
        self._session.want(key, position)

    def _held(self, partition: Partition) -> Held:
        log, electable = partition.log, partition.may_elect(self._owner.broker_id)
        return Held(
            log.log_start_offset, log.log_end_offset, log.last_leader_epoch, log.epochs, log.compacted_to, electable
        )

    def _pause_after(self, key: Key, followed: Followed, error: int, awaited: bool) -> None:
        """Pauses a partition after an error. If the error only means that newer metadata is awaited (`awaited`), the
        first pauses are short, and no warning is logged."""
        limit = self._owner.config().get_int("replica.fetch.backoff.ms") / 1000
        seconds = _growing(followed.failures, limit) if awaited else limit
        followed.failures += 1
        if seconds == limit and not followed.told:
            followed.told = True
            level = logging.INFO if awaited else logging.WARNING
            reason = (error == ErrorCode.corrupt_message and followed.refused) or _name_of(error)
            logger.log(level, "%r: fetching from broker %d: %s", followed.partition, self._leader, reason)
        self._pause(key, followed, seconds)

    def _pause(self, key: Key, followed: Followed, seconds: float) -> None:
        followed.paused_until = self._now() + seconds
        self._session.drop(key)
        heappush(self._paused, (followed.paused_until, key))

    def _resume_paused(self) -> None:
        now = self._now()
        while self._paused and self._paused[0][0] <= now:
            until, key = heappop(self._paused)
            followed = self.followed.get(key)
            if followed is None or followed.paused_until != until:
                continue
            throttled = self._owner.throttle.pause_seconds(followed.partition, 0, followed.lag > 0, now)
            if throttled:
                self._pause(key, followed, throttled)
            else:
                self._want(key, followed)

    # ---- pauses of the whole fetcher

    async def _back_off(self, error: Exception) -> None:
        """Waits before the session begins anew: longer after each failure in a row, up to
        `replica.fetch.backoff.ms`."""
        if not self._failures:
            logger.warning("fetching from broker %d failed: %s", self._leader, str(error) or "timed out")
        limit = self._owner.config().get_int("replica.fetch.backoff.ms") / 1000
        seconds = _growing(self._failures, max(limit, _BACK_OFF_SECONDS_MIN))
        self._failures += 1
        await self._wait(seconds)

    async def _wait(self, seconds: float) -> None:
        """Waits for `seconds`, or until a partition is followed or unfollowed."""
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            return
        self._news.clear()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def key_of(partition: Partition) -> Key:
    """The partition's key in a fetch session: the topic id's bytes and the index."""
    return partition.topic_id.bytes, partition.index


def _growing(failures: int, limit: float) -> float:
    return min(_BACK_OFF_SECONDS_MIN * 2.0 ** min(failures, 16), limit)


def _name_of(error: int) -> str:
    try:
        return ErrorCode(error).name
    except ValueError:
        return f"error {error}"


def _asked(index: int, position: Position, max_bytes: int) -> tuple[int, int, int, int, int, int]:
    return index, position.offset, max_bytes, position.leader_epoch, position.last_epoch, position.log_start_offset


def _asked_offsets(followed: Followed) -> AskedPartition:
    return AskedPartition(followed.partition.topic, followed.partition.index, followed.epoch)
