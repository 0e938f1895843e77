"""An incremental fetch session (KIP-227): the partitions that its client fetches, and the offsets in the last answers.
Pure.

A session remembers for each partition the client's last request, and the high watermark and log start offset of the
last answer. So an incremental answer carries only partitions with records, with an error, or whose high watermark or
log start offset moved. A partition that had records moves to the end of the session's order, so that no partition
starves behind a busy one. `unread` holds the partitions that the next fetch has to read; the session's `watch` adds a
partition to it when the partition has moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ottla.broker.partition import Partition

INITIAL_EPOCH = 0
FINAL_EPOCH = -1

PartitionKey = tuple[str | bytes, int]


class FetchPartition:
    """One partition of a fetch: the client's request, and the offsets in the last answer."""

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
        """Takes over a new request for this partition. If the client repeats its last offset, goes back, or asks in
        another leader epoch, the last answer may have been lost: then the offsets of that answer are forgotten."""
        if other.fetch_offset <= self.fetch_offset or other.current_leader_epoch != self.current_leader_epoch:
            self.told_high_watermark = self.told_log_start = -1
        self.fetch_offset = other.fetch_offset
        self.max_bytes = other.max_bytes
        self.current_leader_epoch = other.current_leader_epoch
        self.last_fetched_epoch = other.last_fetched_epoch
        self.follower_log_start = other.follower_log_start

    def news(self, error: int, size: int, high_watermark: int, log_start: int) -> bool:
        """Whether an incremental answer must carry this partition. Remembers the offsets that the answer carries."""
        changed = size > 0 or error != 0
        if high_watermark != self.told_high_watermark:
            self.told_high_watermark = high_watermark
            changed = True
        if log_start != self.told_log_start:
            self.told_log_start = log_start
            changed = True
        if error:
            self.told_high_watermark = -1  # so that the answer after an error carries the partition, too
        return changed


class Waiting(Protocol):
    """A fetch request that waits for more records."""

    def moved(self, partition: Partition, new_bytes: int) -> None:
        """Called when the partition has `new_bytes` more to read, or (0) has changed in another way."""
        ...


class Watch(Protocol):
    """The port to the partitions: a partition that is added to it is put into its session's `unread` when it moves."""

    request: Waiting | None  # the waiting request, whose `moved` is called for every move

    def add(self, key: PartitionKey, partition: Partition) -> None:
        """Watches this partition, which the session has read to its end."""
        ...

    def reads(self, read_committed: bool) -> None:
        """Notes whether the session's next request reads committed records only."""
        ...

    def forget(self, key: PartitionKey) -> None:
        """Ends the watching of a partition."""
        ...

    def close(self) -> None:
        """Ends the watching of all partitions: the session is over."""
        ...


class FetchSession:
    """The partitions that one client fetches again and again. `watch_of` makes the session's watch, from the session
    and the replica's id (−1: a consumer)."""

    __slots__ = (
        "created",
        "epoch",
        "id",
        "last_used",
        "partitions",
        "privileged",
        "read_committed",
        "replica_epoch",
        "rights",
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
        watch_of: Callable[[FetchSession, int], Watch],
    ) -> None:
        self.id = session_id
        self.epoch = 1
        self.partitions = partitions
        self.unread: dict[PartitionKey, None] = dict.fromkeys(partitions)  # in the order in which they are served
        self.watch = watch_of(self, replica_id)
        self.privileged = replica_id >= 0
        self.replica_epoch = -1  # the broker epoch that the follower stated last
        self.read_committed = False  # by the last request
        self.rights = 0  # how often rights had changed before the last request
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

    def asked_by(self, replica_epoch: int, read_committed: bool) -> None:
        """Notes the broker epoch of a follower's request, and whether a consumer's request reads committed records
        only. If the broker epoch has changed, all partitions are unread, because the follower's fetch offsets count
        only if it states them under its new epoch. The same holds if the consumer's choice has changed, because the
        partitions were read up to another offset: to the high watermark instead of the last stable offset, or the
        reverse."""
        if replica_epoch != self.replica_epoch or read_committed != self.read_committed:
            self.replica_epoch = replica_epoch
            self.read_committed = read_committed
            self.watch.reads(read_committed)
            self.unread = dict.fromkeys(self.partitions)

    def under_rights(self, changes: int) -> None:
        """Notes how often clients' rights have changed. If they have changed since the last request, all partitions are
        unread, because the client may have lost its right to some of them, or got it."""
        if changes != self.rights:
            self.rights = changes
            self.unread = dict.fromkeys(self.partitions)

    def served(self, key: PartitionKey) -> None:
        """Moves a partition, which had records in the last answer, to the end of the session's order."""
        self.unread.pop(key, None)
        self.unread[key] = None

    def read_to_end(self, key: PartitionKey, partition: Partition) -> None:
        """Takes the partition out of `unread` until it moves, or until the client asks for it anew."""
        self.watch.add(key, partition)
        self.unread.pop(key, None)
