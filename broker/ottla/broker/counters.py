"""The counters of the hot path: plain integers, which a scrape of the metrics reads. Pure.

Names follow Kafka's `BrokerTopicMetrics`, `ReplicaManager` and `RequestMetrics`; the page that exports them is
`exposition.py`.
"""

from __future__ import annotations

from ottla.broker.log.flush_counters import LATENCY_BUCKETS


class TopicCounters:
    """Traffic of one topic on this broker."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "bytes_rejected",
        "failed_fetch_requests",
        "failed_produce_requests",
        "fetch_requests",
        "messages_in",
        "produce_requests",
    )

    def __init__(self) -> None:
        self.messages_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.bytes_rejected = 0
        self.produce_requests = 0
        self.fetch_requests = 0
        self.failed_produce_requests = 0
        self.failed_fetch_requests = 0


class ApiCounters:
    """Requests of one API: their number, their bytes, the errors in their answers, and their latency, from a request's
    last byte received to its answer handed to the socket."""

    __slots__ = (
        "errors",
        "latency_buckets",
        "latency_microseconds",
        "request_bytes",
        "requests",
        "waited_microseconds",
    )

    def __init__(self) -> None:
        self.requests = 0
        self.request_bytes = 0
        self.latency_microseconds = 0
        self.waited_microseconds = 0
        self.latency_buckets = [0] * LATENCY_BUCKETS
        self.errors: dict[int, int] = {}

    @property
    def answers(self) -> int:
        """How many requests were answered."""
        return sum(self.latency_buckets)

    def answered(self, microseconds: int) -> None:
        """Counts one request, answered after `microseconds`."""
        self.latency_microseconds += microseconds
        self.latency_buckets[microseconds.bit_length()] += 1

    def answered_later(self, microseconds: int, waited_microseconds: int) -> None:
        """Counts one request, answered after `microseconds`, of which it spent `waited_microseconds` waiting."""
        self.answered(microseconds)
        self.waited_microseconds += waited_microseconds

    def failed(self, error: int) -> None:
        """Counts one error code of an answer."""
        self.errors[error] = self.errors.get(error, 0) + 1
