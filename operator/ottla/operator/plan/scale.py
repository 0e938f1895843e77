"""Which replicas move when brokers are added or removed. Pure.

Before a broker is removed, all its replicas are moved to other brokers; other replicas stay where they are. A broker
that is gone already and isn't wanted (the Cluster was made again with fewer brokers) is drained, too, as far as other
brokers have its partitions in sync. Other brokers may be removed before this drain is complete. A new broker gets its
share of replicas, as the Cluster's policy says. Each plan is made anew from the brokers' answers, for a bounded number
of partitions at a time. So scaling goes on after every interruption, and stops when the spec changes back.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ottla.balance.counts import Target, balanced
from ottla.operator.plan.replication import resized
from ottla.operator.plan.topic import (
    THROTTLED_FOLLOWERS,
    THROTTLED_LEADERS,
    Configure,
    KafkaCluster,
    KafkaPartition,
    Move,
    Replicas,
)
from ottla.operator.spec.topic import INTERNAL
from ottla.placement import PartitionName
from ottla.wording import counted

PARTITIONS_AT_ONCE = 50


@dataclass(frozen=True)
class Scaling:
    """The progress of scaling. `drained`: no replica is left on the brokers that are to be removed."""

    draining: frozenset[int] = frozenset()  # brokers that are being drained
    settled: frozenset[int] = frozenset()  # brokers that have their share of replicas
    drained: bool = True
    reason: str = ""  # why replicas are moved, or why the next reconcile asks the brokers again; else empty
    remaining: int = 0  # partitions that have still to be moved; 0: no replica moves
    waits_for: str = ""  # something that needs no action of a person
    needs_person: str = ""  # what waits for a person, and what the person has to do
    new: bool = False  # no reconcile of this Cluster has read from the brokers yet which of them are drained

    @property
    def goes_on(self) -> bool:
        """Whether scaling soon goes on by itself, without an action of a person."""
        return bool(self.remaining or self.waits_for)

    @property
    def progress(self) -> str:
        """Why replicas are moved; empty where no replica moves."""
        return self.reason if self.remaining else ""


@dataclass(frozen=True)
class ScalePlan:
    """The moves to request now, how many partitions have still to be moved, and why the plan can't be carried out."""

    moves: tuple[Move, ...] = ()
    remaining: int = 0
    refusal: str = ""
    waits_for: str = ""


def absent(cluster: KafkaCluster, wanted: Collection[int]) -> frozenset[int]:
    """Brokers that have replicas, aren't registered and aren't wanted, so that the operator creates no pods for them.

    Empty while a wanted broker isn't registered, because that broker may have replicas of the same partitions.
    """
    if not cluster.racks.keys() >= set(wanted):
        return frozenset()
    return frozenset(holders(cluster) - cluster.racks.keys() - set(wanted))


def holders(cluster: KafkaCluster) -> set[int]:
    """The brokers that have replicas, registered or not."""
    return {broker for _, partition in _partitions(cluster) for broker in partition.replicas}


def only_on(cluster: KafkaCluster, absent: Collection[int]) -> list[PartitionName]:
    """Partitions that only these absent brokers have in sync: such a partition can't be copied before one of these
    brokers is back."""
    return sorted(name for name, partition in _partitions(cluster) if _is_only_on(partition, absent))


