"""Moves replicas between the log directories of one broker, so that its volumes are about equally full. Pure.

Each directory has a fair part of all bytes, and a band of sizes around this part. As with brokers (`loads.py`), a
directory above its band is brought to the band's edge, by the largest replicas that fit, so that few bytes are copied
in few moves.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from ottla.balance.loads import FULLEST, TOLERANCE
from ottla.placement import PartitionName


class Placed(NamedTuple):
    """The directory and the size of a replica."""

    directory: str
    size_bytes: float


def levelled_directories(
    capacities: Mapping[str, float | None],
    replicas: Mapping[PartitionName, Placed],
    tolerance: float = TOLERANCE,
    movable: Collection[PartitionName] | None = None,
    slack_bytes: float = 0.0,
) -> dict[PartitionName, str]:
    """The new directories of the replicas that are to move, by partition.

    `replicas` are all replicas of the broker, and `movable` the ones that may move (all of them if it is None).
    `capacities` are the bytes that the volume of each directory has for logs. If one of them isn't known (None), all
    directories have the same fair part. No directory is filled beyond `FULLEST` (a fraction) of its capacity. Half of a
    band's width is the fraction `tolerance` of the directory's fair part, and at least `slack_bytes`.
    """
    load = dict.fromkeys(capacities, 0.0)
    held: dict[str, list[PartitionName]] = {path: [] for path in capacities}
    for name, placed in sorted(replicas.items(), key=lambda each: (-each[1].size_bytes, each[0])):
        load[placed.directory] += placed.size_bytes
        held[placed.directory].append(name)
    whole = sum(load.values())
    known = {path: capacity for path, capacity in capacities.items() if capacity}
    parts = known if len(known) == len(capacities) else dict.fromkeys(capacities, 1.0)
    fair = {path: whole * part / sum(parts.values()) for path, part in parts.items()}
    half = {path: max(part * tolerance, slack_bytes) for path, part in fair.items()}
    moves: dict[PartitionName, str] = {}
    for giver in sorted(capacities, key=lambda path: (fair[path] - load[path], path)):
        for name in held[giver]:
            if load[giver] <= fair[giver] + half[giver]:
                break
            if movable is not None and name not in movable:
                continue
            size = replicas[name].size_bytes
            taker = min(capacities, key=lambda path: (load[path] - fair[path], path))
            most = min(fair[taker] + half[taker], FULLEST * known.get(taker, float("inf")))
            if load[taker] + size <= most and load[giver] - size >= fair[giver] - half[giver]:
                moves[name] = taker
                load[giver] -= size
                load[taker] += size
    return moves
