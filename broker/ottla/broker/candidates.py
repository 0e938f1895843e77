"""The followers that may join an ISR. The high watermark waits for them before they join.

A *candidate* is a follower outside of the ISR whose broker's registration lets it join and that was caught up within
the last `replica.lag.time.max.ms`. While a partition has a candidate, no record is committed that the candidate lacks.
So a follower can reach the high watermark under load, although a leader that is the only in-sync replica would raise it
with every record. A follower that stalls, drains, dies, registers anew or is no longer a replica is no longer a
candidate, and the high watermark moves on without it: at the latest, by a timer, when `replica.lag.time.max.ms` are
over since it was last caught up.

While the ISR is smaller than `min.insync.replicas`, the high watermark doesn't move, so a follower that has reached it
may still be far behind the log's end. Then only a caught-up follower may join (KAFKA-19996): otherwise a follower far
behind would join, delay all commits, and be removed again.

Source: Kafka's `Partition` (`maybeIncrementLeaderHW`, `isFollowerInSync`, `isReplicaIsrEligible`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ottla.broker.partition import Partition
from ottla.broker.replica.leader import LeaderState
from ottla.metadata.image import Image

_LOOKED_AT_AGAIN_S = 0.001  # the shortest delay: the timer mustn't fire without end for a candidate at its limit


class Candidates:
    """The candidates of all partitions that this broker leads."""

    def __init__(self, image: Callable[[], Image], lag_max_s: Callable[[], float]) -> None:
        self._image = image
        self._lag_max_s = lag_max_s
        self._timers: dict[Partition, asyncio.TimerHandle] = {}

    def may_join(self, partition: Partition, replica: int) -> bool:
        """Whether the follower has all records that a member of the ISR must have, and fetches under its broker's
        present registration."""
        leading = partition.leading
        assert leading is not None
        if not leading.has_committed(replica, partition.high_watermark) or not self._is_registered(leading, replica):
            return False
        end, now = partition.log.log_end_offset, partition.clock()
        return not partition.frozen or leading.caught_up(replica, end, now, self._lag_max_s())

    def weigh(self, partition: Partition) -> None:
        """Determines the partition's candidates anew. Called when a follower outside of the ISR has fetched, when
        registrations have changed, and when a candidate's time since it was caught up may be over."""
        leading = partition.leading
        if leading is None:
            return
        end, now, lag_max_s = partition.log.log_end_offset, partition.clock(), self._lag_max_s()
        partition.wait_for(
            frozenset(
                replica
                for replica in leading.followers
                if replica not in leading.isr
                and self._is_registered(leading, replica)
                and leading.caught_up(replica, end, now, lag_max_s)
            )
        )
        if leading.candidates:
            self._look_again(partition, max(leading.candidates_last_for(end, now, lag_max_s), _LOOKED_AT_AGAIN_S))

    def stop(self) -> None:
        """Cancels all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _look_again(self, partition: Partition, delay_s: float) -> None:
        loop = asyncio.get_running_loop()
        timer = self._timers.get(partition)
        if timer is not None:
            if timer.when() <= loop.time() + delay_s:
                return  # the timer fires early enough
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
