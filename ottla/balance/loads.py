"""Moves that balance the measured loads over brokers: bytes on disk, work, replicas and leaders. Pure.

The goals are tried in a fixed order. Each goal is a band around the average load (for bytes on disk: around the
broker's share by capacity). A broker outside the band is brought to the band's edge, not to its middle, so that few
bytes are copied. A move for one goal never takes a broker out of the band of an earlier goal. No move puts a partition
on fewer racks, or fills a broker beyond the fraction `FULLEST` of its capacity. Changes of leaders are tried before
moves of replicas, because a new order of replicas copies nothing.

The goals are like Cruise Control's (`ResourceDistributionGoal`, `LeaderReplicaDistributionGoal`), with one difference:
the bytes a second that brokers handle measure both CPU and network. A broker spends its CPU time on these bytes, so a
partition's share of the bytes is the best available measure of the CPU time that the partition costs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import StrEnum
from math import ceil, floor, inf
from types import MappingProxyType
from typing import NamedTuple

from ottla.placement import PartitionName, Replicas

FULLEST = 0.9  # of a broker's capacity: no move fills a broker beyond this fraction
TOLERANCE = 0.1  # half of a band's width, as a fraction of the average
_TAKERS_TRIED = 12  # the number of emptiest brokers that are tried for each replica
_EXCHANGES_TRIED = 200  # the number of a broker's replicas for which an exchange with smaller ones is tried
_ROUNDS = 4


class Goal(StrEnum):
    """The loads that are balanced over brokers, the most important one first."""

    racks = "racks"
    replicas = "replicas"
    disk = "disk"
    cpu = "cpu"
    leaders = "leaders"


_LEVELLED = (Goal.replicas, Goal.disk, Goal.cpu, Goal.leaders)
_BY_LEADING = (Goal.cpu, Goal.leaders)


class BrokerLoad(NamedTuple):
    """A broker that may have replicas. `capacity_bytes` is the capacity of all its volumes together. It is None if
    the capacity isn't known."""

    id: int
    rack: str | None = None
    capacity_bytes: float | None = None


class PartitionLoad(NamedTuple):
    """A partition's replicas, and the loads that it puts on their brokers.

    `leading` are the bytes a second that its leader handles, `following` those that each of its followers handles.
    """

    replicas: Replicas
    size_bytes: float = 0.0
    leading: float = 0.0
    following: float = 0.0


class Band(NamedTuple):
    """The lower and the upper bound of a broker's load for one goal, and that load."""

    low: float
    high: float
    load: float

    @property
    def holds(self) -> bool:
        """Whether the load is within the bounds."""
        return self.low <= self.load <= self.high


class LoadPlan(NamedTuple):
    """The new replicas, preferred leader first, of the partitions that are to change, and the effect of the changes."""

    targets: dict[PartitionName, Replicas]
    bytes_to_copy: float
    before: dict[Goal, dict[int, Band]]
    after: dict[Goal, dict[int, Band]]


def levelled(
    partitions: Mapping[PartitionName, PartitionLoad],
    brokers: Iterable[BrokerLoad],
    goals: Collection[Goal] = tuple(Goal),
    movable: Collection[str] | None = None,
    tolerance: float = TOLERANCE,
    slack: Mapping[Goal, float] = MappingProxyType({}),
    patience: float = 1.0,
) -> LoadPlan:
    """The moves that bring all brokers into the bands of `goals`, as far as there are such moves.

    Brokers that aren't among `brokers` lose their replicas. `movable` are the topics whose replicas may move (all
    topics if it is None). Replicas of other topics stay on their brokers, but count as load. Half of a band's width is
    the fraction `tolerance` of the average, and at least the goal's `slack`. A broker's load isn't changed until its
    distance from the average exceeds `patience` times this half; then it is brought to the band's edge. The returned
    bands are the wider ones, with `patience` applied. Raises ValueError if there is no broker.
    """
    wanted = [goal for goal in Goal if goal in goals]
    planner = _Planner(partitions, brokers, wanted, movable, _Width(tolerance, slack, patience))
    before = planner.bands()
    planner.run()
    targets = {name: target for name, target in planner.replicas.items() if target != partitions[name].replicas}
    copied = sum(
        partitions[name].size_bytes * len(set(target).difference(partitions[name].replicas))
        for name, target in targets.items()
    )
    return LoadPlan(targets, copied, before, planner.bands())


