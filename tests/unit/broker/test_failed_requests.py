"""The counters that a refused batch or partition increases."""

from __future__ import annotations

from ottla.broker.counters import ApiCounters, TopicCounters
from ottla.broker.failed_requests import FailedRequests
from ottla.protocol.errors import ErrorCode

ERROR = ErrorCode.corrupt_message


def test_a_failure_counts_for_its_api_and_for_its_topic() -> None:
    produce, fetch, topic = ApiCounters(), ApiCounters(), TopicCounters()
    failed = FailedRequests(produce, fetch, lambda name: topic if name == "t" else None)
    failed.count_produce("t", 100, ERROR)
    failed.count_produce("t", -1, ERROR)  # a null record set
    failed.count_produce("unknown", 100, ERROR)
    failed.count_fetch("t", ERROR)
    failed.count_fetch(b"\0" * 16, ERROR)
    assert (produce.errors, fetch.errors) == ({ERROR: 3}, {ERROR: 2})
    assert (topic.failed_produce_requests, topic.bytes_rejected) == (2, 100)
    assert (topic.fetch_requests, topic.failed_fetch_requests) == (1, 1)
