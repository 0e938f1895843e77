"""Copies from the leaders what this broker follows: one fetcher for each broker that leads any of it."""

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
    """All that this broker follows. Owned by the event loop.

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
        self.shortened = shortened  # hears of a log that lost what its checkpoints count on
        self.bytes_in = 0
        self.throttle = ReplicationThrottle(FOLLOWER, broker_id, image, config)
        self._spawn = spawn
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._leaders: dict[Key, int] = {}
        self._stopped = False

    def follow(self, partition: Partition) -> None:
        """Copies the partition from `partition.leader` in `partition.epoch`; called again when either may change."""
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
        """Copies this partition no longer. Nothing that is under way touches it after this call."""
        leader = self._leaders.pop(key_of(partition), None)
        if leader is not None:
            self._fetchers[leader].unfollow(key_of(partition))

    def ended(self, leader: int) -> None:
        """A fetcher has nothing to follow any more."""
        self._fetchers.pop(leader, None)

    async def stop(self) -> None:
        """Ends all fetchers; nothing is appended after this."""
        self._stopped = True
        fetchers = list(self._fetchers.values())
        self._fetchers.clear()
        self._leaders.clear()
        tasks = [fetcher.task for fetcher in fetchers if fetcher.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- what metrics read

    def lags(self) -> Iterator[tuple[Partition, int]]:
        """For each followed partition how many records it is behind what is committed, as far as is known."""
        for fetcher in self._fetchers.values():
            for followed in fetcher.followed.values():
                yield followed.partition, followed.lag

    @property
    def max_lag(self) -> int:
        """The greatest of them; 0 without any."""
        return max((lag for _, lag in self.lags()), default=0)

    def refused(self) -> Iterator[tuple[Partition, int, CorruptBatch]]:
        """The followed partitions that aren't copied any further, because what their leader sends is damaged; with the
        leader."""
        for leader, fetcher in self._fetchers.items():
            for followed in fetcher.followed.values():
                if followed.refused is not None:
                    yield followed.partition, leader, followed.refused

    @property
    def failed_count(self) -> int:
        """How many partitions aren't copied any more, for an error that nobody foresaw."""
        return sum(len(fetcher.failed) for fetcher in self._fetchers.values())

    @property
    def min_fetch_rate(self) -> float:
        """Fetches a second of the fetcher that sends the fewest, over about a minute; 0 without any."""
        return min((fetcher.fetches_per_second for fetcher in self._fetchers.values()), default=0.0)
