"""Who leads a partition and who is in its ISR, given who is alive. Pure.

The controller decides by it, and a broker foretells by it what would break if brokers stopped.

The rules are those of Kafka's PartitionChangeBuilder and the design's fencing rule:

1. A member of the ISR whose broker isn't registered, or registered anew since it was admitted (another epoch), is dead.
   It leaves the ISR if another member survives; the last members never leave, since only they hold all records.
2. The leader stays if it survives. Else the first survivor in assignment order that may be elected leads, and the
   leader epoch grows. A broker that drains hands over what it leads and leaves the ISR, if another member can take
   over; it isn't elected. A *drained* one (a wish of an administrator) hands over too, but stays in the ISR, and
   leads what nobody else can.
3. If all members are dead, the first of them to run again with its log whole leads, under its new epoch, alone in the
   ISR; then an eligible replica (KIP-966, `ottla.metadata.eligibility`). If all of these have come back, none with its
   log whole for certain, the one whose log holds most leads, when all have said what theirs hold: what any of them
   still has isn't lost. Until then, and while one of them can't read its log, there is no leader. Without the feature,
   no difference is made between whole logs and others.
4. Only with unclean elections allowed may another replica lead, at the price of records.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from .eligibility import NO_ELR
from .model import NO_EPOCH, NO_LEADER, UNREADABLE, Broker, LogEnd, Partition

_NOBODY: Collection[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Electorate:
    """What an election depends on, beside the partition's own state."""

    brokers: Mapping[int, Broker]
    drained: Collection[int] = field(default=_NOBODY)
    min_isr: int = NO_ELR  # the topic's, where eligible leader replicas are kept
    unclean: bool = False  # whether a replica may lead that isn't known to have all records
    preferred: bool = False  # whether the first replica is to lead, if it can
    ends: Mapping[int, LogEnd] = field(default_factory=dict)  # reported by those of ISR and ELR who have

    def alive(self, replica: int, epoch: int) -> bool:
        """Whether the broker is registered under that epoch still."""
        broker = self.brokers.get(replica)
        return broker is not None and broker.epoch == epoch

    def electable(self, replica: int) -> bool:
        """Whether the broker may lead and be in an ISR."""
        broker = self.brokers.get(replica)
        return broker is not None and broker.electable

    def epochs(self, members: Iterable[int]) -> tuple[int, ...]:
        """The members' present epochs; all must be registered."""
        return tuple(self.brokers[member].epoch for member in members)

    def undrained_first(self, replicas: Iterable[int]) -> list[int]:
        """The same, those that are wished not to lead at the end."""
        return sorted(replicas, key=lambda replica: replica in self.drained)


class Outcome(NamedTuple):
    """What an election of a partition's leader comes to: the leader (or NO_LEADER), and the members of the ISR."""

    leader: int
    isr: tuple[int, ...]
    unclean: bool = False  # the leader isn't known to have all records


def led(partition: Partition, electorate: Electorate) -> Partition:
    """The partition with the right leader and ISR; epochs and ELR are left to `stamped` and `with_eligible`."""
    outcome = election(partition, electorate)
    after = _with(partition, outcome.leader, outcome.isr, electorate)
    return replace(after, recovering=True) if outcome.unclean else after


def election(partition: Partition, electorate: Electorate) -> Outcome:
    """Who is to lead and to be in the ISR, by the rules above."""
    survivors = surviving(partition, electorate)
    able = tuple(filter(electorate.electable, survivors))
    if able:
        return Outcome(_leader(partition, able, electorate), able)
    if survivors:  # they drain: one that leads goes on, the others aren't elected, and the dead leave all the same
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
    """`after` with the epochs that follow those of `before`; `before` itself where nothing differs.

    Every change makes a new partition epoch; another leader, the same one under a new registration, or the loss of a
    replica makes a new leader epoch.
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
    """The first state of a partition: all replicas that run are in sync (there is nothing to have yet)."""
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
    """Who of the dead has come back and may lead, or NO_LEADER."""
    members = _in_order(partition, partition.isr, electorate)
    running = [member for member in members if electorate.electable(member)]
    if electorate.min_isr == NO_ELR:
        return running[0] if running else NO_LEADER
    for candidates, epoch_of in ((members, _isr_epoch), (_in_order(partition, partition.elr, electorate), _elr_epoch)):
        for replica in candidates:
            broker = electorate.brokers.get(replica)
            if broker is not None and broker.electable and broker.holds_all_since(epoch_of(partition, replica)):
                return replica
    # One that isn't back yet, or is back whole and still starting, is waited for: it may have what the others lost.
    hopeful = [replica for replica in members if _may_be_whole(replica, _isr_epoch(partition, replica), electorate)]
    hopeful += [
        replica for replica in partition.elr if _may_be_whole(replica, _elr_epoch(partition, replica), electorate)
    ]
    return NO_LEADER if hopeful else _with_most(partition, electorate)


def _with_most(partition: Partition, electorate: Electorate) -> int:
    """Who of the contenders holds most, all of whom have come back; NO_LEADER until all could say what they hold."""
    everybody = [
        *_in_order(partition, partition.isr, electorate),
        *_in_order(partition, partition.elr, electorate),
    ]
    ends = electorate.ends
    if len(everybody) > 1:
        if any(replica not in ends for replica in everybody):
            return NO_LEADER
        # A log whose directory has failed may hold what the others lost, and be readable after the next start.
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
    """The members in assignment order, drained ones last."""
    return electorate.undrained_first(replica for replica in partition.replicas if replica in members)


def _with(partition: Partition, leader: int, isr: tuple[int, ...], electorate: Electorate) -> Partition:
    """Without a leader, members keep the epochs that they were admitted under."""
    epochs = tuple(map(partition.epoch_in_isr, isr)) if leader == NO_LEADER else electorate.epochs(isr)
    if (leader, isr, epochs) == (partition.leader, partition.isr, partition.isr_epochs):
        return partition
    return replace(partition, leader=leader, isr=isr, isr_epochs=epochs)
