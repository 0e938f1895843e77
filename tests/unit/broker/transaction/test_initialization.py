"""The rules of InitProducerId, row by row."""

from __future__ import annotations

import pytest

from ottla.broker.transaction.decision import Answer, Decision, Limits, Moment, Wanted
from ottla.broker.transaction.initialization import Init, Producer, initialize, refusal
from ottla.broker.transaction.metadata import V1, V2, created
from ottla.broker.transaction.states import AT_REST, State
from ottla.protocol.errors import ErrorCode

from .rules import LEVEL_0, LEVEL_1, LEVEL_2, NOW_MS, OTHER_PID, PID, UNUSED_PID, A, B, after, error, known

FRESH = Init(30_000)
RESTS = sorted(AT_REST)


def of(epoch: int, producer_id: int = PID) -> Init:
    return Init(30_000, Producer(producer_id, epoch))


def test_an_unknown_id_gets_a_producer_id_that_was_never_used() -> None:
    assert initialize(None, False, FRESH, LEVEL_2, None) is Wanted.PRODUCER_ID
    decision = initialize(None, False, FRESH, LEVEL_2, UNUSED_PID)
    assert decision == Decision(Answer(ErrorCode.none, UNUSED_PID, 0), created(UNUSED_PID, 30_000, NOW_MS))


def test_a_producer_whose_id_has_expired_gets_another_producer_id() -> None:
    made = after(initialize(None, False, of(5), LEVEL_2, UNUSED_PID))
    assert (made.producer_id, made.epoch, made.last_epoch) == (UNUSED_PID, 0, -1)


@pytest.mark.parametrize("state", RESTS)
def test_a_new_producer_gets_the_next_epoch(state: State) -> None:
    decision = initialize(known(state, last_epoch=4), False, FRESH, LEVEL_2, None)
    made = after(decision)
    assert isinstance(decision, Decision)
    assert decision.answer == Answer(ErrorCode.none, PID, 6)
    assert (made.state, made.epoch, made.last_epoch, made.timeout_ms) == (State.EMPTY, 6, -1, 30_000)
    assert (made.partitions, made.start_ms, made.last_update_ms) == (frozenset(), -1, NOW_MS)


@pytest.mark.parametrize("state", RESTS)
def test_a_producer_that_goes_on_gets_the_next_epoch_and_may_repeat_the_request(state: State) -> None:
    made = after(initialize(known(state), False, of(5), LEVEL_2, None))
    assert (made.epoch, made.last_epoch) == (6, 5)
    for _ in range(3):
        decision = initialize(made, False, of(5), LEVEL_2, None)
        assert isinstance(decision, Decision)
        assert decision.answer == Answer(ErrorCode.none, PID, 6)
        made = after(decision)
        assert (made.epoch, made.last_epoch) == (6, 5)


@pytest.mark.parametrize("state", RESTS)
@pytest.mark.parametrize("epoch", [3, 4, 6, 32_766])
def test_any_other_epoch_is_fenced(state: State, epoch: int) -> None:
    assert error(initialize(known(state), False, of(epoch), LEVEL_2, None)) is ErrorCode.producer_fenced


def test_a_repeat_is_fenced_after_another_producer_has_begun() -> None:
    made = after(initialize(known(State.EMPTY), False, of(5), LEVEL_2, None))
    made = after(initialize(made, False, FRESH, LEVEL_2, None))
    assert error(initialize(made, False, of(5), LEVEL_2, None)) is ErrorCode.producer_fenced
    assert error(initialize(made, False, of(6), LEVEL_2, None)) is ErrorCode.producer_fenced


@pytest.mark.parametrize("state", [*RESTS, State.ONGOING])
@pytest.mark.parametrize("epoch", [0, 5, 32_766])
def test_another_producer_id_is_fenced(state: State, epoch: int) -> None:
    assert error(initialize(known(state), False, of(epoch, OTHER_PID), LEVEL_2, None)) is ErrorCode.producer_fenced


@pytest.mark.parametrize("init", [FRESH, of(5), of(1), of(5, OTHER_PID)])
def test_a_change_under_way_is_waited_for(init: Init) -> None:
    for state in State:
        assert error(initialize(known(state), True, init, LEVEL_2, None)) is ErrorCode.concurrent_transactions
    assert error(initialize(None, True, init, LEVEL_2, None)) is ErrorCode.concurrent_transactions


@pytest.mark.parametrize("state", [State.PREPARE_COMMIT, State.PREPARE_ABORT])
@pytest.mark.parametrize("init", [FRESH, of(5), of(1), of(5, OTHER_PID)])
def test_the_end_of_a_transaction_is_waited_for(state: State, init: Init) -> None:
    assert error(initialize(known(state), False, init, LEVEL_2, None)) is ErrorCode.concurrent_transactions


# --- an open transaction ---


@pytest.mark.parametrize("moment", [LEVEL_0, LEVEL_1])
def test_an_open_transaction_is_aborted_in_a_fencing_epoch(moment: Moment) -> None:
    decision = initialize(known(State.ONGOING, last_epoch=4), False, FRESH, moment, None)
    made = after(decision)
    assert isinstance(decision, Decision)
    assert decision.answer == Answer(ErrorCode.concurrent_transactions)
    assert (made.state, made.epoch, made.last_epoch) == (State.PREPARE_ABORT, 6, -1)
    assert (made.client_version, made.partitions, made.timeout_ms) == (V1, frozenset({A, B}), 60_000)


