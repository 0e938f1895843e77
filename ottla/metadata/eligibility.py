"""Eligible leader replicas (ELR, KIP-966): replicas that have every committed record although they aren't in the ISR.

Pure. While the ISR of a partition is smaller than its minimum, the high watermark doesn't advance. So a replica that
leaves the ISR during this time still has every committed record. It stays *eligible* as long as its broker doesn't come
back from an unclean stop, which may have cost it the unsynced tail of its log. Every writer of the ISR (controller and
leader) updates the ELR by `with_eligible`, in the same transaction. A leader doesn't advance its high watermark while
the state names an ELR. Otherwise a minimum that is lowered and raised again could make an outdated ELR count as valid.

Source: Apache Kafka's PartitionChangeBuilder, with two differences. The last member never leaves an ISR, so an ISR
whose members are all dead corresponds to Kafka's empty one. And the state names, for each eligible replica, the
registration epoch under which its log was last known to be whole. So a restart that no process observed is noticed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .features import ELIGIBLE_LEADER_REPLICAS, level
from .image import Image
from .model.brokers import Broker
from .model.partitions import Partition

MIN_ISR = "min.insync.replicas"
NO_ELR = 0  # stands for the minimal ISR if the feature is off


def is_enabled(image: Image) -> bool:
    """Whether the cluster keeps eligible leader replicas."""
    return level(image, ELIGIBLE_LEADER_REPLICAS) >= 1


def elr_min_isr(image: Image, topic: str, default: str) -> int:
    """The dynamic setting min.insync.replicas of the topic, else of all brokers, else `default`; NO_ELR if the cluster
    keeps no ELR."""
    if not is_enabled(image):
        return NO_ELR
    return int(image.config("topic", topic).get(MIN_ISR) or image.config("broker", "").get(MIN_ISR) or default)


def with_eligible(before: Partition, after: Partition, brokers: Mapping[int, Broker], min_isr: int) -> Partition:
    """`after` with the ELR that follows from the state `before`; the same object if its ELR is right already.

    A replica outside the new ISR is eligible if it was in the ISR or the ELR before. There are three exceptions: the
    new ISR has at least `min_isr` members; an unclean election made another replica's log the valid one; or the
    replica's broker came back from an unclean stop, in which case the replica goes to `last_known_elr`. `min_isr` is
    the topic's (`elr_min_isr`); if it exceeds the number of replicas, it counts as that number.
    """
    unclean = after.recovering and after.leader != before.leader
    if unclean or len(after.isr) >= min(min_isr, len(after.target)):
        return _with(after, {}, ())
    known = dict(zip(before.elr, before.elr_epochs, strict=True)) | dict(
        zip(before.isr, before.isr_epochs, strict=True)
    )
    eligible: dict[int, int] = {}
    lost = [replica for replica in before.last_known_elr if replica in after.replicas and replica not in after.isr]
    for replica in after.replicas:
        if replica in after.isr or replica not in known:
            continue
        broker = brokers.get(replica)
        if broker is None:
            eligible[replica] = known[replica]
        elif broker.holds_all_since(known[replica]):
            eligible[replica] = broker.epoch
        elif replica not in lost:
            lost.append(replica)
    return _with(after, eligible, tuple(replica for replica in lost if replica not in eligible))


def _with(partition: Partition, eligible: Mapping[int, int], lost: tuple[int, ...]) -> Partition:
    elr, epochs = tuple(eligible), tuple(eligible.values())
    if (elr, epochs, lost) == (partition.elr, partition.elr_epochs, partition.last_known_elr):
        return partition
    return replace(partition, elr=elr, elr_epochs=epochs, last_known_elr=lost)
