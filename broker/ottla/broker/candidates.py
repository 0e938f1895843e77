"""Who may join an ISR, and for whom the high watermark waits meanwhile.

A *candidate* is a follower outside of the ISR whose registration lets it join and that was caught up within
`replica.lag.time.max.ms`. While there is one, nothing is committed that it lacks. So the high watermark, which a leader
that is alone in sync would raise with every record, can be reached under load. A candidate that stalls, drains, dies,
registers anew or is no replica any more is one no longer, and the high watermark moves on without it: at the latest,
by a timer, when `replica.lag.time.max.ms` are over since it was last caught up.

Below `min.insync.replicas` the high watermark stands still, and to have reached it says little: joining takes being
caught up (KAFKA-19996), or a follower far behind would join, hold everybody up, and be thrown out again.

Source: Kafka's `Partition` (`maybeIncrementLeaderHW`, `isFollowerInSync`, `isReplicaIsrEligible`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ottla.broker.partition import Partition
from ottla.broker.replica.leader import LeaderState
from ottla.metadata.image import Image

_LOOKED_AT_AGAIN_S = 0.001  # at the soonest: a candidate that is caught up to the very moment isn't looked at for ever


class Candidates:
    """Of all partitions that this broker leads."""

    def __init__(self, image: Callable[[], Image], lag_max_s: Callable[[], float]) -> None:
        self._image = image
        self._lag_max_s = lag_max_s
        self._timers: dict[Partition, asyncio.TimerHandle] = {}

    def may_join(self, partition: Partition, replica: int) -> bool:
        """Whether the follower has what a member of the ISR must have, and is registered as it fetches."""
        leading = partition.leading
        assert leading is not None
        return (
            leading.has_committed(replica, partition.high_watermark)
            and self._is_registered(leading, replica)
            and (not partition.frozen or partition.is_caught_up(replica, self._lag_max_s()))
        )

    def weigh(self, partition: Partition) -> None:
        """Finds the partition's candidates anew. Called when a follower outside of the ISR has fetched, when
        registrations have changed, and when the time of a candidate is over."""
        leading = partition.leading
        if leading is None:
            return
        lag_max_s = self._lag_max_s()
        partition.wait_for(
            frozenset(
                replica
                for replica in leading.followers
                if replica not in leading.isr
                and self._is_registered(leading, replica)
                and partition.is_caught_up(replica, lag_max_s)
            )
        )
        if leading.candidates:
            self._look_again(partition, max(partition.candidates_last_for(lag_max_s), _LOOKED_AT_AGAIN_S))

    def stop(self) -> None:
        """Looks at nobody any more."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _look_again(self, partition: Partition, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        timer = self._timers.get(partition)
        if timer is not None:
            if timer.when() <= loop.time() + delay_s:
                return  # the candidate that this was for has been heard of since
            timer.cancel()
        self._timers[partition] = loop.call_later(delay_s, self._time_is_over, partition)

    def _time_is_over(self, partition: Partition) -> None:
        del self._timers[partition]
        self.weigh(partition)

    def _is_registered(self, leading: LeaderState, replica: int) -> bool:
        registered = self._image().brokers.get(replica)
        return (
            registered is not None
            and registered.electable
            and leading.followers[replica].broker_epoch == registered.epoch
        )
