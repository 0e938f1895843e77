"""The rules of EndTxn: both tables of Kafka's, written out."""

from __future__ import annotations

import pytest

from ottla.broker.transaction.decision import Answer, Decision, Moment, Wanted
from ottla.broker.transaction.ending import Ending, aborted_by_coordinator, end
from ottla.broker.transaction.metadata import V1, V2, Transaction
from ottla.broker.transaction.states import PREPARED, State
from ottla.protocol.errors import ErrorCode

from .rules import LEVEL_0, LEVEL_1, LEVEL_2, NOW_MS, OTHER_PID, PID, UNUSED_PID, A, B, after, error, known

COMMIT, ABORT = True, False
EMPTY, ONGOING = State.EMPTY, State.ONGOING
PREPARE_COMMIT, PREPARE_ABORT = State.PREPARE_COMMIT, State.PREPARE_ABORT
COMPLETE_COMMIT, COMPLETE_ABORT = State.COMPLETE_COMMIT, State.COMPLETE_ABORT

# What Kafka 4.3.1 answers: a state is the one that the transaction enters, a number an error code.
Outcome = State | int
TABLE_V1: dict[State, tuple[Outcome, Outcome]] = {  # commit, abort
    EMPTY: (48, 48),
    ONGOING: (PREPARE_COMMIT, PREPARE_ABORT),
    PREPARE_COMMIT: (51, 51),
    PREPARE_ABORT: (51, 51),
    COMPLETE_COMMIT: (0, 48),
    COMPLETE_ABORT: (48, 0),
}
TABLE_V2: dict[State, tuple[Outcome, Outcome]] = {
    EMPTY: (48, PREPARE_ABORT),
    ONGOING: (PREPARE_COMMIT, PREPARE_ABORT),
    PREPARE_COMMIT: (51, 51),
    PREPARE_ABORT: (51, 51),
    COMPLETE_COMMIT: (48, PREPARE_ABORT),
    COMPLETE_ABORT: (48, PREPARE_ABORT),
}
TABLE_OF_REPEATS_V2: dict[State, tuple[Outcome, Outcome]] = {
    EMPTY: (90, 90),
    ONGOING: (90, 90),
    PREPARE_COMMIT: (51, 51),
    PREPARE_ABORT: (51, 51),
    COMPLETE_COMMIT: (0, 48),
    COMPLETE_ABORT: (48, 0),
}


def outcome(decision: Decision | Wanted) -> Outcome:
    assert isinstance(decision, Decision)
    return int(decision.answer.error) if decision.after is None else decision.after.state


def both(transaction: Transaction, epoch: int, version: int, producer_id: int = PID) -> tuple[Outcome, Outcome]:
    """The outcomes of a commit and of an abort."""
    commit, abort = (
        outcome(end(transaction, False, Ending(producer_id, epoch, how, version), LEVEL_2, UNUSED_PID))
        for how in (COMMIT, ABORT)
    )
    return commit, abort


@pytest.mark.parametrize("state", State)
def test_the_older_protocol(state: State) -> None:
    assert both(known(state), 5, V1) == TABLE_V1[state]
    for epoch in (4, 6):
        assert both(known(state), epoch, V1) == (90, 90)
    assert both(known(state), 5, V1, OTHER_PID) == (49, 49)


@pytest.mark.parametrize("state", State)
def test_the_newer_protocol(state: State) -> None:
    assert both(known(state), 5, V2) == TABLE_V2[state]
    assert both(known(state, client_version=V2), 4, V2) == TABLE_OF_REPEATS_V2[state]
    others = (51, 51) if state in PREPARED else (90, 90)
    for epoch in (3, 6):
        assert both(known(state), epoch, V2) == others
    assert both(known(state), 5, V2, OTHER_PID) == ((51, 51) if state in PREPARED else (49, 49))


@pytest.mark.parametrize("state", State)
def test_an_end_by_a_producer_whose_successor_speaks_the_older_protocol_is_fenced(state: State) -> None:
    """Seed 60722 of the simulation: the successor got the next epoch and ended its transaction, which keeps the epoch.
    The replaced producer's EndTxn was then taken for a repeat, and its answer named the successor's epoch."""
    fenced = (51, 51) if state in PREPARED else (90, 90)
    assert both(known(state, client_version=V1), 4, V2) == fenced


@pytest.mark.parametrize("state", State)
def test_a_change_under_way_is_waited_for(state: State) -> None:
    """With the newer protocol, every client has to wait, whatever producer id and epoch it states, because the client
    may know its next epoch before the change is done."""
    for ending in (Ending(PID, 5, COMMIT, V2), Ending(PID, 6, ABORT, V2), Ending(OTHER_PID, 0, ABORT, V2)):
        assert error(end(known(state), True, ending, LEVEL_2, None)) is ErrorCode.concurrent_transactions
    assert error(end(known(state), True, Ending(PID, 5, COMMIT, V1), LEVEL_2, None)) == 51
    assert error(end(known(state), True, Ending(PID, 6, COMMIT, V1), LEVEL_2, None)) == 90
    assert error(end(known(state), True, Ending(OTHER_PID, 5, COMMIT, V1), LEVEL_2, None)) == 49


def test_an_unknown_id_is_refused() -> None:
    for version in (V1, V2):
        ending = Ending(PID, 5, COMMIT, version)
        assert error(end(None, False, ending, LEVEL_2, None)) is ErrorCode.invalid_producer_id_mapping
    assert error(end(None, True, Ending(PID, 5, COMMIT, V2), LEVEL_2, None)) is ErrorCode.concurrent_transactions