def drain(
    cluster: KafkaCluster, leaving: Collection[int], staying: Collection[int], absent: Collection[int] = ()
) -> ScalePlan:
    """Moves all replicas away from `leaving` brokers. `staying` are all wanted brokers, running or not.

    A partition that is moved also leaves the `absent` brokers, because a move that keeps a replica on an absent broker
    never completes. Partitions that only `absent` brokers have in sync aren't moved.
    """
    concerned = {
        name: partition
        for name, partition in _partitions(cluster)
        if not set(leaving).isdisjoint(partition.replicas) and not _is_only_on(partition, absent)
    }
    leaving = {*leaving, *absent}
    wide = {
        topic: len(partition.target)
        for (topic, _), partition in sorted(concerned.items())
        if len(partition.target) > len(staying) and topic not in INTERNAL
    }
    if wide:
        (topic, count), *others = wide.items()
        have = "topics have" if len(others) > 1 else "topic has"
        more = f" ({len(others)} more {have} too many, too)" if others else ""
        return ScalePlan(
            refusal=f"topic {topic} has {count} replicas{more}, and {counted(len(staying), 'broker')} would stay: "
            "lower its replication factor, or keep more brokers"
        )
    takers = {broker: rack for broker, rack in cluster.takers.items() if broker in staying}
    load = Counter(cluster.load)
    targets: dict[PartitionName, Replicas | None] = {}
    stuck = ""
    for name, partition in sorted(concerned.items()):
        if leaving.isdisjoint(partition.target):
            continue  # a move away from the leaving brokers is under way
        if set(partition.original) <= set(staying) and len(partition.original) == len(partition.target):
            targets[name] = None  # cancel the move to a leaving broker: all original replicas are on brokers that stay
            load.update(partition.original)
            load.subtract(partition.target)
            continue
        kept = tuple(broker for broker in partition.target if broker not in leaving)
        # Internal topics get fewer replicas if fewer brokers stay, because no person could lower their factor.
        count = min(len(partition.target), len(staying))
        target = resized(kept, count, partition.in_sync, takers, load)
        if len(target) < count:
            stuck = f"another broker to run, for partition {name[0]}-{name[1]}"
            continue
        load.update(target)
        load.subtract(partition.target)
        targets[name] = target
    return ScalePlan(moves_at_once(cluster, targets), len(concerned), waits_for="" if targets else stuck)


def spread(cluster: KafkaCluster, new: Collection[int], wanted: Collection[int], *, only_new: bool) -> ScalePlan:
    """Gives new brokers their share of replicas. `only_new`: whether replicas move to new brokers only;
    otherwise replicas move between all `wanted` brokers until these are balanced."""
    if missing := sorted(set(new) - set(cluster.racks)):
        return ScalePlan(waits_for=f"broker {missing[0]} to register")
    partitions = dict(_partitions(cluster))
    moving = sum(not partition.adding.isdisjoint(new) for partition in partitions.values())
    takers = {broker: rack for broker, rack in cluster.takers.items() if broker in wanted}
    present = {name: partition.target for name, partition in partitions.items()}
    if not takers:
        targets: dict[PartitionName, Replicas] = {}  # an administrator drains all wanted brokers
    elif only_new:
        targets = _shared(present, takers, new)
    else:
        planned = balanced(present, [Target(broker, rack) for broker, rack in takers.items()])
        targets = {name: target for name, target in planned.items() if set(target) != set(present[name])}
    return ScalePlan(moves_at_once(cluster, targets), moving + len(targets))


def undrain(cluster: KafkaCluster, staying: Collection[int]) -> tuple[Move, ...]:
    """Cancels the moves away from brokers that stay after all."""
    ended: dict[str, dict[int, Replicas | None]] = defaultdict(dict)
    for (topic, index), partition in sorted(_partitions(cluster)):
        if not partition.removing.isdisjoint(staying):
            ended[topic][index] = None
    return tuple(Move(topic, targets) for topic, targets in ended.items())


def throttles(cluster: KafkaCluster, moves: Iterable[Move]) -> list[Configure]:
    """The topics' settings that name the throttled replicas: of these moves, and of moves that are under way."""
    steps = []
    for move in moves:
        topic = cluster.topics[move.topic]
        leaders, followers = [], []
        for index, partition in sorted(topic.partitions.items()):
            target = move.targets.get(index, partition.target if partition.moving else ()) or ()
            if added := [broker for broker in target if broker not in partition.original]:
                leaders += [f"{index}:{broker}" for broker in partition.original]
                followers += [f"{index}:{broker}" for broker in added]
        if leaders:
            given = {THROTTLED_LEADERS: ",".join(leaders), THROTTLED_FOLLOWERS: ",".join(followers)}
            steps.append(Configure(move.topic, given))
    return steps


