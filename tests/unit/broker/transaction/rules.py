"""Transactions and requests for the tests of the rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ottla.broker.transaction.decision import Decision, Moment, Wanted
from ottla.broker.transaction.metadata import TopicPartition, Transaction
from ottla.broker.transaction.states import AT_REST, State
from ottla.protocol.errors import ErrorCode

NOW_MS = 1_000_000
LEVEL_0, LEVEL_1, LEVEL_2 = (Moment(NOW_MS, level) for level in range(3))
A, B, C = (TopicPartition("t", index) for index in range(3))
PID, OTHER_PID, UNUSED_PID = 100, 200, 300


def known(state: State, epoch: int = 5, **fields: Any) -> Transaction:
    """A transaction of producer PID that writes to A and B, in `state`."""
    at_rest = state in AT_REST
    start_ms = -1 if state is State.EMPTY else NOW_MS - 1_000
    transaction = Transaction(
        PID, epoch, 60_000, state, frozenset() if at_rest else frozenset({A, B}), NOW_MS - 500, start_ms, PID
    )
    return replace(transaction, **fields)


def error(decision: Decision | Wanted) -> ErrorCode:
    """The error of a decision that changes nothing."""
    assert isinstance(decision, Decision)
    assert decision.after is None
    return decision.answer.error


def after(decision: Decision | Wanted) -> Transaction:
    """The state that a decision leads to."""
    assert isinstance(decision, Decision)
    assert decision.after is not None
    return decision.after
