"""The states of a transactional id, as tables. Pure.

An id has at most one transaction at a time, and goes round in a ring:

           partition added          EndTxn              all markers written
    Empty ────────────────→ Ongoing ──────→ Prepare… ─────────────────────→ Complete…
      ↑                        ↑                                               │ │
      │                        └───────────── partition added ─────────────────┘ │
      └──────────────────────────── InitProducerId ──────────────────────────────┘

Once the record of PrepareCommit or PrepareAbort is committed, the transaction is decided for ever: the coordinator
writes markers of that decision to all partitions of the transaction, also after failures and changes of coordinators.

Kafka has two protocols of clients. In the older one (here "V1") a producer keeps its epoch from one transaction to the
next. In the newer one ("V2", KIP-890) each transaction has an epoch of its own, because EndTxn raises the epoch: so a
delayed EndTxn can't end a later transaction. The version of a request says which protocol the client speaks.

Two further states exist in Kafka in memory only. Here they aren't states: an id whose tombstone is being written (Dead)
and a producer that is being fenced (PrepareEpochFence) are changes that are under way.

Source: Kafka's TransactionState, TransactionCoordinator.endTransaction and endTransactionWithTV1.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum

from ottla.protocol.errors import ErrorCode, KafkaError


class State(IntEnum):
    """The states of a transactional id, with the numbers that records have."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def label(self) -> str:
        """The name that DescribeTransactions and ListTransactions show."""
        return "".join(word.capitalize() for word in self.name.split("_"))


_EMPTY, _ONGOING, _PREPARE_COMMIT, _PREPARE_ABORT, _COMPLETE_COMMIT, _COMPLETE_ABORT = State

PREPARED = frozenset({_PREPARE_COMMIT, _PREPARE_ABORT})
"""The states in which the transaction is decided, and markers are being written."""

AT_REST = frozenset({_EMPTY, _COMPLETE_COMMIT, _COMPLETE_ABORT})
"""The states without a transaction. Only in these states an id expires."""

BY_LABEL: Mapping[str, State] = {state.label: state for state in State}
"""The states by the names that clients use."""

PREDECESSORS: Mapping[State, frozenset[State]] = {
    _EMPTY: AT_REST,
    _ONGOING: AT_REST | {_ONGOING},
    _PREPARE_COMMIT: frozenset({_ONGOING}),
    _PREPARE_ABORT: AT_REST | {_ONGOING},  # from a state at rest: an abort of V2 without any partition
    _COMPLETE_COMMIT: frozenset({_PREPARE_COMMIT}),
    _COMPLETE_ABORT: frozenset({_PREPARE_ABORT}),
}
"""The states that each state may follow."""


class End(Enum):
    """The outcome of an EndTxn whose producer id and epoch are right."""

    PREPARE = "decide the transaction"
    PREPARE_WITHOUT_PARTITIONS = "abort, although no partition was added; the epoch is raised"
    DONE = "answer NONE: this is a repeat, and the transaction has ended like that already"
    INVALID = "answer INVALID_TXN_STATE"
    FENCED = "answer PRODUCER_FENCED"


_INVALID_EITHER_WAY = {True: End.INVALID, False: End.INVALID}

END_V1: Mapping[State, Mapping[bool, End]] = {
    _EMPTY: _INVALID_EITHER_WAY,
    _ONGOING: {True: End.PREPARE, False: End.PREPARE},
    _COMPLETE_COMMIT: {True: End.DONE, False: End.INVALID},
    _COMPLETE_ABORT: {True: End.INVALID, False: End.DONE},
}
"""The outcome of an EndTxn of V1 with the current epoch, by the state and by whether the client commits. In the
PREPARED states CONCURRENT_TRANSACTIONS is the answer to every EndTxn with the current producer id and epoch."""

END_V2: Mapping[State, Mapping[bool, End]] = {
    _EMPTY: {True: End.INVALID, False: End.PREPARE_WITHOUT_PARTITIONS},
    _ONGOING: {True: End.PREPARE, False: End.PREPARE},
    _COMPLETE_COMMIT: {True: End.INVALID, False: End.PREPARE_WITHOUT_PARTITIONS},
    _COMPLETE_ABORT: {True: End.INVALID, False: End.PREPARE_WITHOUT_PARTITIONS},
}
"""The outcome of an EndTxn of V2 with the current epoch, by the state and by whether the client commits. Because the
epoch is the current one, the EndTxn isn't a repeat: the client knows the answer to its previous EndTxn. In the PREPARED
states CONCURRENT_TRANSACTIONS is the answer to every EndTxn of V2, because the coordinator may have told the client its
next producer id and epoch already."""

REPEATED_END_V2: Mapping[State, Mapping[bool, End]] = {
    _EMPTY: {True: End.FENCED, False: End.FENCED},
    _ONGOING: {True: End.FENCED, False: End.FENCED},
    _COMPLETE_COMMIT: {True: End.DONE, False: End.INVALID},
    _COMPLETE_ABORT: {True: End.INVALID, False: End.DONE},
}
"""The outcome of an EndTxn of V2 with the epoch before the current one, by the state and by whether the client commits.
Such an EndTxn repeats the one that raised the epoch."""

APPEND_ERROR: Mapping[ErrorCode, ErrorCode] = {
    ErrorCode.unknown_topic_or_partition: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas: ErrorCode.coordinator_not_available,
    ErrorCode.not_enough_replicas_after_append: ErrorCode.coordinator_not_available,
    ErrorCode.request_timed_out: ErrorCode.coordinator_not_available,
    ErrorCode.not_leader_or_follower: ErrorCode.not_coordinator,
    ErrorCode.fenced_leader_epoch: ErrorCode.not_coordinator,
    ErrorCode.kafka_storage_error: ErrorCode.not_coordinator,
    ErrorCode.message_too_large: ErrorCode.unknown_server_error,
    ErrorCode.record_list_too_large: ErrorCode.unknown_server_error,
}
"""The error that a producer gets, by the error with which a write to `__transaction_state` failed. Errors that aren't
listed reach the producer unchanged."""


def for_clients(error: KafkaError) -> KafkaError:
    """The error that a producer gets when a write to `__transaction_state` has failed with `error`."""
    return KafkaError(APPEND_ERROR.get(error.code, error.code), error.message)
