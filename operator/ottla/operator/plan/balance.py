"""Whether a cluster's brokers bear alike what was measured, and which replicas are to move if not. Pure.

A broker that is a little outside its band is left alone until it is twice as far from the average as the band is wide:
a plan brings brokers to the band's edge, and without that distance the next breath of traffic would make another plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.balance.loads import LoadPlan, levelled
from ottla.balance.measured import Measured
from ottla.operator.plan.topic import KafkaCluster, Replicas
from ottla.operator.spec.balance import Balance
from ottla.placement import PartitionName

_PATIENCE = 2  # times the tolerance


@dataclass(frozen=True)
class Balancing:
    """How it stands, for the status."""

    summary: str
    out_of_balance: tuple[str, ...] = ()  # goals that some broker is far from
    moves: int = 0  # partitions that would change, or are still to
    bytes_to_copy: int = 0


def wanted_moves(
    cluster: KafkaCluster, measured: Measured, wish: Balance
) -> tuple[Balancing, dict[PartitionName, Replicas]]:
    """What to say of the cluster, and the moves that would level it; none where it is level."""
    brokers = [load for broker, load in measured.brokers.items() if broker in cluster.takers]
    tolerance = wish.tolerance_percent / 100
    if not brokers:
        return Balancing("no broker may get replicas"), {}
    far = levelled(measured.partitions, brokers, wish.goals, (), _PATIENCE * tolerance, measured.slack)
    outside = _outside(far)
    plan = levelled(measured.partitions, brokers, wish.goals, None, tolerance, measured.slack)
    needed = {
        name: target for name, target in plan.targets.items() if outside or _racks_grow(cluster, name, target, measured)
    }
    if not needed:
        said = f"out of balance ({', '.join(outside)}), and no move would help" if outside else "in balance"
        return Balancing(said, outside), {}
    size = sum(
        int(measured.partitions[name].size_bytes) * len(set(target).difference(measured.partitions[name].replicas))
        for name, target in needed.items()
    )
    return Balancing(f"{len(needed)} moves, {_size(size)} to copy", outside, len(needed), size), needed


def moving(
    plan: Mapping[PartitionName, Replicas], cluster: KafkaCluster
) -> tuple[Balancing, dict[PartitionName, Replicas]]:
    """What to say of a plan that is carried out, and what of it isn't asked for yet."""
    left: dict[PartitionName, Replicas] = {}
    under_way = 0
    for (topic, index), target in plan.items():
        partition = cluster.topics[topic].partitions.get(index) if topic in cluster.topics else None
        if partition is None:
            continue  # it was deleted
        if partition.target != target:
            left[topic, index] = target
        elif partition.moving:
            under_way += 1
    to_go = len(left) + under_way
    return Balancing(f"moving: {to_go} of {len(plan)} partitions to go", moves=to_go), left


def _outside(plan: LoadPlan) -> tuple[str, ...]:
    return tuple(goal.value for goal, bands in plan.before.items() if not all(band.holds for band in bands.values()))


def _racks_grow(cluster: KafkaCluster, name: PartitionName, target: Replicas, measured: Measured) -> bool:
    """Whether a move puts its partition on more racks, which is worth it at any time."""

    def racks(replicas: Replicas) -> int:
        return len({cluster.racks.get(broker) for broker in replicas})

    return racks(target) > racks(measured.partitions[name].replicas)


def _size(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
