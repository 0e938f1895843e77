"""Which moves of a partition may be asked for (KIP-455). Pure; the moves themselves are the controller's.

The rules and most of the sentences are those of Apache Kafka 4.3's ReplicationControlManager. As there, a broker that
is down may be a target; the move waits for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ottla.protocol.errors import ErrorCode, KafkaError

from .model import NO_LEADER, Broker, Partition
from .naming import check_replicas


def check_target(
    target: Sequence[int], partition: Partition, known: Collection[int], allow_another_factor: bool
) -> None:
    """Raises KafkaError where the partition can't be moved there: INVALID_REPLICA_ASSIGNMENT, …_FACTOR."""
    check_replicas(target, known)
    present = len(partition.original if partition.reassigning else partition.replicas)
    if not allow_another_factor and len(target) != present:
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"The replication factor is changed from {present} to {len(target)}",
        )


def check_cancellable(partition: Partition, brokers: Mapping[int, Broker]) -> None:
    """Raises KafkaError where there is no move (NO_REASSIGNMENT_IN_PROGRESS), or nothing to go back to."""
    if not partition.reassigning:
        raise KafkaError(ErrorCode.no_reassignment_in_progress)
    if not can_cancel(partition, brokers):
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            "The move can't be cancelled: of the replicas from before it, none is in sync.",
        )


def can_cancel(partition: Partition, brokers: Mapping[int, Broker]) -> bool:
    """Whether one of the original replicas is in sync, and can lead at once if anybody can."""
    members = zip(partition.isr, partition.isr_epochs, strict=True)
    living = {member for member, epoch in members if member in brokers and brokers[member].epoch == epoch}
    counted = living if partition.leader != NO_LEADER else set(partition.isr)
    return not counted.isdisjoint(partition.original)
