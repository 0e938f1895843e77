"""Guards: a batch begins a transaction only if nothing of its producer was appended after its coordinator was asked."""

from __future__ import annotations

import pytest

from ottla.broker.verification import Guard, Verifications
from ottla.protocol.batches import CONTROL, TRANSACTIONAL, BatchHeader
from ottla.protocol.errors import ErrorCode, KafkaError

DAY_MS = 86_400_000


def header(epoch: int = 0, sequence: int = 0, *, control: bool = False) -> BatchHeader:
    attributes = TRANSACTIONAL | (CONTROL if control else 0)
    return BatchHeader(0, 49, 0, 2, 0, attributes, 0, 0, 0, 7, epoch, sequence, 1)


def ask(verifications: Verifications, epoch: int = 0, sequence: int = 0, *, bumps: bool = False, at: int = 0) -> Guard:
    return verifications.ask(7, epoch, sequence, bumps=bumps, now_ms=at, expiration_ms=DAY_MS)


def test_a_guard_is_current_until_something_is_appended() -> None:
    verifications = Verifications()
    guard = ask(verifications)
    assert ask(verifications) is guard, "one question for all batches that wait"
    assert verifications.is_current(7, guard)
    assert not verifications.is_current(8, guard)
    assert not verifications.is_current(7, None)
    verifications.appended(header())
    assert not verifications.is_current(7, guard)
    assert ask(verifications) is not guard


def test_the_marker_of_the_transaction_ends_the_question() -> None:
    verifications = Verifications()
    guard = ask(verifications)
    verifications.appended(header(control=True))
    assert not verifications.is_current(7, guard)


@pytest.mark.parametrize(("marker_epoch", "kept"), [(1, True), (0, False)])
def test_a_marker_with_the_next_transactions_epoch_leaves_that_transactions_question(
    marker_epoch: int, kept: bool
) -> None:
    verifications = Verifications()
    guard = ask(verifications, epoch=1, bumps=True)
    verifications.appended(header(epoch=marker_epoch, control=True))
    assert verifications.is_current(7, guard) == kept
    verifications.appended(header(epoch=1))
    assert not verifications.is_current(7, guard)


def test_a_newer_epoch_fences_the_questions_of_older_ones() -> None:
    verifications = Verifications()
    old = ask(verifications, epoch=1)
    new = ask(verifications, epoch=2)
    assert not verifications.is_current(7, old)
    assert verifications.is_current(7, new)
    assert not verifications.is_current(7, ask(verifications, epoch=1))
    assert verifications.is_current(7, new)


def refused(verifications: Verifications, batch: BatchHeader, *, known: bool) -> bool:
    try:
        verifications.check_sequence(batch, known)
    except KafkaError as error:
        return error.code == ErrorCode.out_of_order_sequence_number
    return False


def test_the_first_of_several_batches_begins_the_transaction() -> None:
    verifications = Verifications()
    assert not refused(verifications, header(sequence=9), known=False)
    ask(verifications, sequence=5)
    ask(verifications, sequence=4)
    ask(verifications, sequence=6)
    assert refused(verifications, header(sequence=5), known=True)
    assert not refused(verifications, header(sequence=4), known=True)


def test_an_unknown_producer_of_protocol_2_begins_with_sequence_0() -> None:
    verifications = Verifications()
    ask(verifications, sequence=4, bumps=True)
    assert refused(verifications, header(sequence=4), known=False)
    assert not refused(verifications, header(sequence=4), known=True)


def test_guards_expire_and_are_dropped() -> None:
    verifications = Verifications()
    old = ask(verifications, at=0)
    verifications.ask(8, 0, 0, bumps=False, now_ms=DAY_MS - 1, expiration_ms=DAY_MS)
    assert verifications.is_current(7, old)
    verifications.ask(9, 0, 0, bumps=False, now_ms=DAY_MS, expiration_ms=DAY_MS)
    assert not verifications.is_current(7, old)
    assert len(verifications) == 2
    verifications.clear()
    assert len(verifications) == 0
