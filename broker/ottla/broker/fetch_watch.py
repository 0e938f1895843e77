"""Watches a fetch session's partitions that were read to their end, so that only partitions that moved are read again.

Each follower fetches a session of thousands of partitions twice a second. Reading them all would cost an idle cluster a
core. So partitions without news are watched instead, from one request to the next, and an incremental fetch reads only
the partitions that moved, that the client asked for anew, or whose records didn't all fit into the last answer.

While no request waits, a partition's first move ends the watching of that partition: sessions that no client uses any
more cost the partition's writers nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.broker.fetch_sessions import FetchSession, PartitionKey, Waiting
    from ottla.broker.partition import Partition


class SessionWatch:
    """The partitions of one session that were read to their end. `replica_id` is the follower's id, −1 for a consumer.
    With `read_committed`, only moves of the last stable offset are more to read."""

    __slots__ = ("_read_committed", "_replica_id", "_session", "_watched", "request")

    def __init__(self, session: FetchSession, replica_id: int) -> None:
        self._session = session
        self._replica_id = replica_id
        self._read_committed = False
        self._watched: dict[PartitionKey, Partition] = {}
        self.request: Waiting | None = None  # the fetch request that waits for more records

    def add(self, key: PartitionKey, partition: Partition) -> None:
        """Watches the partition until it moves."""
        if self._watched.get(key) is not partition:
            self.forget(key)
            self._watched[key] = partition
            partition.watchers(self._replica_id, self._read_committed).append(self)

    def reads(self, read_committed: bool) -> None:
        """Notes whether the session's next request reads committed records only. If this has changed, the watching of
        all partitions ends, because they were read up to another offset: to the high watermark instead of the last
        stable offset, or the reverse."""
        if read_committed != self._read_committed:
            self.close()
            self._read_committed = read_committed

    def moved(self, partition: Partition, new_bytes: int) -> None:
        """Called when the partition has `new_bytes` more to read, or (0) has changed in another way."""
        key = self._key(partition)
        unread = self._session.unread
        if key not in unread:
            unread[key] = None
            if partition.leading is not None and self._replica_id >= 0:
                # Until now the follower had all records, and its last fetch was the last use of its session.
                session = self._session
                partition.leading.was_caught_up(self._replica_id, session.replica_epoch, session.last_used)
        if self.request is not None:
            self.request.moved(partition, new_bytes)
        else:
            self.forget(key)

    def watermark_moved(self, partition: Partition) -> None:
        """Called when the high watermark has moved: the answer to the session's next fetch carries it. A fetch that
        waits isn't answered for this alone."""
        self._session.unread[self._key(partition)] = None

    def _key(self, partition: Partition) -> PartitionKey:
        return partition.topic_id.bytes if self._session.uses_topic_ids else partition.topic, partition.index

    def forget(self, key: PartitionKey) -> None:
        """Ends the watching of a partition."""
        partition = self._watched.pop(key, None)
        if partition is not None:
            partition.watchers(self._replica_id, self._read_committed).remove(self)

    def close(self) -> None:
        """Ends the watching of all partitions: the session is over."""
        for key in list(self._watched):
            self.forget(key)
