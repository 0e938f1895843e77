"""The smallest set of moves that balances the numbers of replicas and leaders over brokers. Pure.

A replica moves only in three cases: its broker is to have no replicas; two replicas of its partition share a rack
although another rack is free; or its broker has at least two replicas more than the broker to which it moves. Of all
pairs of brokers between which a replica can move, each move is from the fullest broker to the emptiest one. So no
replica moves twice, and no plan with fewer moves balances as well, except where racks forbid moves. Afterwards leaders
are balanced by changes of the order of replicas, which copy nothing.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from ottla.placement import PartitionName, Replicas


class Target(NamedTuple):
    """A broker that may have replicas."""

    id: int
    rack: str | None = None


def balanced(
    assignments: Mapping[PartitionName, Replicas], targets: Iterable[Target], movable: Collection[str] | None = None
) -> dict[PartitionName, Replicas]:
    """The new replicas, preferred leader first, of the partitions that are to change.

    Brokers outside `targets` lose their replicas, as far as other brokers can take them. `movable` are the topics whose
    replicas may move (all topics if it is None). Replicas of other topics stay on their brokers, but are counted.
    """
    plan = _Plan(assignments, targets, movable)
    plan.evacuate()
    plan.spread_over_racks()
    plan.level_replicas()
    plan.level_leaders()
    return {name: replicas for name, replicas in plan.replicas.items() if replicas != assignments[name]}


class _Plan:
    def __init__(
        self,
        assignments: Mapping[PartitionName, Replicas],
        targets: Iterable[Target],
        movable: Collection[str] | None,
    ) -> None:
        self.rack_of = {target.id: target.rack for target in sorted(targets)}
        self.racked = len(set(self.rack_of.values())) > 1
        self.replicas = dict(assignments)
        self.names = sorted(name for name in assignments if movable is None or name[0] in movable)
        self.load = Counter(dict.fromkeys(self.rack_of, 0))
        self.leads = Counter(dict.fromkeys(self.rack_of, 0))
        # Dictionaries are used instead of sets, so that the same input gives the same plan in each process.
        self.held: dict[int, dict[PartitionName, None]] = {broker: {} for broker in self.rack_of}
        self.led: dict[int, dict[PartitionName, None]] = {broker: {} for broker in self.rack_of}
        for replicas in assignments.values():
            self.load.update(replicas)
            self.leads[replicas[0]] += 1
        for name in self.names:
            for broker in assignments[name]:
                self.held.setdefault(broker, {})[name] = None
            self.led.setdefault(assignments[name][0], {})[name] = None
        self.changes = Counter[int]()  # the number of changes of each broker's replicas
        # Pairs of brokers between which no replica could move, with both brokers' `changes` at that time.
        self.futile: dict[tuple[int, int], tuple[int, int]] = {}
        self.of_topic = Counter((name[0], broker) for name in self.names for broker in assignments[name])

    def evacuate(self) -> None:
        """Moves replicas away from the brokers that are to have none, where another broker can take them."""
        for name in self.names:
            for broker in self.replicas[name]:
                if broker not in self.rack_of and (goal := self._best_goal(name, broker)) is not None:
                    self._move(name, broker, goal)

    def spread_over_racks(self) -> None:
        """Moves replicas to other racks where that puts their partition on more racks."""
        for name in self.names if self.racked else ():
            for broker in reversed(self.replicas[name]):
                goal = self._best_goal(name, broker)
                if goal is not None and self._racks(name, broker, goal) > self._racks(name):
                    self._move(name, broker, goal)

    def level_replicas(self) -> None:
        """Moves replicas until no broker has two replicas more than another broker that could take one of its
        replicas."""
        while self._level_one():
            pass

    def level_leaders(self) -> None:
        """Changes the order of replicas until no broker leads two partitions more than another broker that could lead
        one of these partitions instead.

        A change for one broker may make a change possible for another one, so all brokers are tried again.
        """
        changed = True
        while changed:
            changed = False
            for giver in sorted(self.rack_of, key=lambda broker: -self.leads[broker]):
                while path := self._path_to_fewer(giver):
                    self._lead_along(path)
                    changed = True

    def _lead_along(self, path: Iterable[tuple[PartitionName, int]]) -> None:
        for name, broker in path:
            replicas = self.replicas[name]
            place = replicas.index(broker)
            self._lead(name, replicas[0], broker)
            self.replicas[name] = (broker, *replicas[1:place], replicas[0], *replicas[place + 1 :])

    def _level_one(self) -> bool:
        """Moves some replicas from the fullest to the emptiest broker, of all pairs between which a replica can move.

        Returns False if no replica can move.
        """
        fullest = sorted(self.rack_of, key=lambda broker: (-self.load[broker], broker))
        whole = sum(self.load[broker] for broker in fullest)
        least, most = whole // len(fullest), -(-whole // len(fullest))
        for giver in fullest:
            for taker in reversed(fullest):
                if self.load[giver] - self.load[taker] < 2:
                    break
                surplus = self.load[giver] - most
                wanted = min(surplus, least - self.load[taker])
                if wanted < 1:
                    wanted = max(1, min(surplus, most - self.load[taker]))
                tried = self.changes[giver], self.changes[taker]
                if self.futile.get((giver, taker)) == tried:
                    continue
                if self._move_some(giver, taker, wanted):
                    return True
                self.futile[giver, taker] = tried
        return False

    def _move_some(self, giver: int, taker: int, wanted: int) -> int:
        """Moves up to `wanted` replicas, and returns how many moved.

        Topics of which `giver` has many replicas more than `taker` come first. Within a topic, followers move before
        leaders.
        """
        queue = [self._rank(name, giver, taker) for name in self.held[giver] if taker not in self.replicas[name]]
        heapify(queue)
        moved = 0
        while queue and moved < wanted:
            rank = heappop(queue)
            name = rank[2]
            if (newer := self._rank(name, giver, taker)) != rank:
                heappush(queue, newer)  # its rank has changed, because replicas of its topic have moved
            elif self._racks(name, giver, taker) >= self._racks(name):
                self._move(name, giver, taker)
                moved += 1
        return moved

    def _rank(self, name: PartitionName, giver: int, taker: int) -> tuple[int, bool, PartitionName]:
        lopsided = self.of_topic[name[0], giver] - self.of_topic[name[0], taker]
        return -lopsided, self.replicas[name][0] == giver, name

    def _best_goal(self, name: PartitionName, broker: int) -> int | None:
        """The best broker for the partition's replica on `broker`; None if all brokers have replicas of the partition.

        The best broker puts the partition on the most racks. Of several such brokers, it has the fewest replicas.
        """
        free = [goal for goal in self.rack_of if goal not in self.replicas[name]]

        def rank(goal: int) -> tuple[int, int, int, int]:
            return -self._racks(name, broker, goal), self.load[goal], self.of_topic[name[0], goal], goal

        return min(free, key=rank, default=None)

    def _racks(self, name: PartitionName, giver: int | None = None, taker: int | None = None) -> int:
        """The number of racks on which the partition is, or would be after a move from `giver` to `taker`."""
        if not self.racked:
            return 1
        brokers = [taker if broker == giver else broker for broker in self.replicas[name]]
        return len({self.rack_of[broker] for broker in brokers if broker in self.rack_of})

    def _move(self, name: PartitionName, giver: int, taker: int) -> None:
        replicas = self.replicas[name]
        if replicas[0] == giver:
            self._lead(name, giver, taker)
        self.replicas[name] = tuple(taker if broker == giver else broker for broker in replicas)
        self.load[giver] -= 1
        self.load[taker] += 1
        self.of_topic[name[0], giver] -= 1
        self.of_topic[name[0], taker] += 1
        self.changes.update((giver, taker))
        del self.held[giver][name]
        self.held[taker][name] = None

    def _lead(self, name: PartitionName, giver: int, taker: int) -> None:
        self.leads[giver] -= 1
        self.leads[taker] += 1
        del self.led[giver][name]
        self.led[taker][name] = None

    def _path_to_fewer(self, giver: int) -> list[tuple[PartitionName, int]]:
        """The shortest chain of leader changes by which `giver` leads one partition fewer; empty if there is none.

        Each change is (partition, new first broker). The chain leads from `giver` to a broker that leads at least two
        partitions fewer than `giver`. That broker leads one more afterwards, and the brokers in between lead as many
        as before.
        """
        came: dict[int, tuple[int, PartitionName]] = {}
        queue = deque([giver])
        while queue:
            broker = queue.popleft()
            for name in self.led[broker]:
                for other in self.replicas[name]:
                    if other == giver or other in came or other not in self.rack_of:
                        continue
                    came[other] = (broker, name)
                    if self.leads[giver] - self.leads[other] >= 2:
                        return _path(came, giver, other)
                    queue.append(other)
        return []


def _path(came: Mapping[int, tuple[int, PartitionName]], start: int, end: int) -> list[tuple[PartitionName, int]]:
    path = []
    while end != start:
        before, name = came[end]
        path.append((name, end))
        end = before
    return path
