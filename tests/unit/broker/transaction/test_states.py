"""The tables of the states of a transactional id."""

from __future__ import annotations

import pytest

from ottla.broker.transaction.states import (
    APPEND_ERROR,
    AT_REST,
    BY_LABEL,
    END_V1,
    END_V2,
    PREDECESSORS,
    PREPARED,
    REPEATED_END_V2,
    End,
    State,
    for_clients,
)
from ottla.protocol.errors import ErrorCode, KafkaError


def test_states_have_kafkas_names() -> None:
    assert sorted(BY_LABEL) == [
        "CompleteAbort", "CompleteCommit", "Empty", "Ongoing", "PrepareAbort", "PrepareCommit",
    ]  # fmt: skip


def test_a_decision_is_never_taken_back() -> None:
    followers = {state: {after for after, before in PREDECESSORS.items() if state in before} for state in State}
    assert followers[State.PREPARE_COMMIT] == {State.COMPLETE_COMMIT}
    assert followers[State.PREPARE_ABORT] == {State.COMPLETE_ABORT}
    assert State.PREPARE_COMMIT not in followers[State.EMPTY] | followers[State.COMPLETE_COMMIT]


@pytest.mark.parametrize("table", [END_V1, END_V2, REPEATED_END_V2])
def test_every_state_without_a_decision_has_a_row(table: dict[State, dict[bool, End]]) -> None:
    assert set(table) == set(State) - PREPARED == AT_REST | {State.ONGOING}
    assert all(set(row) == {True, False} for row in table.values())


def test_only_an_open_transaction_is_committed() -> None:
    for table in (END_V1, END_V2, REPEATED_END_V2):
        for state, row in table.items():
            if state is not State.ONGOING:
                assert row[True] in (End.DONE, End.INVALID, End.FENCED)
            assert state is State.COMPLETE_COMMIT or row[True] is not End.DONE
            assert state is State.COMPLETE_ABORT or row[False] is not End.DONE


@pytest.mark.parametrize(
    ("of_the_log", "of_the_producer"),
    [(3, 15), (7, 15), (19, 15), (20, 15), (6, 16), (56, 16), (74, 16), (10, -1), (18, -1), (87, 87)],
)
def test_errors_of_appends_become_errors_of_coordinators(of_the_log: int, of_the_producer: int) -> None:
    assert for_clients(KafkaError(ErrorCode(of_the_log))).code == ErrorCode(of_the_producer)
    assert of_the_producer == of_the_log or ErrorCode(of_the_log) in APPEND_ERROR
