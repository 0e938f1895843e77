"""Which open transactions hang, by what leaders and coordinators say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ottla.cli.open_transactions import (
    Coordinated,
    OpenTransaction,
    coordinated_by,
    hanging,
    open_transactions,
    written_before,
)


def producer(producer_id: int, start: int, last_timestamp: int = 100) -> Any:
    return SimpleNamespace(
        producer_id=producer_id,
        producer_epoch=4,
        last_sequence=9,
        last_timestamp=last_timestamp,
        coordinator_epoch=2,
        current_transaction_start_offset=start,
    )


OPEN = OpenTransaction("t", 0, start_offset=7, producer_id=1, producer_epoch=4, coordinator_epoch=2, last_timestamp=100)


def test_only_producers_with_a_start_offset_have_an_open_transaction() -> None:
    described = {("t", 1): [producer(3, 5)], ("t", 0): [producer(2, 30), producer(4, -1), producer(1, 7)]}
    found = open_transactions(described)
    assert [(one.partition, one.start_offset, one.producer_id) for one in found] == [(0, 7, 1), (0, 30, 2), (1, 5, 3)]
    assert found[0] == OPEN
    assert found[0].name == "t:0"


def test_a_transaction_is_old_by_its_last_batch() -> None:
    young = OPEN._replace(last_timestamp=101)
    assert written_before([OPEN, young], 100) == [OPEN]


def test_a_coordinator_ends_a_transaction_in_the_partitions_that_it_lists() -> None:
    mine = Coordinated("id", "Ongoing", {("t", 0), ("t", 1)})
    assert coordinated_by(OPEN, {1: mine}) == mine
    assert coordinated_by(OPEN._replace(partition=2), {1: mine}) is None
    assert coordinated_by(OPEN, {2: mine}) is None


def test_a_transaction_that_no_coordinator_lists_hangs() -> None:
    other = OPEN._replace(producer_id=2, start_offset=9)
    listed = {1: Coordinated("id", "PrepareCommit", [("t", 0)])}
    assert hanging([OPEN, other], listed, [OPEN, other]) == [other]


def test_a_transaction_that_has_ended_meanwhile_does_not_hang() -> None:
    complete = {1: Coordinated("id", "CompleteCommit", [])}
    next_one = OPEN._replace(start_offset=12)
    assert hanging([OPEN], complete, [next_one]) == []
    assert hanging([OPEN], complete, []) == []
    later = OPEN._replace(last_timestamp=500)
    assert hanging([OPEN], complete, [later]) == [later]
