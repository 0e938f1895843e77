"""Whether a cluster's brokers bear alike what was measured, and which replicas are to move if not. Pure.

A plan brings brokers to the edge of their band. A broker is left alone until it is twice as far from the average as the
band is wide: without that distance the next breath of traffic would make another plan.

A plan is carried out over many looks, and others move replicas meanwhile. So it remembers what each partition had when
the plan was made: one that has something else now is somebody's whose word is newer, and leaves the plan.
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
    """How it stands, for the status."""

    summary: str
    out_of_balance: tuple[str, ...] = ()  # goals that some broker is far from
    moves: int = 0  # partitions that would change, or are still to
    bytes_to_copy: int = 0


class Planned(NamedTuple):
    """A partition's move: of which topic, from what, to what."""

    topic_id: UUID
    before: Replicas
    target: Replicas


Plan = Mapping[PartitionName, Planned]


def not_answered(wanted: Collection[int], cluster: KafkaCluster, told: Iterable[Collection[int]]) -> tuple[int, ...]:
    """The brokers that half a measurement would take for idle or gone: those that aren't registered, or were silent at
    one of the looks."""
    silent = set(wanted) - set(cluster.racks)
    for brokers in told:
        silent |= set(wanted) - set(brokers)
    return tuple(sorted(silent))


def wanted_moves(
    cluster: KafkaCluster, measured: Measured, wish: Balance
) -> tuple[Balancing, dict[PartitionName, Planned]]:
    """What to say of the cluster, and the moves that would level it; none where it is level."""
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
    """What to say of a plan that is carried out, and what of it isn't asked for yet."""
    left: dict[PartitionName, Replicas] = {}
    under_way = 0
    for (name, index), planned in plan.items():
        topic = cluster.topics.get(name)
        partition = None if topic is None or topic.id != planned.topic_id else topic.partitions.get(index)
        if partition is None:
            continue  # it was deleted, and may have been made again
        if partition.target == planned.target:
            under_way += partition.moving
        elif partition.target == planned.before and not partition.moving:
            left[name, index] = planned.target
    to_go = len(left) + under_way
    return Balancing(f"moving: {to_go} of {len(plan)} partitions to go", moves=to_go), left


def _outside(plan: LoadPlan) -> tuple[str, ...]:
    return tuple(goal.value for goal in Goal if not all(band.holds for band in plan.before.get(goal, {}).values()))
