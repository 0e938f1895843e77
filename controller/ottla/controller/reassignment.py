"""Moving a partition to other replicas (KIP-455), as steps between states that are each safe to stop at. Pure.

1. *Begin*: the replicas become the target followed by what is to be removed. Nobody leaves the ISR for it, the leader
   stays. What an earlier target was to add and hasn't caught up is dropped; if it has, it stays until the end.
2. Those added catch up, and the leader takes them into the ISR as it would any replica.
3. *Complete*: once the whole target is in the ISR, under the brokers' present registrations, the others are dropped
   from replicas and ISR together, and the leader moves if it was one of them.

*Cancel* restores the replicas of before the first of the moves that haven't ended, in their order. It needs one of them
in sync; where the ISR has only what was added, the move can but go on.

How far a move is stands in the partition's state alone, so the wish is deleted in the transaction that begins it.
Source: Apache Kafka's ReplicationControlManager and PartitionReassignmentReplicas.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from ottla.metadata.elections import Electorate, led, surviving
from ottla.metadata.model import Partition
from ottla.metadata.reassignment import can_cancel


def reassigned(partition: Partition, target: tuple[int, ...] | None, electorate: Electorate) -> Partition:
    """The partition with the move to `target` begun (None: cancelled). Leader and epochs are left to others."""
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
    """The partition with its target as its replicas, if all of them are in sync; else the same object."""
    target = partition.target
    if not partition.reassigning or not set(target) <= set(surviving(partition, electorate)):
        return partition
    return led(_restricted(partition, target), electorate)


def _cancelled(partition: Partition, electorate: Electorate) -> Partition:
    if not partition.reassigning or not can_cancel(partition, electorate.brokers):
        return partition
    return _restricted(partition, partition.original)


def _restricted(partition: Partition, replicas: tuple[int, ...]) -> Partition:
    """The partition with these replicas and no others, nothing being moved. The leader may be one that is gone."""
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
