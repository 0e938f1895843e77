"""The rules of AddPartitionsToTxn."""

from __future__ import annotations

import pytest

from ottla.broker.transaction.additions import add, verified
from ottla.broker.transaction.decision import Answer, Decision
from ottla.broker.transaction.initialization import Producer
from ottla.broker.transaction.metadata import V1, V2
from ottla.broker.transaction.states import AT_REST, PREPARED, State
from ottla.protocol.errors import ErrorCode

from .rules import NOW_MS, OTHER_PID, PID, A, B, C, after, error, known

ME = Producer(PID, 5)


@pytest.mark.parametrize("state", sorted(AT_REST))
@pytest.mark.parametrize("version", [V1, V2])
def test_the_first_partition_begins_the_transaction(state: State, version: int) -> None:
    made = after(add(known(state), False, ME, {A}, version, NOW_MS))
    assert (made.state, made.partitions, made.start_ms) == (State.ONGOING, {A}, NOW_MS)
    assert (made.last_update_ms, made.client_version, made.epoch) == (NOW_MS, version, 5)


def test_further_partitions_join_the_transaction_and_leave_its_clock() -> None:
    made = after(add(known(State.ONGOING), False, ME, {B, C}, V1, NOW_MS))
    assert (made.state, made.partitions, made.start_ms) == (State.ONGOING, {A, B, C}, NOW_MS - 1_000)
    assert made.last_update_ms == NOW_MS


def test_nothing_is_written_for_partitions_that_are_there() -> None:
    for partitions in ({A}, {A, B}, set()):
        assert add(known(State.ONGOING), False, ME, partitions, V1, NOW_MS) == Decision(Answer())


@pytest.mark.parametrize(("state", "under_way"), [(s, True) for s in State] + [(s, False) for s in sorted(PREPARED)])
@pytest.mark.parametrize("producer", [ME, Producer(PID, 6), Producer(PID, 4), Producer(OTHER_PID, 0)])
def test_a_change_under_way_is_waited_for_whoever_asks(state: State, under_way: bool, producer: Producer) -> None:
    """By the newer protocol a client may know its next epoch, or its next producer id, before the change is done."""
    assert error(add(known(state), under_way, producer, {A}, V2, NOW_MS)) is ErrorCode.concurrent_transactions


@pytest.mark.parametrize("state", [*sorted(AT_REST), State.ONGOING])
def test_other_producers_are_refused(state: State) -> None:
    for producer_id in (OTHER_PID, -1):
        refused = add(known(state), False, Producer(producer_id, 5), {A}, V1, NOW_MS)
        assert error(refused) is ErrorCode.invalid_producer_id_mapping
    for epoch in (4, 6):
        assert error(add(known(state), False, Producer(PID, epoch), {A}, V1, NOW_MS)) is ErrorCode.producer_fenced


def test_an_unknown_id_is_refused() -> None:
    assert error(add(None, False, ME, {A}, V1, NOW_MS)) is ErrorCode.invalid_producer_id_mapping
    assert error(add(None, True, ME, {A}, V1, NOW_MS)) is ErrorCode.concurrent_transactions


def test_verification_answers_for_each_partition() -> None:
    assert verified(known(State.ONGOING), ME, {A, B, C}) == {
        A: ErrorCode.none,
        B: ErrorCode.none,
        C: ErrorCode.transaction_abortable,
    }


@pytest.mark.parametrize("state", sorted(AT_REST))
def test_verification_finds_no_partition_without_a_transaction(state: State) -> None:
    assert verified(known(state), ME, {A}) == {A: ErrorCode.transaction_abortable}


@pytest.mark.parametrize("state", sorted(PREPARED))
def test_verification_waits_for_the_end_of_a_transaction(state: State) -> None:
    assert verified(known(state), ME, {A}) == {A: ErrorCode.concurrent_transactions}
    assert verified(known(state), Producer(PID, 4), {A}) == {A: ErrorCode.producer_fenced}


def test_verification_refuses_other_producers() -> None:
    assert verified(None, ME, {A}) == {A: ErrorCode.invalid_producer_id_mapping}
    assert verified(known(State.ONGOING), Producer(OTHER_PID, 5), {A}) == {A: ErrorCode.invalid_producer_id_mapping}
    assert verified(known(State.ONGOING), Producer(PID, 4), {A}) == {A: ErrorCode.producer_fenced}
