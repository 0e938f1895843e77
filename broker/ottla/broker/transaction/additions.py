"""The rules of AddPartitionsToTxn and AddOffsetsToTxn: a transaction writes to further partitions. Pure.

The partitions are written to `__transaction_state` before the producer writes to them, so that the coordinator knows
all partitions of a transaction when it ends the transaction. Before a partition's leader appends the producer's first
batch, the leader asks by the same API whether the partition belongs to the transaction (`verified`, KIP-890).

Source: Kafka's TransactionCoordinator.handleAddPartitionsToTransaction, handleVerifyPartitionsInTransaction.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from ottla.protocol.errors import ErrorCode

from .decision import Answer, Decision, refused
from .initialization import Producer
from .metadata import TopicPartition, Transaction
from .states import State


def add(
    known: Transaction | None,
    under_way: bool,
    producer: Producer,
    partitions: Set[TopicPartition],
    client_version: int,
    now_ms: int,
) -> Decision:
    """Decides a request to add `partitions` to the transaction of `producer`. `client_version` is V2 if the request's
    version says that the client speaks that protocol, else V1."""
    if under_way or (known is not None and known.prepared):
        # The producer id and the epoch aren't looked at yet: the client may know its next id and epoch already.
        return refused(ErrorCode.concurrent_transactions)
    if known is None or known.producer_id != producer.id:
        return refused(ErrorCode.invalid_producer_id_mapping)
    if known.epoch != producer.epoch:
        return refused(ErrorCode.producer_fenced)
    if known.state is State.ONGOING and partitions <= known.partitions:
        return Decision(Answer())
    return Decision(Answer(), known.with_partitions(partitions, client_version, now_ms))


def verified(
    known: Transaction | None, producer: Producer, partitions: Set[TopicPartition]
) -> Mapping[TopicPartition, ErrorCode]:
    """For each partition: NONE if it belongs to the transaction of `producer`, else the error. A change that isn't
    committed yet doesn't count, because the partition's leader checks the batch once more when it appends the batch."""
    error = ErrorCode.none
    if known is None or known.producer_id != producer.id:
        error = ErrorCode.invalid_producer_id_mapping
    elif known.epoch != producer.epoch:
        error = ErrorCode.producer_fenced
    elif known.prepared:
        error = ErrorCode.concurrent_transactions
    if known is None or error is not ErrorCode.none:
        return dict.fromkeys(partitions, error)
    return {
        partition: ErrorCode.none if partition in known.partitions else ErrorCode.transaction_abortable
        for partition in partitions
    }