def test_at_level_2_the_coordinator_aborts_by_the_newer_protocol() -> None:
    made = after(initialize(known(State.ONGOING, last_epoch=4), False, FRESH, LEVEL_2, None))
    assert (made.state, made.epoch, made.last_epoch) == (State.PREPARE_ABORT, 6, 5)
    assert (made.client_version, made.next_producer_id) == (V2, -1)


@pytest.mark.parametrize("moment", [LEVEL_0, LEVEL_2])
def test_the_retry_after_the_abort_raises_the_epoch_once_more(moment: Moment) -> None:
    aborted = after(initialize(known(State.ONGOING), False, FRESH, moment, None)).completed(NOW_MS)
    made = after(initialize(aborted, False, FRESH, moment, None))
    assert (made.state, made.epoch) == (State.EMPTY, 7)


# --- no epochs left ---


@pytest.mark.parametrize("state", RESTS)
def test_a_producer_without_epochs_gets_another_producer_id(state: State) -> None:
    at_end = known(state, 32_766)
    for init, last_epoch in ((FRESH, -1), (of(32_766), 32_766)):
        assert initialize(at_end, False, init, LEVEL_2, None) is Wanted.PRODUCER_ID
        decision = initialize(at_end, False, init, LEVEL_2, UNUSED_PID)
        made = after(decision)
        assert isinstance(decision, Decision)
        assert decision.answer == Answer(ErrorCode.none, UNUSED_PID, 0)
        assert (made.producer_id, made.epoch, made.last_epoch) == (UNUSED_PID, 0, last_epoch)
        assert made.previous_producer_id == PID


def test_the_answer_with_the_other_producer_id_can_be_asked_for_again() -> None:
    made = after(initialize(known(State.EMPTY, 32_766), False, of(32_766), LEVEL_2, UNUSED_PID))
    for _ in range(3):
        decision = initialize(made, False, of(32_766), LEVEL_2, None)
        assert isinstance(decision, Decision)
        assert decision.answer == Answer(ErrorCode.none, UNUSED_PID, 0)
        made = after(decision)
    assert error(initialize(made, False, of(32_765), LEVEL_2, None)) is ErrorCode.producer_fenced


def test_the_last_epoch_of_producers_can_be_asked_for_again() -> None:
    made = after(initialize(known(State.EMPTY, 32_765), False, of(32_765), LEVEL_2, None))
    assert made.epoch == 32_766
    decision = initialize(made, False, of(32_765), LEVEL_2, None)
    assert isinstance(decision, Decision)
    assert decision.answer == Answer(ErrorCode.none, PID, 32_766)


def test_a_fence_may_take_the_epoch_that_no_producer_gets() -> None:
    fenced = after(initialize(known(State.ONGOING, 32_766), False, FRESH, LEVEL_0, None))
    assert (fenced.producer_id, fenced.epoch) == (PID, 32_767)
    made = after(initialize(fenced.completed(NOW_MS), False, FRESH, LEVEL_0, UNUSED_PID))
    assert (made.producer_id, made.epoch) == (UNUSED_PID, 0)


def test_at_level_2_a_fence_without_epochs_needs_the_next_producer_id() -> None:
    ongoing = known(State.ONGOING, 32_766)
    assert initialize(ongoing, False, FRESH, LEVEL_2, None) is Wanted.PRODUCER_ID
    fenced = after(initialize(ongoing, False, FRESH, LEVEL_2, UNUSED_PID))
    assert (fenced.producer_id, fenced.epoch, fenced.next_producer_id) == (PID, 32_767, UNUSED_PID)
    made = after(initialize(fenced.completed(NOW_MS), False, FRESH, LEVEL_2, None))
    assert (made.producer_id, made.epoch) == (UNUSED_PID, 1)


# --- requests that are refused whatever the state ---


@pytest.mark.parametrize(
    ("transactional_id", "init", "expected"),
    [
        ("", FRESH, ErrorCode.invalid_request),
        ("id", Init(0), ErrorCode.invalid_transaction_timeout),
        ("id", Init(-1), ErrorCode.invalid_transaction_timeout),
        ("id", Init(900_001), ErrorCode.invalid_transaction_timeout),
        ("id", Init(900_000), ErrorCode.none),
        ("id", Init(1), ErrorCode.none),
        ("id", Init(1, two_phase=True), ErrorCode.transactional_id_authorization_failed),
        ("id", Init(1, two_phase=True, keep_prepared=True), ErrorCode.transactional_id_authorization_failed),
        ("id", Init(0, keep_prepared=True), ErrorCode.unsupported_version),
    ],
)
def test_refusals(transactional_id: str, init: Init, expected: ErrorCode) -> None:
    assert refusal(transactional_id, init, Limits()) is expected


def test_a_transaction_of_two_phases_never_times_out() -> None:
    allowing = Limits(two_phase_commit=True)
    assert refusal("id", Init(0, two_phase=True), allowing) is ErrorCode.none
    assert refusal("id", Init(1, two_phase=True, keep_prepared=True), allowing) is ErrorCode.unsupported_version
    made = after(initialize(None, False, Init(1, two_phase=True), LEVEL_2, UNUSED_PID))
    assert made.timeout_ms == 2**31 - 1
    assert not made.with_partitions({A}, V2, 0).overdue(2**62)
