"""The rules of EndTxn, and of the aborts that the coordinator itself decides. Pure.

The answer to EndTxn is given as soon as the decision is committed, before any marker is written. With V2 the answer
names the producer id and epoch of the client's next transaction.

Why a delayed or repeated EndTxn of V2 never ends a later transaction:

1. The record of the decision has the next epoch already, so each transaction of a producer id has an epoch of its own.
2. An EndTxn ends a transaction only if it has the transaction's own producer id and epoch.
3. An EndTxn with the epoch before the current one is a repeat if the latest transaction was one of V2. It changes
   nothing, and succeeds only while the transaction that it ended is the latest one and ended in the same way. If the
   latest transaction was one of V1, its end has kept the epoch, and a new producer has raised it: so the EndTxn comes
   from a producer that was replaced.

Source: Kafka's TransactionCoordinator.endTransaction and endTransactionWithTV1; KIP-890. Kafka takes the EndTxn of the
replaced producer for a repeat.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.protocol.errors import ErrorCode

from .decision import Answer, Decision, Moment, Wanted, refused
from .metadata import LAST_EPOCH_OF_PRODUCERS, NO_PRODUCER_ID, V2, Transaction
from .states import END_V1, END_V2, REPEATED_END_V2, End


class Ending(NamedTuple):
    """An EndTxn request. `client_version` is V2 if the request says that the client speaks that protocol, else V1."""

    producer_id: int
    epoch: int
    commit: bool
    client_version: int


_REFUSALS = {End.INVALID: ErrorCode.invalid_txn_state, End.FENCED: ErrorCode.producer_fenced}


def end(
    known: Transaction | None, under_way: bool, ending: Ending, moment: Moment, unused_producer_id: int | None
) -> Decision | Wanted:
    """Decides an EndTxn request. `under_way` and `unused_producer_id` are as in `initialization.initialize`."""
    if ending.client_version >= V2:
        return _end_v2(known, under_way, ending, moment, unused_producer_id)
    return _end_v1(known, under_way, ending, moment)


def _end_v1(known: Transaction | None, under_way: bool, ending: Ending, moment: Moment) -> Decision:
    if known is None or known.producer_id != ending.producer_id:
        return refused(ErrorCode.invalid_producer_id_mapping)
    if known.epoch != ending.epoch:
        return refused(ErrorCode.producer_fenced)
    if under_way or known.prepared:
        return refused(ErrorCode.concurrent_transactions)
    outcome = END_V1[known.state][ending.commit]
    if outcome is End.PREPARE:
        return Decision(Answer(), known.ended_v1(ending.commit, moment.now_ms))
    return Decision(Answer()) if outcome is End.DONE else refused(_REFUSALS[outcome])


def _end_v2(
    known: Transaction | None, under_way: bool, ending: Ending, moment: Moment, unused_producer_id: int | None
) -> Decision | Wanted:
    if under_way or (known is not None and known.prepared):
        return refused(ErrorCode.concurrent_transactions)
    if known is None:
        return refused(ErrorCode.invalid_producer_id_mapping)
    repeated = _is_repeat(known, ending)
    if known.producer_id != ending.producer_id and not repeated:
        return refused(ErrorCode.invalid_producer_id_mapping)
    if not repeated and known.epoch != ending.epoch:
        return refused(ErrorCode.producer_fenced)
    outcome = (REPEATED_END_V2 if repeated else END_V2)[known.state][ending.commit]
    if outcome is End.DONE:
        return Decision(Answer(ErrorCode.none, known.producer_id, known.epoch))
    if outcome not in (End.PREPARE, End.PREPARE_WITHOUT_PARTITIONS):
        return refused(_REFUSALS[outcome])
    after = _raised(known, ending.commit, moment, unused_producer_id)
    return after if isinstance(after, Wanted) else _decided(after)


def _is_repeat(known: Transaction, ending: Ending) -> bool:
    """Whether `ending` repeats the last EndTxn, which raised the id's epoch, or gave the id another producer id because
    no epoch was left. An EndTxn of V1 does neither."""
    if known.client_version < V2:
        return False
    if known.producer_id == ending.producer_id:
        return known.epoch == ending.epoch + 1
    return (
        known.previous_producer_id == ending.producer_id
        and ending.epoch == LAST_EPOCH_OF_PRODUCERS
        and known.epoch == 0
    )


def aborted_by_coordinator(known: Transaction, moment: Moment, unused_producer_id: int | None) -> Transaction | Wanted:
    """The state of an id after the coordinator itself has aborted the id's open transaction, because of the time-out or
    of a new producer. The epoch is raised, so that the old producer is fenced."""
    if moment.feature_level >= V2:
        return _raised(known, False, moment, unused_producer_id)
    return known.fenced_v1(moment.now_ms)


def _raised(known: Transaction, commit: bool, moment: Moment, unused_producer_id: int | None) -> Transaction | Wanted:
    if not known.epochs_used_up:
        return known.ended_v2(commit, moment.now_ms)
    if unused_producer_id is None:
        return Wanted.PRODUCER_ID
    return known.ended_v2(commit, moment.now_ms, unused_producer_id)


def _decided(after: Transaction) -> Decision:
    other_id = after.next_producer_id != NO_PRODUCER_ID
    producer_id, epoch = (after.next_producer_id, 0) if other_id else (after.producer_id, after.epoch)
    return Decision(Answer(ErrorCode.none, producer_id, epoch), after)
