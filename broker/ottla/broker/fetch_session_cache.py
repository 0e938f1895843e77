"""A broker's incremental fetch sessions (KIP-227), as many as its cache has slots for.

The cache has `max.incremental.fetch.session.cache.slots` slots. If it is full, it evicts a session that was unused for
`min.incremental.fetch.session.eviction.ms`. If there is none, it evicts a session that was created longer ago than that
time, and that is worth less than the new one: a follower's session is worth more than a consumer's, and of two sessions
of the same kind, the one with more partitions is worth more. If there is no such session either, the new client gets no
session. A session's id is drawn at random, so that no client can guess another client's id. Source: Kafka's
`FetchSessionCache`.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from ottla.broker.fetch_sessions import FetchPartition, FetchSession, PartitionKey
from ottla.broker.fetch_watch import SessionWatch
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from random import Random


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
        """A new session of a follower or (`replica_id` −1) of a consumer; None where the cache has no room for it."""
        if not self._make_room(len(partitions), replica_id >= 0, now):
            return None
        while (session_id := self._random.randint(1, 2**31 - 1)) in self._sessions:
            pass
        session = FetchSession(session_id, partitions, replica_id, uses_topic_ids, now, SessionWatch)
        self._sessions[session_id] = session
        return session

    def resume(self, session_id: int, epoch: int, uses_topic_ids: bool, now: float) -> FetchSession:
        """The session that an incremental request continues. Raises KafkaError FETCH_SESSION_ID_NOT_FOUND,
        INVALID_FETCH_SESSION_EPOCH or FETCH_SESSION_TOPIC_ID_ERROR."""
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
        """Ends the session, if the cache has it."""
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
