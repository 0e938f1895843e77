"""A table of consumers' racks and offsets, and of the replicas that they are sent to."""

from __future__ import annotations

import pytest

from ottla.broker.replica.selector import NONE, Candidate, preferred_replica

RACKS = {0: "a", 1: "b", 2: "b", 3: None}
FOLLOWERS = (Candidate(1, 0, 90), Candidate(2, 10, 100), Candidate(3, 0, 100))


@pytest.mark.parametrize(
    ("rack", "offset", "replica"),
    [
        ("a", 50, NONE),
        ("", 50, NONE),
        ("c", 50, NONE),
        ("b", 50, 2),
        ("b", 5, 1),
        ("b", 95, 2),
        ("b", 101, NONE),
    ],
)
def test_the_nearest_replica_that_has_the_offset(rack: str, offset: int, replica: int) -> None:
    assert preferred_replica(rack, RACKS, 0, offset, FOLLOWERS) == replica


def test_a_broker_that_is_gone_has_no_rack() -> None:
    assert preferred_replica("b", {0: "a", 2: "b"}, 0, 5, FOLLOWERS) == NONE
