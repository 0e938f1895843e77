"""Computes loads from the brokers' answers."""

from __future__ import annotations

import pytest

from ottla.balance.directories import Placed
from ottla.balance.loads import BrokerLoad, Goal, PartitionLoad
from ottla.balance.measured import DISK_SLACK_BYTES, Directory, Rates, Worked, loads, rates, read_worked

T = ("t", 0)


def test_rates_are_what_grew_by_the_time_between() -> None:
    before = Worked(100.0, 3.0, {T: (1000, 0)})
    after = Worked(110.0, 8.0, {T: (6000, 200), ("u", 1): (10, 0)})
    assert rates(before, after) == Rates(0.5, {T: (500.0, 20.0), ("u", 1): (1.0, 0.0)})


def test_a_counter_that_began_anew_counts_from_nothing() -> None:
    assert rates(Worked(0.0, 9.0, {T: (1000, 50)}), Worked(10.0, 1.0, {T: (30, 60)})) == Rates(0.1, {T: (3.0, 1.0)})


def test_one_picture_of_all_answers() -> None:
    measured = loads(
        {T: (1, 2), ("t", 1): (2,)},
        {1: "a", 2: None},
        {1: Rates(0.5, {T: (100.0, 30.0)}), 2: Rates(0.1, {})},
        [
            Directory(1, "/x", 1000, {T: 70}),
            Directory(1, "/y", 1000, {}),
            Directory(2, "/x", -1, {T: 50, ("t", 1): 20}),
        ],
    )
    assert measured.brokers == {1: BrokerLoad(1, "a", 2070.0), 2: BrokerLoad(2)}
    # The leader handles the incoming bytes, the copy for the follower, and the reads.
    assert measured.partitions == {T: PartitionLoad((1, 2), 70.0, 230.0, 100.0), ("t", 1): PartitionLoad((2,), 20.0)}
    assert measured.placed[2] == {T: Placed("/x", 50.0), ("t", 1): Placed("/x", 20.0)}
    assert measured.capacities[1] == {"/x": 1070.0, "/y": 1000.0}
    assert measured.cores == {1: 0.5, 2: 0.1}


def test_a_fiftieth_of_a_core_is_no_difference() -> None:
    measured = loads({T: (1,)}, {1: None}, {1: Rates(0.5, {T: (1000.0, 0.0)})}, [])
    assert measured.slack == {Goal.disk: DISK_SLACK_BYTES, Goal.cpu: pytest.approx(40.0)}


def test_brokers_that_tell_nothing_are_alike() -> None:
    measured = loads({T: (1,)}, {1: None}, {}, [])
    assert measured.slack[Goal.cpu] == 0.0


def test_what_a_broker_tells() -> None:
    told = '{"cpu_seconds":1.5,"partitions":{"t":{"0":[10,20]}}}'
    assert read_worked(7.0, told) == Worked(7.0, 1.5, {T: (10, 20)})
