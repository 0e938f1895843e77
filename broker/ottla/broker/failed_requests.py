"""Counts the batches of producers and the partitions of fetches that were refused.

Each refusal is counted for its API, by its error, and for its topic. Source: Kafka's BrokerTopicMetrics
(FailedProduceRequests, FailedFetchRequests, BytesRejected).
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.broker.counters import ApiCounters, TopicCounters


class FailedRequests:
    """Adds refusals to the counters of Produce, of Fetch and of the topics. `counters_of` gives a topic's counters, by
    the topic's name or the 16 bytes of its id; None for a topic that this broker doesn't have."""

    def __init__(
        self, produce: ApiCounters, fetch: ApiCounters, counters_of: Callable[[str | bytes], TopicCounters | None]
    ) -> None:
        self._produce = produce
        self._fetch = fetch
        self._counters_of = counters_of

    def count_produce(self, topic: str | bytes, size_bytes: int, error: int) -> None:
        """Counts a refused batch of a producer, of `size_bytes`."""
        self._produce.failed(error)
        counters = self._counters_of(topic)
        if counters is not None:
            counters.failed_produce_requests += 1
            counters.bytes_rejected += max(size_bytes, 0)

    def count_fetch(self, topic: str | bytes, error: int) -> None:
        """Counts a refused partition of a fetch."""
        self._fetch.failed(error)
        counters = self._counters_of(topic)
        if counters is not None:
            counters.fetch_requests += 1
            counters.failed_fetch_requests += 1
