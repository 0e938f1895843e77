"""Limits the rate at which replicas that an admin throttles are copied, on the leader's side and on the follower's.

`leader.replication.throttled.rate` and `follower.replication.throttled.rate` set the rates in bytes per second;
settings of each topic name the throttled replicas.

Every byte of a throttled replica counts, but only a replica that is behind has to wait: a replica that is in sync must
stay in sync. Source: Kafka's ReplicationQuotaManager (KIP-73).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.metadata.image import Image
from ottla.settings.config import BrokerConfig

if TYPE_CHECKING:
    from ottla.broker.partition import Partition

LEADER = ("leader.replication.throttled.rate", "leader.replication.throttled.replicas")
FOLLOWER = ("follower.replication.throttled.rate", "follower.replication.throttled.replicas")
UNLIMITED = 2**63 - 1
EVERY_REPLICA = "*"
_BURST_SECONDS = 1.0  # the allowance of this many seconds may be used at once
_PAUSE_SECONDS_MAX = 1.0  # the longest pause; then the caller asks again, because the rate may have been raised


class ReplicationThrottle:
    """One allowance of bytes for all throttled replicas of this broker, on one side: LEADER or FOLLOWER.

    Times are in seconds, by a monotonic clock.
    """

    def __init__(
        self, side: tuple[str, str], broker_id: int, image: Callable[[], Image], config: Callable[[], BrokerConfig]
    ) -> None:
        self._rate, self._replicas = side
        self._broker_id = broker_id
        self._image = image
        self._config = config
        self._allowance_bytes = 0.0  # negative if bytes were spent in advance
        self._reckoned_at = 0.0

    def pause_seconds(self, partition: Partition, size_bytes: int, behind: bool, now: float) -> float:
        """Counts `size_bytes` that were copied of the partition. Returns how many seconds the caller has to wait before
        it copies more, or calls again with 0 bytes; 0 unless the replica is `behind`."""
        rate = self._config().get_int(self._rate)
        if rate == UNLIMITED or not self._throttles(partition):
            return 0.0
        rate = max(rate, 1)
        earned = (now - self._reckoned_at) * rate
        self._allowance_bytes = min(self._allowance_bytes + earned, rate * _BURST_SECONDS) - size_bytes
        self._reckoned_at = now
        if not behind or self._allowance_bytes >= 0:
            return 0.0
        return min(-self._allowance_bytes / rate, _PAUSE_SECONDS_MAX)

    def _throttles(self, partition: Partition) -> bool:
        text = self._image().config("topic", partition.topic).get(self._replicas, "")
        entries = [entry.strip() for entry in text.split(",")]
        return EVERY_REPLICA in entries or f"{partition.index}:{self._broker_id}" in entries
