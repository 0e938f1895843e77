"""Reading a query's newest committed decision from the topic of decisions, which many queries share."""

from __future__ import annotations

import pytest

from ottla.protocol.batches import Record, build_batch
from ottla.protocol.markers import Marker, marker_batch
from ottla.spark.ledger import last_committed


def record(producer: int, key: str, value: str) -> bytes:
    return build_batch([Record(0, 1, key.encode(), value.encode())], producer_id=producer, transactional=True)


def marker(producer: int, committed: bool) -> bytes:
    return bytes(marker_batch(producer, 0, Marker(committed, 0, 1)))


COMMITTED = [record(1, "q", "one"), marker(1, True)]


@pytest.mark.parametrize(
    ("batches", "found"),
    [
        ([], None),
        (COMMITTED, b"one"),
        ([*COMMITTED, record(1, "q", "two"), marker(1, True)], b"two"),
        ([*COMMITTED, record(1, "q", "two"), marker(1, False)], b"one"),
        ([*COMMITTED, record(1, "q", "two")], b"one"),  # its transaction is open
        ([*COMMITTED, record(2, "other", "two"), marker(2, True)], b"one"),
        ([record(1, "q", "one"), record(2, "other", "two"), marker(2, True), marker(1, True)], b"one"),
        ([record(1, "q", "one"), marker(2, True)], None),
        ([marker(1, True)], None),  # the record is before what was read
        ([*COMMITTED, build_batch([], producer_id=1, transactional=True, control=True)], b"one"),  # compacted
    ],
)
def test_the_newest_committed_decision(batches: list[bytes], found: bytes | None) -> None:
    assert last_committed(batches, b"q") == found