@pytest.mark.parametrize("commit", [COMMIT, ABORT])
def test_the_older_protocol_keeps_the_epoch(commit: bool) -> None:
    decision = end(known(ONGOING, last_epoch=4), False, Ending(PID, 5, commit, V1), LEVEL_2, None)
    made = after(decision)
    assert isinstance(decision, Decision)
    assert decision.answer == Answer()
    assert (made.epoch, made.last_epoch, made.client_version) == (5, 4, V1)
    assert (made.partitions, made.start_ms, made.last_update_ms) == ({A, B}, NOW_MS - 1_000, NOW_MS)
    complete = made.completed(NOW_MS + 1)
    assert (complete.epoch, complete.partitions, complete.start_ms) == (5, frozenset(), NOW_MS - 1_000)
    assert complete.state is (COMPLETE_COMMIT if commit else COMPLETE_ABORT)


@pytest.mark.parametrize("commit", [COMMIT, ABORT])
def test_the_newer_protocol_raises_the_epoch_in_the_decision(commit: bool) -> None:
    decision = end(known(ONGOING), False, Ending(PID, 5, commit, V2), LEVEL_2, None)
    made = after(decision)
    assert isinstance(decision, Decision)
    assert decision.answer == Answer(ErrorCode.none, PID, 6)
    assert (made.epoch, made.last_epoch, made.client_version) == (6, 5, V2)
    complete = made.completed(NOW_MS + 1)
    assert (complete.producer_id, complete.epoch) == (PID, 6)
    repeat = end(complete, False, Ending(PID, 5, commit, V2), LEVEL_2, None)
    assert repeat == Decision(Answer(ErrorCode.none, PID, 6))


@pytest.mark.parametrize("state", [EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT])
def test_an_abort_without_partitions_raises_the_epoch(state: State) -> None:
    decision = end(known(state), False, Ending(PID, 5, ABORT, V2), LEVEL_2, None)
    made = after(decision)
    assert isinstance(decision, Decision)
    assert decision.answer == Answer(ErrorCode.none, PID, 6)
    assert (made.state, made.partitions, made.start_ms) == (PREPARE_ABORT, frozenset(), NOW_MS)


@pytest.mark.parametrize("commit", [COMMIT, ABORT])
def test_the_last_epoch_needs_the_next_producer_id(commit: bool) -> None:
    ending = Ending(PID, 32_766, commit, V2)
    ongoing = known(ONGOING, 32_766)
    assert end(ongoing, False, ending, LEVEL_2, None) is Wanted.PRODUCER_ID
    decision = end(ongoing, False, ending, LEVEL_2, UNUSED_PID)
    made = after(decision)
    assert isinstance(decision, Decision)
    assert decision.answer == Answer(ErrorCode.none, UNUSED_PID, 0)
    assert (made.producer_id, made.epoch, made.next_producer_id) == (PID, 32_767, UNUSED_PID)
    complete = made.completed(NOW_MS)
    assert (complete.producer_id, complete.epoch, complete.previous_producer_id) == (UNUSED_PID, 0, PID)
    assert complete.next_producer_id == -1
    repeat = end(complete, False, ending, LEVEL_2, None)
    assert repeat == Decision(Answer(ErrorCode.none, UNUSED_PID, 0))
    other = end(complete, False, ending._replace(commit=not commit), LEVEL_2, None)
    assert error(other) is ErrorCode.invalid_txn_state
    begun = complete.with_partitions({A}, V2, NOW_MS)
    assert error(end(begun, False, ending, LEVEL_2, None)) is ErrorCode.invalid_producer_id_mapping


def test_the_older_protocol_uses_the_last_epoch_up() -> None:
    made = after(end(known(ONGOING, 32_766), False, Ending(PID, 32_766, COMMIT, V1), LEVEL_2, None))
    assert (made.epoch, made.next_producer_id) == (32_766, -1)


# --- aborts by the coordinator ---


@pytest.mark.parametrize("moment", [LEVEL_0, LEVEL_1, LEVEL_2])
def test_an_abort_by_the_coordinator_fences_the_producer(moment: Moment) -> None:
    aborted = aborted_by_coordinator(known(ONGOING), moment, None)
    assert isinstance(aborted, Transaction)
    assert (aborted.state, aborted.epoch) == (PREPARE_ABORT, 6)
    complete = aborted.completed(NOW_MS)
    for version in (V1, V2):
        assert error(end(complete, False, Ending(PID, 5, COMMIT, version), moment, None)) in (
            ErrorCode.producer_fenced,
            ErrorCode.invalid_txn_state,
        )


def test_a_repeated_fence_raises_the_epoch_once() -> None:
    """The state changes with the committed record alone, so a fence whose append failed is decided from it anew."""
    ongoing = known(ONGOING)
    first, second = (aborted_by_coordinator(ongoing, LEVEL_0, None) for _ in range(2))
    assert first == second


def test_overdue_is_an_open_transaction_after_its_time_out() -> None:
    ongoing = known(ONGOING, start_ms=100, timeout_ms=50)
    assert not ongoing.overdue(150)
    assert ongoing.overdue(151)
    assert not any(known(state, start_ms=100).overdue(2**62) for state in State if state is not ONGOING)