class _Width(NamedTuple):
    """The parameters of the bands' width."""

    tolerance: float
    slack: Mapping[Goal, float]
    patience: float


class _Planner:
    def __init__(
        self,
        partitions: Mapping[PartitionName, PartitionLoad],
        brokers: Iterable[BrokerLoad],
        goals: Sequence[Goal],
        movable: Collection[str] | None,
        width: _Width,
    ) -> None:
        self.partitions = partitions
        self.brokers = {broker.id: broker for broker in sorted(brokers)}
        if not self.brokers:
            raise ValueError("there is no broker that replicas could go to")
        self.goals = [goal for goal in goals if goal in _LEVELLED]
        self.racked = Goal.racks in goals
        self.rack_of = {broker.id: broker.rack for broker in self.brokers.values()}
        self.replicas = {name: partition.replicas for name, partition in partitions.items()}
        self.names = sorted(name for name in partitions if movable is None or name[0] in movable)
        self.load = {goal: dict.fromkeys(self.brokers, 0.0) for goal in _LEVELLED}
        # Dictionaries are used instead of sets, so that the same input gives the same plan in each process.
        self.held: dict[int, dict[PartitionName, None]] = {broker: {} for broker in self.brokers}
        for partition in partitions.values():
            for broker in partition.replicas:
                if broker in self.brokers:
                    self._bear(broker, partition, 1, leads=broker == partition.replicas[0])
        for name in self.names:
            for broker in self.replicas[name]:
                self.held.setdefault(broker, {})[name] = None
        self.low, self.high = self._limits(width, 1.0)
        self.too_low, self.too_high = self._limits(width, width.patience)  # a load within these bounds isn't changed

    def run(self) -> None:
        """Plans the moves for all goals in their order, in up to `_ROUNDS` rounds.

        Another round may find more moves, because moves for later goals may make moves for earlier goals possible. The
        rounds end when a round moves nothing.
        """
        self._evacuate()
        if self.racked:
            self._spread_over_racks()
        for _ in range(_ROUNDS):
            if not sum([self._level(goal) for goal in self.goals]):
                return

    def bands(self) -> dict[Goal, dict[int, Band]]:
        """Each broker's load and its bounds, by goal."""
        return {
            goal: {
                broker: Band(self.too_low[goal][broker], self.too_high[goal][broker], self.load[goal][broker])
                for broker in self.brokers
            }
            for goal in self.goals
        }

    # ---- the bounds of brokers' loads

    def _limits(self, width: _Width, times: float) -> tuple[dict[Goal, dict[int, float]], dict[Goal, dict[int, float]]]:
        low: dict[Goal, dict[int, float]] = {}
        high: dict[Goal, dict[int, float]] = {}
        totals = self._totals()
        for goal in _LEVELLED:
            fair = {broker: totals[goal] * part for broker, part in self._parts(goal).items()}
            slack = width.slack.get(goal, 0.0)
            half = {broker: times * max(amount * width.tolerance, slack) for broker, amount in fair.items()}
            low[goal] = {broker: amount - half[broker] for broker, amount in fair.items()}
            high[goal] = {broker: amount + half[broker] for broker, amount in fair.items()}
            if goal in (Goal.replicas, Goal.leaders):
                low[goal] = {broker: min(low[goal][broker], floor(amount)) for broker, amount in fair.items()}
                high[goal] = {broker: max(high[goal][broker], ceil(amount)) for broker, amount in fair.items()}
        return low, high

    def _totals(self) -> dict[Goal, float]:
        """The whole load of all partitions, for each goal."""
        each = self.partitions.values()
        return {
            Goal.disk: sum(len(one.replicas) * one.size_bytes for one in each),
            Goal.cpu: sum(one.leading + (len(one.replicas) - 1) * one.following for one in each),
            Goal.replicas: float(sum(len(one.replicas) for one in each)),
            Goal.leaders: float(len(self.partitions)),
        }

    def _parts(self, goal: Goal) -> dict[int, float]:
        """Each broker's fair part of a goal's load, as a fraction.

        For bytes on disk it follows from the brokers' capacities, if all of them are known. Otherwise it is the same
        for all brokers.
        """
        capacities = {broker.id: broker.capacity_bytes or 0.0 for broker in self.brokers.values()}
        if goal is Goal.disk and all(capacities.values()):
            whole = sum(capacities.values())
            return {broker: capacity / whole for broker, capacity in capacities.items()}
        return dict.fromkeys(self.brokers, 1 / len(self.brokers))

    # ---- the goals

    def _evacuate(self) -> None:
        for broker in [broker for broker in self.held if broker not in self.brokers]:
            for name in list(self.held[broker]):
                takers = self._takers(Goal.disk if Goal.disk in self.goals else Goal.replicas)
                free = [taker for taker in takers if taker not in self.replicas[name] and self._has_room(taker, name)]
                if free:
                    self._move(name, broker, max(free, key=lambda taker: self._racks(name, broker, taker)))

    def _spread_over_racks(self) -> None:
        """Moves replicas that share a rack to racks on which their partition has none yet."""
        racks = len(set(self.rack_of.values()))
        if racks < 2:
            return
        for name in self.names:
            for broker in reversed(self.replicas[name]):
                present = self._racks(name)
                if present == min(len(self.replicas[name]), racks):
                    break
                for taker in self._takers(Goal.disk):
                    if (
                        taker not in self.replicas[name]
                        and self._racks(name, broker, taker) > present
                        and self._has_room(taker, name)
                    ):
                        self._move(name, broker, taker)
                        break

    def _level(self, goal: Goal) -> int:
        """Brings brokers into a goal's band. Returns how many replicas and leaders moved."""
        moved = 0
        load, high, low = self.load[goal], self.too_high[goal], self.too_low[goal]
        for giver in sorted(self.brokers, key=lambda broker: (high[broker] - load[broker], broker)):
            if load[giver] > high[giver]:
                moved += self._give(goal, giver)
        for taker in sorted(self.brokers, key=lambda broker: (load[broker] - low[broker], broker)):
            if load[taker] < low[taker]:
                moved += self._take(goal, taker)
        return moved

    def _give(self, goal: Goal, giver: int) -> int:
        """Takes load from a broker until it is in the band: leaders first, because a change of leader copies nothing.

        Returns the number of replicas and leaders that moved.
        """
        moved = 0
        if goal in _BY_LEADING:
            for name in self._by_effect(goal, self._led_by(giver)):
                if self.load[goal][giver] <= self.high[goal][giver]:
                    return moved
                others = sorted(self.replicas[name][1:], key=lambda other: self.load[goal].get(other, inf))
                moved += any(self._try_lead(goal, name, giver, other) for other in others)
        takers = self._takers(goal)
        for name in self._by_effect(goal, self.held[giver], self.load[goal][giver] - self.low[goal][giver], giver):
            if self.load[goal][giver] <= self.high[goal][giver]:
                break
            if self._give_one(goal, name, giver, takers):
                moved += 1
                takers = self._takers(goal)
        if goal is not Goal.replicas and self.load[goal][giver] > self.high[goal][giver]:
            for taker in self._takers(goal)[:_TAKERS_TRIED]:
                moved += self._exchange(goal, giver, taker)
        return moved

    def _exchange(self, goal: Goal, giver: int, taker: int) -> int:
        """Exchanges replicas of `giver` with much load for replicas of `taker` with little load.

        Both brokers have as many replicas as before. The exchange ends once `giver` isn't above its band and `taker`
        isn't below its band. Returns the number of replicas that moved.
        """
        exchanged = 0
        load, high, low = self.load[goal], self.high[goal], self.low[goal]
        for name in self._by_effect(goal, self.held[giver], giver=giver)[:_EXCHANGES_TRIED]:
            if load[giver] <= high[giver] and load[taker] >= low[taker]:
                break
            cheap = self._by_effect(goal, self.held[taker], giver=taker, smallest=True)[:_TAKERS_TRIED]
            exchanged += 2 * any(self._try_exchange(goal, name, giver, other, taker) for other in cheap)
        return exchanged

    def _give_one(self, goal: Goal, name: PartitionName, giver: int, takers: Sequence[int]) -> bool:
        """Moves a replica to the emptiest broker that can take it, on a rack to which the replica may move. Returns
        whether the replica moved."""
        closed = self._closed_racks(name, giver)
        tried = 0
        for taker in takers:
            if self.rack_of[taker] in closed or taker in self.replicas[name]:
                continue
            if self._try_move(goal, name, giver, taker):
                return True
            tried += 1
            if tried == _TAKERS_TRIED:
                break
        return False

    def _closed_racks(self, name: PartitionName, giver: int) -> Collection[str | None]:
        """The racks to which the replica on `giver` can't move, because its partition would then be on fewer racks."""
        others = [self.rack_of[broker] for broker in self.replicas[name] if broker != giver and broker in self.rack_of]
        return () if self.rack_of.get(giver) in others else others

    def _take(self, goal: Goal, taker: int) -> int:
        """Gives load to a broker until it is in the band, from the brokers with the greatest load.

        Returns the number of replicas and leaders that moved.
        """
        moved = 0
        load, low = self.load[goal], self.low[goal]
        for giver in self._takers(goal)[::-1]:
            if load[taker] >= low[taker] or giver == taker:
                break
            if goal in _BY_LEADING:
                for name in self._by_effect(goal, self._led_by(giver)):
                    if load[taker] >= low[taker] or load[giver] <= low[giver]:
                        break
                    if taker in self.replicas[name]:
                        moved += self._try_lead(goal, name, giver, taker)
            room = min(load[giver] - low[giver], self.high[goal][taker] - load[taker])
            for name in self._by_effect(goal, self.held[giver], room, giver):
                if load[taker] >= low[taker]:
                    break
                if self.rack_of[taker] not in self._closed_racks(name, giver) and taker not in self.replicas[name]:
                    moved += self._try_move(goal, name, giver, taker)
            if goal is not Goal.replicas and load[taker] < low[taker]:
                moved += self._exchange(goal, giver, taker)
        return moved

    def _led_by(self, broker: int) -> list[PartitionName]:
        return [name for name in self.held[broker] if self.replicas[name][0] == broker]

    def _by_effect(
        self,
        goal: Goal,
        names: Iterable[PartitionName],
        most: float = inf,
        giver: int | None = None,
        smallest: bool = False,
    ) -> list[PartitionName]:
        """Partitions in the order in which their replicas on `giver` should move. If `giver` is None, it is the order
        in which their leaders should change.

        For disk, the largest partitions come first: they move the same bytes in fewer moves. For CPU, the partitions
        with the most work for each copied byte come first. For the numbers of replicas and leaders, the smallest
        partitions come first. Partitions without load of the goal are left out, and for disk and CPU also partitions
        with a load above `most`. With `smallest`, partitions are ordered by their load of the goal, the least first,
        and none is left out.
        """
        partitions = self.partitions
        if smallest:
            amounts = {name: self._effect(goal, name, giver) for name in names}
            return sorted(amounts, key=lambda name: (amounts[name], name))
        if goal is Goal.disk:
            fitting = [name for name in names if 0 < partitions[name].size_bytes <= most]
            return sorted(fitting, key=lambda name: (-partitions[name].size_bytes, name))
        if goal is Goal.cpu:
            work = {name: self._effect(goal, name, giver) for name in names}
            fitting = [name for name, amount in work.items() if 0 < amount <= most]
            return sorted(fitting, key=lambda name: (-work[name] / (partitions[name].size_bytes + 1), name))
        fitting = [name for name in names if self._effect(goal, name, giver)]
        return sorted(fitting, key=lambda name: (partitions[name].size_bytes, name))

    def _effect(self, goal: Goal, name: PartitionName, broker: int | None) -> float:
        """The load of a goal that `broker` loses when the replica there moves away.

        With `broker` None, it is the load that the leader's broker loses when only the leader changes.
        """
        partition = self.partitions[name]
        if broker is None:
            return {Goal.cpu: partition.leading - partition.following, Goal.leaders: 1.0}.get(goal, 0.0)
        leads = self.replicas[name][0] == broker
        if goal is Goal.disk:
            return partition.size_bytes
        if goal is Goal.cpu:
            return partition.leading if leads else partition.following
        return 1.0 if goal is Goal.replicas else float(leads)

    def _takers(self, goal: Goal) -> list[int]:
        """The brokers, ordered by load in proportion to their upper bound, the lowest first."""
        load, high = self.load[goal], self.high[goal]
        return sorted(self.brokers, key=lambda broker: (load[broker] / high[broker] if high[broker] else 0.0, broker))

    # ---- single moves

    def _try_move(self, goal: Goal, name: PartitionName, giver: int, taker: int) -> bool:
        """Moves a replica if the goals and the room on `taker` allow it. Returns whether it moved.

        The caller has checked that `taker` has no replica of the partition, and that the move doesn't reduce the number
        of racks that have a replica of the partition.
        """
        effect = {each: self._effect(each, name, giver) for each in self.goals}
        if not self._has_room(taker, name) or not self._allowed(goal, effect, giver, taker):
            return False
        self._move(name, giver, taker)
        return True

    def _try_exchange(self, goal: Goal, name: PartitionName, giver: int, other: PartitionName, taker: int) -> bool:
        if taker in self.replicas[name] or giver in self.replicas[other] or not self._has_room(taker, name):
            return False
        racks = self.rack_of
        if racks[taker] in self._closed_racks(name, giver) or racks[giver] in self._closed_racks(other, taker):
            return False
        effect = {each: self._effect(each, name, giver) - self._effect(each, other, taker) for each in self.goals}
        if effect[goal] <= 0 or not self._allowed(goal, effect, giver, taker):
            return False
        self._move(name, giver, taker)
        self._move(other, taker, giver)
        return True

    def _try_lead(self, goal: Goal, name: PartitionName, giver: int, taker: int) -> bool:
        effect = {each: self._effect(each, name, None) for each in self.goals}
        if taker not in self.brokers or not self._allowed(goal, effect, giver, taker):
            return False
        self._lead(name, taker)
        return True

    def _allowed(self, goal: Goal, effect: Mapping[Goal, float], giver: int, taker: int) -> bool:
        """Whether a change takes no broker out of its band, or further out of it, for `goal` and all earlier goals.

        `effect` has, for each goal, the load that `giver` loses and `taker` gets.
        """
        for each in self.goals:
            amount = effect[each]
            if amount:
                load = self.load[each]
                full, empty = (taker, giver) if amount > 0 else (giver, taker)
                if (
                    load[full] + abs(amount) > self.high[each][full]
                    or load[empty] - abs(amount) < self.low[each][empty]
                ):
                    return False
            if each is goal:
                break
        return True

    def _has_room(self, broker: int, name: PartitionName) -> bool:
        capacity = self.brokers[broker].capacity_bytes
        return capacity is None or self.load[Goal.disk][broker] + self.partitions[name].size_bytes <= FULLEST * capacity

    def _racks(self, name: PartitionName, giver: int | None = None, taker: int | None = None) -> int:
        """The number of racks on which the partition is, or would be after a move from `giver` to `taker`."""
        racks = self.rack_of
        brokers = [taker if broker == giver else broker for broker in self.replicas[name]]
        return len({racks[broker] for broker in brokers if broker in racks})

    def _move(self, name: PartitionName, giver: int, taker: int) -> None:
        replicas, partition = self.replicas[name], self.partitions[name]
        leads = replicas[0] == giver
        if giver in self.brokers:
            self._bear(giver, partition, -1, leads=leads)
        self._bear(taker, partition, 1, leads=leads)
        self.replicas[name] = tuple(taker if broker == giver else broker for broker in replicas)
        del self.held[giver][name]
        self.held[taker][name] = None

    def _lead(self, name: PartitionName, taker: int) -> None:
        replicas, partition = self.replicas[name], self.partitions[name]
        giver, place = replicas[0], replicas.index(taker)
        for broker, sign in ((giver, -1), (taker, 1)):
            if broker in self.brokers:
                self.load[Goal.cpu][broker] += sign * (partition.leading - partition.following)
                self.load[Goal.leaders][broker] += sign
        self.replicas[name] = (taker, *replicas[1:place], giver, *replicas[place + 1 :])

    def _bear(self, broker: int, partition: PartitionLoad, sign: int, *, leads: bool) -> None:
        self.load[Goal.disk][broker] += sign * partition.size_bytes
        self.load[Goal.cpu][broker] += sign * (partition.leading if leads else partition.following)
        self.load[Goal.replicas][broker] += sign
        self.load[Goal.leaders][broker] += sign * leads
