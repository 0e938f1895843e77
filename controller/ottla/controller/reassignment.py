"""Moves a partition to other replicas (KIP-455), in steps: wherever the move stops, the partition's state is safe.
Pure.

1. *Begin*: the partition's replicas are now those of the target, followed by the replicas to remove. No replica leaves
   the ISR, and the leader stays. A replica that only an earlier target added is dropped if it isn't in sync yet; if it
   is in sync, it stays until the move completes.
2. The added replicas catch up, and the leader adds them to the ISR as it would any replica.
3. *Complete*: once the whole target is in the ISR, under the brokers' present registrations, the other replicas are
   dropped from replicas and ISR together. If the leader was one of them, another replica is elected.

*Cancel* restores the replicas that the partition had before the move, in their order. If the move replaced an earlier
move that hadn't completed, it restores the replicas from before the first of these moves. One of these replicas must be
in sync. If the ISR has only added replicas, the move can't be cancelled.

The partition's state alone shows how far a move has come. So the request for the move is deleted in the transaction
that begins the move. Source: Apache Kafka's ReplicationControlManager and PartitionReassignmentReplicas.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ottla.metadata.elections import Electorate, led, surviving
from ottla.metadata.model.partitions import Partition
from ottla.metadata.reassignment import can_cancel


def reassigned(partition: Partition, target: tuple[int, ...] | None, electorate: Electorate) -> Partition:
    """The partition after the first step of a move to `target`. If `target` is None, the partition after the
    cancellation of its move. The leader and the leader epoch don't change."""
    if target is None:
        return _cancelled(partition, electorate)
    original = partition.original if partition.reassigning else partition.replicas
    adding = tuple(sorted(set(target).difference(original)))
    kept = (replica for replica in partition.replicas if replica in original or replica in partition.isr)
    removing = tuple(sorted(set(kept).difference(target)))
    return replace(
        partition,
        replicas=target + removing,
        adding=adding,
        removing=removing,
        original=original if adding or removing else (),
    )


def completed(partition: Partition, electorate: Electorate) -> Partition:
    """The partition after the completion of its move, if all replicas of the target are in sync. Otherwise `partition`
    itself."""
    target = partition.target
    if not partition.reassigning or not set(target) <= set(surviving(partition, electorate)):
        return partition
    return led(_restricted(partition, target), electorate)


def _cancelled(partition: Partition, electorate: Electorate) -> Partition:
    if not partition.reassigning or not can_cancel(partition, electorate.brokers):
        return partition
    return _restricted(partition, partition.original)


def _restricted(partition: Partition, replicas: tuple[int, ...]) -> Partition:
    """The partition with only these replicas, and without a move. The leader stays, even if it isn't among these
    replicas."""
    members = _kept(partition, replicas)
    return replace(
        partition,
        replicas=replicas,
        isr=members,
        isr_epochs=tuple(map(partition.epoch_in_isr, members)),
        adding=(),
        removing=(),
        original=(),
    )


def _kept(partition: Partition, replicas: Collection[int]) -> tuple[int, ...]:
    return tuple(member for member in partition.isr if member in replicas)
