"""Counts the syncs of logs to the disk, in plain integers that are read at each scrape. Pure.

The name in Kafka is `LogFlushStats`.
"""

from __future__ import annotations

LATENCY_BUCKETS = 64  # bucket i counts syncs that took from 2**(i−1) to below 2**i µs


class FlushCounters:
    """How many syncs there were, and how long they took. The threads that sync count them: if two syncs end at the same
    instant, one may not be counted, which a statistic tolerates."""

    __slots__ = ("latency_buckets", "latency_microseconds")

    def __init__(self) -> None:
        self.latency_microseconds = 0
        self.latency_buckets = [0] * LATENCY_BUCKETS

    def flushed(self, microseconds: int) -> None:
        """Counts a sync that took `microseconds`."""
        self.latency_microseconds += microseconds
        self.latency_buckets[microseconds.bit_length()] += 1
