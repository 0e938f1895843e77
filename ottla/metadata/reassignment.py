"""Checks of requests to reassign a partition's replicas (KIP-455). Pure. The controller carries the requests out.

The rules and most of the errors' texts are those of Apache Kafka 4.3's ReplicationControlManager. As with Kafka, the
target may contain a broker that is down; the reassignment waits for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ottla.protocol.errors import ErrorCode, KafkaError

from .model.brokers import Broker
from .model.partitions import NO_LEADER, Partition
from .naming import check_replicas


def check_target(
    target: Sequence[int], partition: Partition, known: Collection[int], allow_another_factor: bool
) -> None:
    """Raises KafkaError if the partition's replicas can't be moved to `target`.

    `known` are the ids of the brokers that exist. The errors are INVALID_REPLICA_ASSIGNMENT and
    INVALID_REPLICATION_FACTOR.
    """
    check_replicas(target, known)
    present = len(partition.original if partition.reassigning else partition.replicas)
    if not allow_another_factor and len(target) != present:
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"The replication factor is changed from {present} to {len(target)}",
        )


def check_cancellable(partition: Partition, brokers: Mapping[int, Broker]) -> None:
    """Raises KafkaError if no reassignment is under way, or if it can't be cancelled.

    The errors are NO_REASSIGNMENT_IN_PROGRESS and INVALID_REPLICA_ASSIGNMENT.
    """
    if not partition.reassigning:
        raise KafkaError(ErrorCode.no_reassignment_in_progress)
    if not can_cancel(partition, brokers):
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            "The move can't be cancelled: no replica that the partition had before the move is in sync.",
        )


def can_cancel(partition: Partition, brokers: Mapping[int, Broker]) -> bool:
    """Whether one of the original replicas is in sync, so that a leader can be found after the reassignment ends.

    While the partition has a leader, a replica counts only if its broker is registered under the epoch in the ISR.
    """
    members = zip(partition.isr, partition.isr_epochs, strict=True)
    living = {member for member, epoch in members if member in brokers and brokers[member].epoch == epoch}
    counted = living if partition.leader != NO_LEADER else set(partition.isr)
    return not counted.isdisjoint(partition.original)
