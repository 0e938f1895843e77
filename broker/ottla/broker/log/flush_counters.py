"""What the logs count when they are synced to the disk: plain integers, read when somebody scrapes. Pure.

The name in Kafka is `LogFlushStats`.
"""

from __future__ import annotations

LATENCY_BUCKETS = 64  # bucket i counts syncs that took from 2**(i−1) to below 2**i µs


class FlushCounters:
    """Syncs of logs to the disk: how many, how long they took. Counted in the threads that sync: of two that end at the
    same instant one may be lost, which a statistic bears."""

    __slots__ = ("latency_buckets", "latency_microseconds")

    def __init__(self) -> None:
        self.latency_microseconds = 0
        self.latency_buckets = [0] * LATENCY_BUCKETS

    def flushed(self, microseconds: int) -> None:
        """One sync took this long."""
        self.latency_microseconds += microseconds
        self.latency_buckets[microseconds.bit_length()] += 1
