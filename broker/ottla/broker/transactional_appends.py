"""The checks before a leader appends a batch of a transaction, or a transaction's marker. Pure.

The checks depend on the origin of the batch:

| origin | epoch | sequence and repeats | inside a transaction | guard |
|---|---|---|---|---|
| a client's batch (`Producers.check`, `check_beginning`) | yes | yes | transactional data only | yes |
| a coordinator's batch (`check_coordinators`) | yes | no, it has no sequence | transactional data only | yes |
| a coordinator's marker (`check_marker`) | by the protocol version | no | | |
| a leader's batch, on a follower | no | no | no | no |

Source: Kafka's AppendOrigin, ProducerAppendInfo and UnifiedLog.analyzeAndValidateProducerState.
"""

from __future__ import annotations

from typing import Protocol

from ottla.protocol.batches import BatchHeader
from ottla.protocol.errors import ErrorCode, KafkaError

from .verification import Guard, Verifications

EPOCH_MAX = 32767
EPOCH_PER_TRANSACTION = 2  # from this version of the protocol on, each marker has a new epoch (KIP-890)


class ProducerState(Protocol):
    """The part of a producer's state in a partition that the checks read."""

    @property
    def epoch(self) -> int: ...
    @property
    def coordinator_epoch(self) -> int: ...
    @property
    def transaction_start(self) -> int: ...


def in_transaction(known: ProducerState | None, epoch: int) -> bool:
    """Whether the producer has an open transaction in the partition, begun in the producer epoch `epoch`."""
    return known is not None and known.transaction_start >= 0 and known.epoch == epoch


def check_epoch(known: ProducerState | None, producer_id: int, epoch: int) -> None:
    """Raises KafkaError INVALID_PRODUCER_EPOCH if the partition knows a newer epoch of the producer."""
    if known is not None and epoch < known.epoch:
        raise _fenced(producer_id, known.epoch, epoch)


def check_beginning(
    known: ProducerState | None,
    header: BatchHeader,
    verifications: Verifications,
    guard: Guard | None,
    *,
    from_client: bool,
) -> None:
    """Checks that a transactional batch continues an open transaction, or that its `guard` lets it begin one. Raises
    KafkaError INVALID_TXN_STATE, and OUT_OF_ORDER_SEQUENCE_NUMBER as `Verifications.check_sequence` does."""
    if in_transaction(known, header.producer_epoch):
        return
    if not verifications.is_current(header.producer_id, guard):
        raise KafkaError(
            ErrorCode.invalid_txn_state,
            f"producer {header.producer_id} has no transaction in this partition that its coordinator has confirmed",
        )
    if from_client:
        verifications.check_sequence(header, known is not None)


def check_coordinators(
    known: ProducerState | None, header: BatchHeader, verifications: Verifications, guard: Guard | None
) -> None:
    """Checks a batch that a coordinator writes with a producer id. Raises KafkaError INVALID_PRODUCER_EPOCH or
    INVALID_TXN_STATE."""
    if header.is_transactional:
        check_beginning(known, header, verifications, guard, from_client=False)
    check_epoch(known, header.producer_id, header.producer_epoch)
    if known is not None and known.transaction_start >= 0 and not header.is_transactional:
        raise KafkaError(
            ErrorCode.invalid_txn_state,
            f"the batch isn't in producer {header.producer_id}'s open transaction",
        )


def check_marker(
    known: ProducerState | None, producer_id: int, epoch: int, coordinator_epoch: int, transaction_version: int
) -> None:
    """Checks a marker of `transaction_version` (0 where the coordinator doesn't tell it).

    A marker of version 2 has a newer epoch than the transaction's data. If a marker has the known epoch, and no
    transaction is open, the marker is a repeat: the answer to the first one was lost, and the marker is appended once
    more. Raises KafkaError INVALID_PRODUCER_EPOCH, or TRANSACTION_COORDINATOR_FENCED if a coordinator with a newer
    epoch has already written a marker."""
    if known is None:
        return
    check_epoch(known, producer_id, epoch)
    if (
        transaction_version >= EPOCH_PER_TRANSACTION
        and epoch == known.epoch < EPOCH_MAX  # a last epoch can't be followed by a newer one
        and known.transaction_start >= 0
    ):
        raise _fenced(producer_id, known.epoch, epoch)
    if coordinator_epoch < known.coordinator_epoch:
        raise KafkaError(
            ErrorCode.transaction_coordinator_fenced,
            f"the last marker of producer {producer_id} came from coordinator epoch {known.coordinator_epoch}, this"
            f" one from {coordinator_epoch}",
        )


def _fenced(producer_id: int, known: int, epoch: int) -> KafkaError:
    sentence = f"producer {producer_id} has epoch {known} in this partition, and the batch or marker has epoch {epoch}"
    return KafkaError(ErrorCode.invalid_producer_epoch, sentence)
