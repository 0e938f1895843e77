"""Who leads a partition whose state comes from a backup: the replica whose log holds most. Pure.

The state says who led and who was in sync when the backup was made; all of that may have changed since. What hasn't
changed is Kafka's rule for comparing logs: a record that was committed is in the log of every later leader, so the log
with the greatest (last epoch, end offset) holds every committed record that any of the logs compared holds. (A log's
last epoch may be one without records. One that began at the log's very end is forgotten when its leader is killed; what
that leader had committed of earlier epochs looks like something that nobody ever committed.) Therefore:

1. Nobody is elected before every broker that must report has (`ottla.metadata.reports`), and could read its logs. A
   wish for an unclean election ends the waiting for one partition: one of those that have reported leads.
2. The replica with the greatest log leads, alone in the ISR. It needn't be one of the state's replicas: where the
   partition was moved after the backup, the others copy from it, and it is removed when they have.
3. The leader epoch begins far above every epoch that a log or a replica knows: an epoch in which nothing was written
   may be known to clients alone, and they ignore a leader with an earlier one.
"""

from __future__ import annotations

from dataclasses import replace

from ottla.metadata.image import Image
from ottla.metadata.model import NO_EPOCH, LogEnd, Partition
from ottla.metadata.reports import reported, reporters, silent

EPOCHS_SKIPPED = 1000


def recovered(image: Image, partition: Partition, *, unclean: bool) -> Partition:
    """A restored partition with its first leader; the same object while there can't be one."""
    if silent(image) and not unclean:
        return partition
    found = {broker: reported(image, broker, (partition.topic_id, partition.index)) for broker in reporters(image)}
    ends = {broker: end for broker, end in found.items() if end is not None and end.end_offset >= 0}
    unread = any(end is not None and end.end_offset < 0 for end in found.values())
    if not ends or (unread and not unclean):
        return partition
    leader = max(ends, key=lambda broker: _rank(partition, broker, ends[broker]))
    registered = image.brokers[leader]
    if not registered.electable:
        return partition
    known = max(max(end.last_epoch, end.known_epoch) for end in ends.values())
    after = replace(
        partition,
        isr=(leader,),
        isr_epochs=(registered.epoch,),
        leader=leader,
        leader_epoch=max(partition.leader_epoch, known, NO_EPOCH) + EPOCHS_SKIPPED,
        partition_epoch=partition.partition_epoch + 1,
        restored=False,
    )
    if leader in partition.replicas:
        return after
    return replace(
        after,
        replicas=(*partition.replicas, leader),
        removing=(*partition.removing, leader),
        original=partition.original or partition.replicas,
    )


def _rank(partition: Partition, broker: int, end: LogEnd) -> tuple[int, int, int, int]:
    """The greatest log first; of equal ones the first in the order of the assignment, then the lowest id."""
    place = partition.replicas.index(broker) if broker in partition.replicas else len(partition.replicas)
    return end.last_epoch, end.end_offset, -place, -broker
