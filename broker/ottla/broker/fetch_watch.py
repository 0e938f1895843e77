"""What a fetch session needn't look at again, because nothing has moved there since it was read.

A session of thousands of partitions is asked for twice a second by each follower. Reading them all would cost an idle
cluster a core; so partitions that had nothing to say are watched instead, from one request to the next, and an
incremental fetch reads only those that moved, that the client asked anew, or that had more than fitted.

While no request waits, the first move ends the watching of a partition: sessions that nobody uses any more cost the
writers nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.broker.fetch_sessions import FetchSession, PartitionKey, Waiting
    from ottla.broker.partition import Partition


class SessionWatch:
    """The partitions of one session that were read to their end. `replica_id` is the follower's, −1 a consumer's."""

    __slots__ = ("_replica_id", "_session", "_watched", "request")

    def __init__(self, session: FetchSession, replica_id: int) -> None:
        self._session = session
        self._replica_id = replica_id
        self._watched: dict[PartitionKey, Partition] = {}
        self.request: Waiting | None = None  # that waits for more

    def add(self, key: PartitionKey, partition: Partition) -> None:
        """Is told when the partition moves."""
        if self._watched.get(key) is not partition:
            self.forget(key)
            self._watched[key] = partition
            partition.watchers(self._replica_id).append(self)

    def moved(self, partition: Partition, new_bytes: int) -> None:
        """There is more to read, or (0) the partition changed in another way."""
        key = self._key(partition)
        unread = self._session.unread
        if key not in unread:
            unread[key] = None
            if partition.leading is not None and self._replica_id >= 0:
                # It had everything until now, and was last heard of when its session was last used.
                session = self._session
                partition.leading.was_caught_up(self._replica_id, session.replica_epoch, session.last_used)
        if self.request is not None:
            self.request.moved(partition, new_bytes)
        else:
            self.forget(key)

    def watermark_moved(self, partition: Partition) -> None:
        """A follower is to be told, though not at once."""
        self._session.unread[self._key(partition)] = None

    def _key(self, partition: Partition) -> PartitionKey:
        return partition.topic_id.bytes if self._session.uses_topic_ids else partition.topic, partition.index

    def forget(self, key: PartitionKey) -> None:
        """The partition isn't watched any more."""
        partition = self._watched.pop(key, None)
        if partition is not None:
            partition.watchers(self._replica_id).remove(self)

    def close(self) -> None:
        """The session is over."""
        for key in list(self._watched):
            self.forget(key)
