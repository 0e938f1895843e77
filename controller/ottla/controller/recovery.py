"""The election for a partition whose state comes from a backup: the replica with the most complete log leads. Pure.

After the backup, the partition's leader and its ISR may have changed. (A partition that was adopted from Apache Kafka's
log directories counts as restored, too, because nothing is known of its ISR.) But one rule of Kafka holds all the time:
each leader's log has all records that were committed under earlier leaders. So the log with the greatest (last epoch,
end offset) has every committed record that any of the compared logs has. (There is one exception. If a leader has
appended no record in its own epoch, and is killed, its log forgets this epoch. But meanwhile the leader may have
committed records of earlier epochs. A log without these records may then have a greater last epoch than the killed
leader's log.) Therefore:

1. No leader is elected before every broker that must report its logs' ends has reported (`ottla.metadata.reports`) and
   could read its logs. A request for an unclean election ends the wait for one partition: the leader is elected among
   the brokers that have reported.
2. The replica with the greatest log leads, alone in the ISR. Where the partition was moved after the backup, this may
   be a broker that isn't among the state's replicas. Then these replicas copy from it, and it is removed afterwards.
3. The leader epoch begins far above every epoch that a log or a replica knows. An epoch in which nothing was written
   may be known to clients alone, and clients ignore a leader with an earlier epoch.
"""

from __future__ import annotations

from dataclasses import replace

from ottla.metadata.image import Image
from ottla.metadata.model.brokers import NO_EPOCH
from ottla.metadata.model.partitions import Partition
from ottla.metadata.model.reports import LogEnd
from ottla.metadata.reports import reported, reporters, silent

EPOCHS_SKIPPED = 1000


def recovered(image: Image, partition: Partition, *, unclean: bool) -> Partition:
    """A restored partition after the election of its first leader; the same object while no leader can be elected."""
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
    """A sort key: the replica with the greatest key is elected. The greatest log comes first; among equal logs, the
    order of the state's replicas decides, then the lowest broker id."""
    place = partition.replicas.index(broker) if broker in partition.replicas else len(partition.replicas)
    return end.last_epoch, end.end_offset, -place, -broker
