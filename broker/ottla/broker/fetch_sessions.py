"""Incremental fetch sessions (KIP-227): a bounded cache, and what of an answer a session's client hasn't seen. Pure.

A session remembers for each partition what the client asked and what it was last told. An incremental answer then
carries only partitions with records, with an error, or whose high watermark or log start offset moved. Partitions that
had something move to the end of the session, so that none starves behind a greedy one. Which partitions have to be
looked at when the client comes back is `unread`, kept with the help of `fetch_watch`.

Cache, as Kafka's `FetchSessionCache`: `max.incremental.fetch.session.cache.slots` sessions; a full cache gives up a
session unused for `min.incremental.fetch.session.eviction.ms`, or for a privileged (follower's) one a larger or less
privileged one; otherwise the new client goes without a session.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ottla.broker.fetch_watch import SessionWatch
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from random import Random

    from ottla.broker.partition import Partition

INVALID_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1

PartitionKey = tuple[str | bytes, int]


class FetchPartition:
    """One partition of a fetch: what is asked, and what the client was last told."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "follower_log_start",
        "index",
        "last_fetched_epoch",
        "max_bytes",
        "told_high_watermark",
        "told_log_start",
        "topic",
    )

    def __init__(
        self,
        topic: str | bytes,
        index: int,
        fetch_offset: int,
        max_bytes: int,
        current_leader_epoch: int = -1,
        last_fetched_epoch: int = -1,
        follower_log_start: int = -1,
    ) -> None:
        self.topic = topic
        self.index = index
        self.fetch_offset = fetch_offset
        self.max_bytes = max_bytes
        self.current_leader_epoch = current_leader_epoch
        self.last_fetched_epoch = last_fetched_epoch
        self.follower_log_start = follower_log_start
        self.told_high_watermark = -1
        self.told_log_start = -1

    def asked(self, other: FetchPartition) -> None:
        """The client asks anew; what it was told stays, unless it asks the same again, or what comes before, or in
        another epoch: then it hasn't heard it."""
        if other.fetch_offset <= self.fetch_offset or other.current_leader_epoch != self.current_leader_epoch:
            self.told_high_watermark = self.told_log_start = -1
        self.fetch_offset = other.fetch_offset
        self.max_bytes = other.max_bytes
        self.current_leader_epoch = other.current_leader_epoch
        self.last_fetched_epoch = other.last_fetched_epoch
        self.follower_log_start = other.follower_log_start

    def news(self, error: int, size: int, high_watermark: int, log_start: int) -> bool:
        """Whether an incremental answer must carry this partition; remembers what it carries."""
        changed = size > 0 or error != 0
        if high_watermark != self.told_high_watermark:
            self.told_high_watermark = high_watermark
            changed = True
        if log_start != self.told_log_start:
            self.told_log_start = log_start
            changed = True
        if error:
            self.told_high_watermark = -1  # so that the end of the error is told too
        return changed


class FetchSession:
    """What one client fetches again and again."""

    __slots__ = (
        "created",
        "epoch",
        "id",
        "last_used",
        "partitions",
        "privileged",
        "replica_epoch",
        "unread",
        "uses_topic_ids",
        "watch",
    )

    def __init__(
        self,
        session_id: int,
        partitions: dict[PartitionKey, FetchPartition],
        replica_id: int,
        uses_topic_ids: bool,
        now: float,
    ) -> None:
        self.id = session_id
        self.epoch = 1
        self.partitions = partitions
        self.unread: dict[PartitionKey, None] = dict.fromkeys(partitions)  # in the order in which they are served
        self.watch = SessionWatch(self, replica_id)
        self.privileged = replica_id >= 0
        self.replica_epoch = -1  # of the follower's registration, as it said last
        self.uses_topic_ids = uses_topic_ids
        self.created = now
        self.last_used = now

    def update(self, asked: Iterable[FetchPartition], forgotten: Iterable[PartitionKey]) -> None:
        """Adds, changes and removes partitions as an incremental request says."""
        for partition in asked:
            key = (partition.topic, partition.index)
            self.unread[key] = None
            known = self.partitions.get(key)
            if known is None:
                self.partitions[key] = partition
            else:
                known.asked(partition)
        for key in forgotten:
            self.partitions.pop(key, None)
            self.unread.pop(key, None)
            self.watch.forget(key)

    def asked_by(self, replica_epoch: int) -> None:
        """The follower has registered anew: how far it is counts only if it says so under its new epoch."""
        if replica_epoch != self.replica_epoch:
            self.replica_epoch = replica_epoch
            self.unread = dict.fromkeys(self.partitions)

    def served(self, key: PartitionKey) -> None:
        """This partition had records: it goes behind the others."""
        self.unread.pop(key, None)
        self.unread[key] = None

    def read_to_end(self, key: PartitionKey, partition: Partition) -> None:
        """Nothing is left to read there until it moves, or the client asks anew."""
        self.watch.add(key, partition)
        self.unread.pop(key, None)


class FetchSessionCache:
    """All sessions of a broker. Times are seconds of a clock that doesn't go back."""

    def __init__(self, slots_max: int, eviction_seconds: float, random: Random) -> None:
        self.slots_max = slots_max
        self.eviction_seconds = eviction_seconds
        self.evictions = 0
        self._random = random
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    def create(
        self, partitions: dict[PartitionKey, FetchPartition], replica_id: int, uses_topic_ids: bool, now: float
    ) -> FetchSession | None:
        """A new session, of a follower or (`replica_id` −1) a consumer; None where there is no room for it."""
        if not self._make_room(len(partitions), replica_id >= 0, now):
            return None
        while (session_id := self._random.randint(1, 2**31 - 1)) in self._sessions:
            pass
        session = FetchSession(session_id, partitions, replica_id, uses_topic_ids, now)
        self._sessions[session_id] = session
        return session

    def resume(self, session_id: int, epoch: int, uses_topic_ids: bool, now: float) -> FetchSession:
        """The session that an incremental request continues. Raises KafkaError 70, 71 or 106."""
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.fetch_session_id_not_found)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.invalid_fetch_session_epoch)
        if session.uses_topic_ids != uses_topic_ids:
            raise KafkaError(ErrorCode.fetch_session_topic_id_error)
        session.epoch = 1 if epoch == 2**31 - 1 else epoch + 1
        session.last_used = now
        self._sessions.move_to_end(session_id)
        return session

    def remove(self, session_id: int) -> None:
        """Ends a session, if it is there."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.watch.close()

    def _make_room(self, size: int, privileged: bool, now: float) -> bool:
        if self.slots_max <= 0:
            return False
        if len(self._sessions) < self.slots_max:
            return True
        oldest = next(iter(self._sessions.values()))
        if now - oldest.last_used > self.eviction_seconds:
            return self._evict(oldest)
        settled = [s for s in self._sessions.values() if now - s.created > self.eviction_seconds]
        candidate = min(settled, key=lambda s: (s.privileged, len(s.partitions)), default=None)
        if candidate is not None and (candidate.privileged, len(candidate.partitions)) < (privileged, size):
            return self._evict(candidate)
        return False

    def _evict(self, session: FetchSession) -> bool:
        del self._sessions[session.id]
        session.watch.close()
        self.evictions += 1
        return True
