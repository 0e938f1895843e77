"""Whether the measured load is balanced between a cluster's brokers, and which replicas move if it isn't. Pure.

A plan brings brokers to the edge of the tolerated band around the average. A broker is left alone until it is twice as
far from the average as the band allows. Without that distance, the next small change of traffic would cause a new plan.

A plan is carried out over many reconciles, and other clients may move replicas meanwhile. So the plan remembers the
replicas that each partition had when the plan was made. A partition that has other replicas now was moved by a newer
request, and leaves the plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from ottla.balance.loads import Goal, LoadPlan, levelled
from ottla.balance.measured import Measured
from ottla.operator.plan.topic import KafkaCluster, Replicas
from ottla.operator.spec.balance import Balance
from ottla.placement import PartitionName
from ottla.wording import counted, size_text

_PATIENCE = 2.0


@dataclass(frozen=True)
class Balancing:
    """The state of the balance, for the Cluster's status."""

    summary: str
    out_of_balance: tuple[str, ...] = ()  # the goals that some broker is too far from
    moves: int = 0  # partitions that a plan would move, or has still to move
    bytes_to_copy: int = 0


class Planned(NamedTuple):
    """A partition's move: its topic's id, the replicas before the move, and the replicas after it."""

    topic_id: UUID
    before: Replicas
    target: Replicas


Plan = Mapping[PartitionName, Planned]


def not_answered(wanted: Collection[int], cluster: KafkaCluster, told: Iterable[Collection[int]]) -> tuple[int, ...]:
    """The wanted brokers that aren't registered, or were silent in one of the measurements (`told`: the brokers that
    answered in each). A plan from an incomplete measurement would treat these brokers as idle or removed."""
    silent = set(wanted) - set(cluster.racks)
    for brokers in told:
        silent |= set(wanted) - set(brokers)
    return tuple(sorted(silent))


def wanted_moves(
    cluster: KafkaCluster, measured: Measured, wish: Balance
) -> tuple[Balancing, dict[PartitionName, Planned]]:
    """The state of the balance, and the moves that would balance the cluster; no moves where it is in balance, or where
    no move would help."""
    plan = levelled(
        measured.partitions,
        measured.brokers.values(),
        wish.goals,
        None,
        wish.tolerance_percent / 100,
        measured.slack,
        _PATIENCE,
    )
    outside = _outside(plan)
    if not plan.targets:
        said = f"out of balance ({', '.join(outside)}), and no move would help" if outside else "in balance"
        return Balancing(said, outside), {}
    planned = {
        name: Planned(cluster.topics[name[0]].id, measured.partitions[name].replicas, target)
        for name, target in plan.targets.items()
    }
    size = int(plan.bytes_to_copy)
    said = f"{counted(len(planned), 'move')}, {size_text(size)} to copy"
    return Balancing(said, outside, len(planned), size), planned


def moving(plan: Plan, cluster: KafkaCluster) -> tuple[Balancing, dict[PartitionName, Replicas]]:
    """The state of a plan that is being carried out, and its moves that weren't requested from the brokers yet."""
    left: dict[PartitionName, Replicas] = {}
    under_way = 0
    for (name, index), planned in plan.items():
        topic = cluster.topics.get(name)
        partition = None if topic is None or topic.id != planned.topic_id else topic.partitions.get(index)
        if partition is None:
            continue  # the topic was deleted, and maybe another one was created under its name
        if partition.target == planned.target:
            under_way += partition.moving
        elif partition.target == planned.before and not partition.moving:
            left[name, index] = planned.target
    to_go = len(left) + under_way
    return Balancing(f"moving: {to_go} of {counted(len(plan), 'partition')} to go", moves=to_go), left


def _outside(plan: LoadPlan) -> tuple[str, ...]:
    return tuple(goal.value for goal in Goal if not all(band.holds for band in plan.before.get(goal, {}).values()))
