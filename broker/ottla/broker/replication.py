"""Copies the partitions that this broker follows, with one fetcher for each broker that leads some of these
partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from ottla.broker.replica.fetch_session import Key
from ottla.broker.replica.follower import CorruptBatch
from ottla.broker.replica_fetcher import ReplicaFetcher, key_of
from ottla.broker.replication_throttle import FOLLOWER, ReplicationThrottle
from ottla.metadata.image import Image
from ottla.net.streams import Connect, connect_tcp
from ottla.settings.config import BrokerConfig

if TYPE_CHECKING:
    from ottla.broker.log.log import Log
    from ottla.broker.partition import Partition

Spawn = Callable[[Coroutine[Any, Any, Any], str], asyncio.Task[Any]]


class Replication:
    """The partitions that this broker follows, and their fetchers. Owned by the event loop.

    `bytes_in` counts replicated bytes; it only grows.
    """

    def __init__(
        self,
        broker_id: int,
        broker_epoch: Callable[[], int],
        image: Callable[[], Image],
        config: Callable[[], BrokerConfig],
        spawn: Spawn,
        shortened: Callable[[Log], None],
        connect: Connect = connect_tcp,
    ) -> None:
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self.image = image
        self.config = config
        self.connect = connect
        self.shortened = shortened  # called for a log that has lost records below its checkpoints
        self.bytes_in = 0
        self.throttle = ReplicationThrottle(FOLLOWER, broker_id, image, config)
        self._spawn = spawn
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._leaders: dict[Key, int] = {}
        self._stopped = False

    def follow(self, partition: Partition) -> None:
        """Copies the partition from `partition.leader` in `partition.epoch`; called again when the leader or the epoch
        may have changed."""
        leader = partition.leader
        key = key_of(partition)
        if self._leaders.get(key) == leader and self._fetchers[leader].follows(partition):
            return
        self.unfollow(partition)
        if self._stopped or leader < 0 or leader == self.broker_id:
            return
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = ReplicaFetcher(self, leader)
            fetcher.task = self._spawn(fetcher.run(), f"replication from broker {leader}")
        self._leaders[key] = leader
        fetcher.follow(partition)

    def unfollow(self, partition: Partition) -> None:
        """Ends the copying of this partition. After this call, no answer that is under way changes the partition."""
        leader = self._leaders.pop(key_of(partition), None)
        if leader is not None:
            self._fetchers[leader].unfollow(key_of(partition))

    def ended(self, leader: int) -> None:
        """Removes the fetcher of `leader`, which follows no partition any more."""
        self._fetchers.pop(leader, None)

    async def stop(self) -> None:
        """Ends all fetchers, and waits for their tasks; afterwards they append no batch."""
        self._stopped = True
        fetchers = list(self._fetchers.values())
        self._fetchers.clear()
        self._leaders.clear()
        tasks = [fetcher.task for fetcher in fetchers if fetcher.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- read by metrics

    def lags(self) -> Iterator[tuple[Partition, int]]:
        """Each followed partition, with the number of records by which it is behind the leader's high watermark in the
        last answer."""
        for fetcher in self._fetchers.values():
            for followed in fetcher.followed.values():
                yield followed.partition, followed.lag

    @property
    def max_lag(self) -> int:
        """The greatest lag, in records; 0 where no partition is followed."""
        return max((lag for _, lag in self.lags()), default=0)

    def refused(self) -> Iterator[tuple[Partition, int, CorruptBatch]]:
        """The followed partitions that aren't copied any further because their leader sends a damaged batch; each with
        the leader's id and the error."""
        for leader, fetcher in self._fetchers.items():
            for followed in fetcher.followed.values():
                if followed.refused is not None:
                    yield followed.partition, leader, followed.refused

    @property
    def failed_count(self) -> int:
        """How many followed partitions aren't copied any more because of an unexpected error (a bug)."""
        return sum(len(fetcher.failed) for fetcher in self._fetchers.values())

    @property
    def min_fetch_rate(self) -> float:
        """The fetches a second, over about the last minute, of the fetcher that sends the fewest; 0 without
        fetchers."""
        return min((fetcher.fetches_per_second for fetcher in self._fetchers.values()), default=0.0)
