"""The rule of elections: a partition's leader and its ISR, given the brokers that are alive. Pure.

The controller decides by this rule. A broker uses it to predict which partitions would lose their leader, or would have
too few replicas in sync, if brokers stopped.

The rules are those of Kafka's PartitionChangeBuilder. There is one more: a broker that registers under a new epoch
counts as dead and started again.

1. A member of the ISR is dead if its broker isn't registered, or has registered anew (under another epoch) since the
   member was admitted. A dead member leaves the ISR if another member survives. The last members never leave, because
   only they have all records.
2. The leader stays if it survives. Otherwise the first survivor in assignment order that may be elected leads, and the
   leader epoch grows. A broker that is draining isn't elected. If another member can lead, the draining broker hands
   the partition over to it and leaves the ISR. A broker that an administrator has *drained* hands its partitions over,
   too, but stays in the ISR, and leads only where no other broker can.
3. If all members are dead, the first member that runs again with its log whole leads, under its new epoch, alone in the
   ISR. Failing that, an eligible replica leads (KIP-966, `ottla.metadata.eligibility`). Suppose that all these replicas
   have come back, and none has certainly kept its log whole. Then the replica with the longest log leads, once all of
   them have reported the ends of their logs, so that no record is lost that any of them still has. Until then, and
   while one of them can't read its log, there is no leader. Without KIP-966's feature, every log counts as whole.
4. Another replica may lead only if unclean elections are allowed. Such an election may lose records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from .eligibility import NO_ELR
from .model.brokers import NO_EPOCH, Broker
from .model.partitions import NO_LEADER, Partition
from .model.reports import UNREADABLE, LogEnd

_NOBODY: Collection[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Electorate:
    """Everything that an election depends on beside the partition's own state."""

    brokers: Mapping[int, Broker]
    drained: Collection[int] = field(default=_NOBODY)
    min_isr: int = NO_ELR  # the topic's minimal ISR if eligible leader replicas are kept, else NO_ELR
    unclean: bool = False  # whether a replica may lead although it isn't known to have all records
    preferred: bool = False  # whether the first replica is to become leader, if it can
    ends: Mapping[int, LogEnd] = field(default_factory=dict)  # the log ends that members of ISR and ELR have reported

    def alive(self, replica: int, epoch: int) -> bool:
        """Whether the replica's broker is still registered under the registration epoch `epoch`."""
        broker = self.brokers.get(replica)
        return broker is not None and broker.epoch == epoch

    def electable(self, replica: int) -> bool:
        """Whether the replica's broker may lead and may join an ISR."""
        broker = self.brokers.get(replica)
        return broker is not None and broker.electable

    def epochs(self, members: Iterable[int]) -> tuple[int, ...]:
        """The present registration epochs of these brokers. Each of them must be registered."""
        return tuple(self.brokers[member].epoch for member in members)

    def undrained_first(self, replicas: Iterable[int]) -> list[int]:
        """The `replicas`, of which those on drained brokers come last."""
        return sorted(replicas, key=lambda replica: replica in self.drained)


class Outcome(NamedTuple):
    """The result of an election: the partition's leader (or NO_LEADER), and the members of the ISR."""

    leader: int
    isr: tuple[int, ...]
    unclean: bool = False  # whether the leader isn't known to have all records


def led(partition: Partition, electorate: Electorate) -> Partition:
    """The partition with the leader and the ISR that `election` finds. Its epochs and its ELR are the old ones:
    `stamped` and `with_eligible` change them."""
    outcome = election(partition, electorate)
    after = _with(partition, outcome.leader, outcome.isr, electorate)
    return replace(after, recovering=True) if outcome.unclean else after


def election(partition: Partition, electorate: Electorate) -> Outcome:
    """The leader and the ISR that the partition gets by this module's rules of elections."""
    survivors = surviving(partition, electorate)
    able = tuple(filter(electorate.electable, survivors))
    if able:
        return Outcome(_leader(partition, able, electorate), able)
    # All survivors are draining, so no survivor is elected, but one that leads already stays the leader.
    if survivors:
        return Outcome(partition.leader if partition.leader in survivors else NO_LEADER, survivors)
    revived = _revived(partition, electorate)
    if revived != NO_LEADER:
        return Outcome(revived, (revived,))
    if electorate.unclean:
        sources = (partition.isr, partition.elr, partition.last_known_elr, partition.replicas)
        running = (b for source in sources for b in _in_order(partition, source, electorate) if electorate.electable(b))
        if (leader := next(running, NO_LEADER)) != NO_LEADER:
            return Outcome(leader, (leader,), unclean=True)
    return Outcome(NO_LEADER, partition.isr)


def surviving(partition: Partition, electorate: Electorate) -> tuple[int, ...]:
    """The members of the ISR that have been alive ever since they were admitted."""
    members = zip(partition.isr, partition.isr_epochs, strict=True)
    return tuple(member for member, epoch in members if electorate.alive(member, epoch))