def unthrottled(cluster: KafkaCluster) -> list[Configure]:
    """Resets the throttled replicas of each topic that has no owner and no partition that is being moved."""
    steps = []
    for topic in cluster.topics.values():
        present = tuple(name for name in (THROTTLED_LEADERS, THROTTLED_FOLLOWERS) if name in topic.overrides)
        if present and not topic.owner and not any(partition.moving for partition in topic.partitions.values()):
            steps.append(Configure(topic.name, {}, present))
    return steps


def _shared(
    present: Mapping[PartitionName, Replicas], takers: Mapping[int, str | None], new: Collection[int]
) -> dict[PartitionName, Replicas]:
    """Moves of replicas to new brokers, from the brokers that have most, until each new broker has its share of
    replicas and leaders.

    No replica moves twice, and no move puts a partition on fewer racks.
    """
    targets = dict(present)
    load = Counter(broker for replicas in present.values() for broker in replicas)
    leads = Counter(replicas[0] for replicas in present.values() if replicas)
    led: dict[int, list[PartitionName]] = defaultdict(list)
    followed: dict[int, list[PartitionName]] = defaultdict(list)
    for name, replicas in sorted(present.items(), reverse=True):
        for place, broker in enumerate(replicas):
            if broker in takers and broker not in new:
                (followed if place else led)[broker].append(name)
    share, leads_share = load.total() // len(takers), leads.total() // len(takers)
    for broker in sorted(set(new) & takers.keys()):
        spare: dict[int, list[list[PartitionName]]] = {
            giver: [list(led[giver]), list(followed[giver])] for giver in takers if giver not in new
        }
        while load[broker] < share:
            givers = [giver for giver, lists in spare.items() if any(lists) and load[giver] > load[broker] + 1]
            if not givers:
                break
            giver = max(givers, key=lambda giver: (load[giver], -giver))
            first = leads[broker] < leads_share and leads[giver] > leads[broker] + 1
            names = next(names for names in (spare[giver] if first else spare[giver][::-1]) if names)
            name = names.pop()
            replicas = targets[name]
            if giver not in replicas or broker in replicas:
                continue
            target = tuple(broker if each == giver else each for each in replicas)
            if len({takers.get(each) for each in target}) < len({takers.get(each) for each in replicas}):
                continue
            targets[name] = target
            load.update((broker,))
            load.subtract((giver,))
            if replicas[0] == giver:
                leads.update((broker,))
                leads.subtract((giver,))
    return {name: target for name, target in targets.items() if target != present[name]}


def _is_only_on(partition: KafkaPartition, absent: Collection[int]) -> bool:
    return bool(partition.in_sync) and partition.in_sync <= set(absent)


def _partitions(cluster: KafkaCluster) -> list[tuple[PartitionName, KafkaPartition]]:
    return [
        ((topic.name, index), partition)
        for topic in cluster.topics.values()
        for index, partition in topic.partitions.items()
    ]


def moves_at_once(cluster: KafkaCluster, targets: Mapping[PartitionName, Replicas | None]) -> tuple[Move, ...]:
    """As many of the moves as may be under way at the same time, and all moves of partitions that are moving already.

    A move of a partition that is moving already only changes its target, or cancels its move. If such a move had to
    wait, a move to a dead broker, which never completes, would block the move that replaces it.
    """
    moving = {name for name, partition in _partitions(cluster) if partition.moving}
    more = PARTITIONS_AT_ONCE - len(moving)
    grouped: dict[str, dict[int, Replicas | None]] = defaultdict(dict)
    for name, target in sorted(targets.items(), key=lambda each: each[0]):
        if name not in moving:
            more -= 1
        if name in moving or more >= 0:
            grouped[name[0]][name[1]] = target
    return tuple(Move(topic, indexes) for topic, indexes in grouped.items())
