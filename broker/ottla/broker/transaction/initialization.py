"""The rules of InitProducerId for a transactional id. Pure.

A producer that begins anew gets the next epoch, so that its predecessors of the same id are fenced. If a predecessor
left an open transaction, the coordinator aborts it first, and the producer asks again. A producer that goes on after an
error states its present id and epoch (KIP-360), and is refused if another producer has taken over the id since. If no
epochs are left, the producer gets another producer id.

Source: Kafka's TransactionCoordinator.handleInitProducerId, prepareInitProducerIdTransit; KIP-360, KIP-939.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ottla.protocol.errors import ErrorCode

from .decision import Answer, Decision, Limits, Moment, Wanted, refused
from .ending import aborted_by_coordinator
from .metadata import LAST_EPOCH_OF_PRODUCERS, NEVER_TIMED_OUT_MS, NO_EPOCH, Transaction, created
from .states import State


class Producer(NamedTuple):
    """A producer id with an epoch."""

    id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Init:
    """An InitProducerId request. `present` is the client's present producer id and epoch; None if the client begins
    anew.

    With `two_phase` another system decides about the producer's transactions, and they never time out. With
    `keep_prepared` an open transaction isn't aborted. Both fields come with version 6 of the request (KIP-939), which
    Kafka doesn't advertise.
    """

    timeout_ms: int
    present: Producer | None = None
    two_phase: bool = False
    keep_prepared: bool = False


def refusal(transactional_id: str, init: Init, limits: Limits) -> ErrorCode:
    """The error of a request that is wrong in any state of its id; NONE for all other requests."""
    if not transactional_id:
        return ErrorCode.invalid_request
    if init.two_phase and not limits.two_phase_commit:
        return ErrorCode.transactional_id_authorization_failed
    if init.keep_prepared:
        return ErrorCode.unsupported_version
    if not init.two_phase and not 0 < init.timeout_ms <= limits.timeout_ms_max:
        return ErrorCode.invalid_transaction_timeout
    return ErrorCode.none


def initialize(
    known: Transaction | None, under_way: bool, init: Init, moment: Moment, unused_producer_id: int | None
) -> Decision | Wanted:
    """Decides a request that `refusal` doesn't refuse. `known` is None for an id without state. `under_way` says that
    a change of the id isn't committed yet. `unused_producer_id` is a producer id that was never used, None if there is
    none at hand."""
    timeout_ms = NEVER_TIMED_OUT_MS if init.two_phase else init.timeout_ms
    if under_way:
        return refused(ErrorCode.concurrent_transactions)
    if known is None:
        if unused_producer_id is None:
            return Wanted.PRODUCER_ID
        return _begun(created(unused_producer_id, timeout_ms, moment.now_ms))
    if known.prepared:
        return refused(ErrorCode.concurrent_transactions)
    if init.present is not None and not _may_be(init.present, known):
        return refused(ErrorCode.producer_fenced)
    if known.state is State.ONGOING:
        # The epoch of the abort is never given to a producer. The client asks again, and gets the epoch after that one.
        aborted = aborted_by_coordinator(known, moment, unused_producer_id)
        if isinstance(aborted, Wanted):
            return aborted
        return Decision(Answer(ErrorCode.concurrent_transactions), aborted)
    return _begins_anew(known, init.present, timeout_ms, moment, unused_producer_id)


def _may_be(present: Producer, known: Transaction) -> bool:
    """Whether `present` may be a producer of the id whose state is `known`. Only the producer id is judged, and whether
    the producer had used up its epochs."""
    if present.id == known.producer_id:
        return True
    # The producer has used up its epochs, and may not have got the answer that gave it another id.
    return present.id == known.previous_producer_id and present.epoch >= LAST_EPOCH_OF_PRODUCERS


def _begins_anew(
    known: Transaction, present: Producer | None, timeout_ms: int, moment: Moment, unused_producer_id: int | None
) -> Decision | Wanted:
    if present is None or present.epoch == known.epoch:
        last_epoch = NO_EPOCH if present is None else known.epoch
        if not known.epochs_used_up:
            return _begun(known.initialized(known.epoch + 1, last_epoch, timeout_ms, moment.now_ms))
        if unused_producer_id is None:
            return Wanted.PRODUCER_ID
        return _begun(known.rotated(unused_producer_id, last_epoch, timeout_ms, moment.now_ms))
    if present.epoch == known.last_epoch:  # a repeat: the producer didn't get the answer
        return _begun(known.initialized_again(timeout_ms, moment.now_ms))
    return refused(ErrorCode.producer_fenced)


def _begun(after: Transaction) -> Decision:
    return Decision(Answer(ErrorCode.none, after.producer_id, after.epoch), after)