def stamped(before: Partition, after: Partition) -> Partition:
    """`after` with the epochs that follow those of `before`; `before` itself if the two are equal.

    Every change makes a new partition epoch. A new leader epoch is made if the leader is another one, if it is the same
    one under a new registration, or if a replica is removed.
    """
    if after == before:
        return before
    moved = (
        after.leader != before.leader
        or after.epoch_in_isr(after.leader) != before.epoch_in_isr(before.leader)
        or not set(before.replicas) <= set(after.replicas)
    )
    return replace(after, leader_epoch=before.leader_epoch + int(moved), partition_epoch=before.partition_epoch + 1)


def first_state(partition: Partition, electorate: Electorate) -> Partition:
    """The first state of a partition. It has no records yet, so all replicas on running brokers are in sync."""
    members = tuple(filter(electorate.electable, partition.replicas))
    if not members:
        epochs = (NO_EPOCH,) * len(partition.replicas)
        return replace(partition, isr=partition.replicas, isr_epochs=epochs, leader=NO_LEADER)
    leader = electorate.undrained_first(members)[0]
    return replace(partition, isr=members, isr_epochs=electorate.epochs(members), leader=leader)


def _leader(partition: Partition, able: tuple[int, ...], electorate: Electorate) -> int:
    pool = [member for member in able if member not in electorate.drained] or able
    if electorate.preferred and partition.replicas[0] in pool:
        return partition.replicas[0]
    if partition.leader in pool:
        return partition.leader
    return next((replica for replica in partition.replicas if replica in pool), pool[0])


def _revived(partition: Partition, electorate: Electorate) -> int:
    """The dead member of the ISR or the ELR that has come back and may lead, or NO_LEADER."""
    members = _in_order(partition, partition.isr, electorate)
    running = [member for member in members if electorate.electable(member)]
    if electorate.min_isr == NO_ELR:
        return running[0] if running else NO_LEADER
    for candidates, epoch_of in ((members, _isr_epoch), (_in_order(partition, partition.elr, electorate), _elr_epoch)):
        for replica in candidates:
            broker = electorate.brokers.get(replica)
            if broker is not None and broker.electable and broker.holds_all_since(epoch_of(partition, replica)):
                return replica
    # The election waits for a replica that hasn't come back yet, or that has come back with its log whole and is still
    # starting: it may have records that the others have lost.
    hopeful = [replica for replica in members if _may_be_whole(replica, _isr_epoch(partition, replica), electorate)]
    hopeful += [
        replica for replica in partition.elr if _may_be_whole(replica, _elr_epoch(partition, replica), electorate)
    ]
    return NO_LEADER if hopeful else _with_most(partition, electorate)


def _with_most(partition: Partition, electorate: Electorate) -> int:
    """The member of the ISR or the ELR with the longest log, or NO_LEADER.

    If there are several members, the result is NO_LEADER until all of them have reported the ends of their logs. It is
    also NO_LEADER if one of them couldn't read its log, unless unclean elections are allowed.
    """
    everybody = [
        *_in_order(partition, partition.isr, electorate),
        *_in_order(partition, partition.elr, electorate),
    ]
    ends = electorate.ends
    if len(everybody) > 1:
        if any(replica not in ends for replica in everybody):
            return NO_LEADER
        # A log whose directory has failed may have records that the others lost, and be readable after the next start.
        if not electorate.unclean and any(ends[replica] == UNREADABLE for replica in everybody):
            return NO_LEADER
        everybody.sort(key=lambda replica: (ends[replica].last_epoch, ends[replica].end_offset), reverse=True)
        if ends[everybody[0]].end_offset < 0:
            return NO_LEADER
    return everybody[0] if electorate.electable(everybody[0]) else NO_LEADER


def _may_be_whole(replica: int, epoch: int, electorate: Electorate) -> bool:
    broker = electorate.brokers.get(replica)
    return broker is None or broker.holds_all_since(epoch)


def _isr_epoch(partition: Partition, replica: int) -> int:
    return partition.epoch_in_isr(replica)


def _elr_epoch(partition: Partition, replica: int) -> int:
    return partition.elr_epochs[partition.elr.index(replica)]


def _in_order(partition: Partition, members: Collection[int], electorate: Electorate) -> list[int]:
    """The members in the order of the partition's replicas, those on drained brokers last."""
    return electorate.undrained_first(replica for replica in partition.replicas if replica in members)


def _with(partition: Partition, leader: int, isr: tuple[int, ...], electorate: Electorate) -> Partition:
    """The partition with this leader and ISR. The ISR's epochs become the present registration epochs of the members;
    without a leader, the members keep the epochs under which they were admitted.
    """
    epochs = tuple(map(partition.epoch_in_isr, isr)) if leader == NO_LEADER else electorate.epochs(isr)
    if (leader, isr, epochs) == (partition.leader, partition.isr, partition.isr_epochs):
        return partition
    return replace(partition, leader=leader, isr=isr, isr_epochs=epochs)
