"""Which replicas move when brokers come or go. Pure.

Before a broker goes, every replica that it has is on another one; the rest stays where it is. A broker that has gone
already and isn't wanted (the Cluster was made again with fewer) is drained all the same, as far as others have what it
has; that keeps no other broker from going. A broker that is new gets its share, as the Cluster's policy says. All is
worked out anew each time from what the brokers say, a bounded number of partitions at once, so that it goes on wherever
it was, and stops when the spec changes back.
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

PARTITIONS_AT_ONCE = 50


@dataclass(frozen=True)
class Scaling:
    """How far it is. `drained`: nothing is left on the brokers that are to go."""

    draining: frozenset[int] = frozenset()
    settled: frozenset[int] = frozenset()
    drained: bool = True
    reason: str = ""  # what replicas are moved for, or why the brokers are asked again; nothing where neither is so
    remaining: int = 0  # partitions that aren't where they are to be; none: nothing moves
    waits_for: str = ""  # what comes about by itself
    needs_person: str = ""  # what goes on only once a person has done something, and what that is
    new: bool = False  # nobody has looked yet, for this Cluster, at what is drained

    @property
    def goes_on(self) -> bool:
        """Whether there is soon something to do or to see, though no person does anything."""
        return bool(self.remaining or self.waits_for)

    @property
    def progress(self) -> str:
        """What is being done; nothing where nothing moves."""
        return self.reason if self.remaining else ""


@dataclass(frozen=True)
class ScalePlan:
    """Moves to ask for now, how many partitions aren't where they are to be, and why it can't be done at all."""

    moves: tuple[Move, ...] = ()
    remaining: int = 0
    refusal: str = ""
    waits_for: str = ""


def absent(cluster: KafkaCluster, wanted: Collection[int]) -> frozenset[int]:
    """Brokers that have replicas, aren't there and aren't wanted: nothing brings them back. None while one that is
    wanted isn't there: it may have what they have."""
    if not cluster.racks.keys() >= set(wanted):
        return frozenset()
    holders = {broker for _, partition in _partitions(cluster) for broker in partition.replicas}
    return frozenset(holders - cluster.racks.keys() - set(wanted))


def only_on(cluster: KafkaCluster, absent: Collection[int]) -> list[PartitionName]:
    """Partitions that nothing but these absent brokers has all of: nothing can copy them before a broker is back."""
    return sorted(name for name, partition in _partitions(cluster) if _is_only_on(partition, absent))


def drain(
    cluster: KafkaCluster, leaving: Collection[int], staying: Collection[int], absent: Collection[int] = ()
) -> ScalePlan:
    """Takes everything away from brokers that are to go. Partitions that lie there leave `absent` brokers, too, because
    a move that keeps a replica on one of these never ends; what only `absent` brokers have isn't touched. `staying` are
    all that are wanted, running or not."""
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
            refusal=f"topic {topic} has {count} replicas{more}, and {len(staying)} brokers would stay: "
            "lower its replication factor, or keep more brokers"
        )
    takers = {broker: rack for broker, rack in cluster.takers.items() if broker in staying}
    load = Counter(cluster.load)
    targets: dict[PartitionName, Replicas | None] = {}
    stuck = ""
    for name, partition in sorted(concerned.items()):
        if leaving.isdisjoint(partition.target):
            continue  # on its way
        if set(partition.original) <= set(staying) and len(partition.original) == len(partition.target):
            targets[name] = None  # it was to get there: what it comes from has all of it
            load.update(partition.original)
            load.subtract(partition.target)
            continue
        kept = tuple(broker for broker in partition.target if broker not in leaving)
        # The brokers' own topics get along with fewer replicas, and nobody else could lower their factor.
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
    """Gives new brokers their share: only moves onto them, or whatever balances all."""
    if missing := sorted(set(new) - set(cluster.racks)):
        return ScalePlan(waits_for=f"broker {missing[0]} to register")
    partitions = dict(_partitions(cluster))
    moving = sum(not partition.adding.isdisjoint(new) for partition in partitions.values())
    takers = {broker: rack for broker, rack in cluster.takers.items() if broker in wanted}
    present = {name: partition.target for name, partition in partitions.items()}
    if not takers:
        targets: dict[PartitionName, Replicas] = {}  # somebody drains them all
    elif only_new:
        targets = _shared(present, takers, new)
    else:
        planned = balanced(present, [Target(broker, rack) for broker, rack in takers.items()])
        targets = {name: target for name, target in planned.items() if set(target) != set(present[name])}
    return ScalePlan(moves_at_once(cluster, targets), moving + len(targets))


def undrain(cluster: KafkaCluster, staying: Collection[int]) -> tuple[Move, ...]:
    """Ends the moves away from brokers that stay after all."""
    ended: dict[str, dict[int, Replicas | None]] = defaultdict(dict)
    for (topic, index), partition in sorted(_partitions(cluster)):
        if not partition.removing.isdisjoint(staying):
            ended[topic][index] = None
    return tuple(Move(topic, targets) for topic, targets in ended.items())


def throttles(cluster: KafkaCluster, moves: Iterable[Move]) -> list[Configure]:
    """The settings that name the replicas that copy, beside those that copy already."""
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
    """Takes the throttle from topics of nobody's that don't move any more."""
    steps = []
    for topic in cluster.topics.values():
        present = tuple(name for name in (THROTTLED_LEADERS, THROTTLED_FOLLOWERS) if name in topic.overrides)
        if present and not topic.owner and not any(partition.moving for partition in topic.partitions.values()):
            steps.append(Configure(topic.name, {}, present))
    return steps


def _shared(
    present: Mapping[PartitionName, Replicas], takers: Mapping[int, str | None], new: Collection[int]
) -> dict[PartitionName, Replicas]:
    """Replicas for new brokers, taken from those that have most, until each has its part of replicas and of leaders.

    No replica moves twice, and none where its partition would be on fewer racks.
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
    """As many as may be under way at once, beside those that are: these may be given another target, or an end.

    Otherwise moves that can't end, to a broker that has died, would keep out those that lead elsewhere.
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
