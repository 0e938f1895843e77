"""The filters of ListTransactions."""

from __future__ import annotations

import pytest

from ottla.broker.transaction.listing import Wish, states_named
from ottla.broker.transaction.states import State

from .rules import NOW_MS, OTHER_PID, PID, known


@pytest.mark.parametrize(
    ("wish", "admitted"),
    [
        (Wish(), True),
        (Wish(nothing=True), False),
        (Wish(states=frozenset({State.ONGOING, State.EMPTY})), True),
        (Wish(states=frozenset({State.EMPTY})), False),
        (Wish(producer_ids=frozenset({PID, OTHER_PID})), True),
        (Wish(producer_ids=frozenset({OTHER_PID})), False),
        (Wish(longer_than_ms=999), True),
        (Wish(longer_than_ms=1_000), False),
        (Wish(longer_than_ms=0), True),
        (Wish(matches=lambda name: name == "id"), True),
        (Wish(matches=lambda name: False), False),
    ],
)
def test_filters(wish: Wish, admitted: bool) -> None:
    assert wish.admits("id", known(State.ONGOING), NOW_MS) is admitted


def test_unknown_names_of_states_are_told_apart() -> None:
    assert states_named(["Ongoing", "Lost", "Empty"]) == ({State.ONGOING, State.EMPTY}, ["Lost"])
