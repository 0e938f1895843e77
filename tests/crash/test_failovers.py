"""Tests of the count of failovers, which needs no broker."""

from __future__ import annotations

from tests.crash.failovers import by_topic, failovers, leader_changes


def line(second: float, partition: str, epoch: int) -> str:
    return f"2026-01-31 12:00:{second:06.3f} INFO    partition: {partition}: leads in epoch {epoch} from offset 7\n"


def test_epochs_of_the_same_leader_and_first_epochs_are_no_leader_changes() -> None:
    logs = {0: line(1, "t-0", 0) + line(2, "t-0", 1), 1: line(1, "t-1", 0) + "unrelated\n"}
    assert leader_changes(logs) == []


def test_partitions_that_a_broker_loses_together_are_one_failover() -> None:
    logs = {
        0: line(1, "t-0", 0) + line(1, "a-b-3", 0) + line(30, "t-0", 2),
        1: line(9, "t-0", 1),
        2: line(9.5, "a-b-3", 4),
    }
    changes = leader_changes(logs)
    assert [(each.topic, each.index, each.before, each.after) for each in changes] == [
        ("t", 0, 0, 1), ("a-b", 3, 0, 2), ("t", 0, 1, 0),
    ]  # fmt: skip
    assert by_topic(changes) == {"t": 2, "a-b": 1}
    assert failovers(changes) == 2
