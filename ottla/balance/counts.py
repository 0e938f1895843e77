"""The smallest set of moves that balances replicas and leaders over brokers. Pure.

The plan keeps what it can: a replica moves only if its broker is to have none, if two replicas of its partition share a
rack although another rack is free, or if its broker has at least two more than the one that it goes to. Each move takes
from the fullest to the emptiest for which a partition can be found, so no replica moves twice and, where racks don't
forbid it, no plan with fewer moves balances as well. Then leaders are balanced by the order of replicas alone, which
costs no copying.
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
    """New replicas, preferred leader first, of those partitions that are to change.

    Brokers outside `targets` lose their replicas, as far as there are targets. `movable` are the topics that may be
    touched (None: all); the others count as load.
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
        # Dictionaries for sets: the same input is to give the same plan in each process.
        self.held: dict[int, dict[PartitionName, None]] = {broker: {} for broker in self.rack_of}
        self.led: dict[int, dict[PartitionName, None]] = {broker: {} for broker in self.rack_of}
        for replicas in assignments.values():
            self.load.update(replicas)
            self.leads[replicas[0]] += 1
        for name in self.names:
            for broker in assignments[name]:
                self.held.setdefault(broker, {})[name] = None
            self.led.setdefault(assignments[name][0], {})[name] = None
        self.changes = Counter[int]()  # of what a broker holds
        self.futile: dict[tuple[int, int], tuple[int, int]] = {}  # pairs between which nothing moves, at which changes
        self.of_topic = Counter((name[0], broker) for name in self.names for broker in assignments[name])

    def evacuate(self) -> None:
        """Takes every replica away from brokers that are to have none."""
        for name in self.names:
            for broker in self.replicas[name]:
                if broker not in self.rack_of and (goal := self._best_goal(name, broker)) is not None:
                    self._move(name, broker, goal)

    def spread_over_racks(self) -> None:
        """Takes replicas that share a rack apart, where that adds a rack to the partition's."""
        for name in self.names if self.racked else ():
            for broker in reversed(self.replicas[name]):
                goal = self._best_goal(name, broker)
                if goal is not None and self._racks(name, broker, goal) > self._racks(name):
                    self._move(name, broker, goal)

    def level_replicas(self) -> None:
        """Moves replicas until no broker has two more than another that could take one of them."""
        while self._level_one():
            pass

    def level_leaders(self) -> None:
        """Changes orders until no broker is first two times more often than another that could be in its place.

        What is changed for one broker may open a way for one that had none before, so all are looked at again.
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
        """Moves some replicas from the fullest to the emptiest broker between which any can be moved."""
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
        """Moves up to so many: of the topics that are most lopsided between the two, followers before leaders."""
        queue = [self._rank(name, giver, taker) for name in self.held[giver] if taker not in self.replicas[name]]
        heapify(queue)
        moved = 0
        while queue and moved < wanted:
            rank = heappop(queue)
            name = rank[2]
            if (newer := self._rank(name, giver, taker)) != rank:
                heappush(queue, newer)  # others of its topic have moved
            elif self._racks(name, giver, taker) >= self._racks(name):
                self._move(name, giver, taker)
                moved += 1
        return moved

    def _rank(self, name: PartitionName, giver: int, taker: int) -> tuple[int, bool, PartitionName]:
        lopsided = self.of_topic[name[0], giver] - self.of_topic[name[0], taker]
        return -lopsided, self.replicas[name][0] == giver, name

    def _best_goal(self, name: PartitionName, broker: int) -> int | None:
        """Where that replica would best be: on a new rack, on a broker with little."""
        free = [goal for goal in self.rack_of if goal not in self.replicas[name]]

        def rank(goal: int) -> tuple[int, int, int, int]:
            return -self._racks(name, broker, goal), self.load[goal], self.of_topic[name[0], goal], goal

        return min(free, key=rank, default=None)

    def _racks(self, name: PartitionName, giver: int | None = None, taker: int | None = None) -> int:
        """On how many racks the partition is, or would be after a move."""
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
        """Partitions whose first replica is to change, and to which broker, so that `giver` leads one less in the end
        and a broker that leads at least two less than it one more; the shortest such row, empty if there is none."""
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
