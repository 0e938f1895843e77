"""The brokers of a partition's replicas when the number of replicas changes. Pure.

Existing replicas stay where they are as far as possible: only added replicas are copied, and the preferred leader keeps
its place as long as it is in sync.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

Replicas = tuple[int, ...]


def resized(
    replicas: Replicas,
    count: int,
    in_sync: Collection[int],
    takers: Mapping[int, str | None],
    load: Mapping[int, int],
) -> Replicas:
    """The broker ids of `count` replicas, or of fewer where there aren't enough brokers.

    `takers`: the brokers that may get replicas, with their racks; `load`: how many replicas each broker has.
    """
    chosen = list(replicas)
    while len(chosen) > count:
        chosen.remove(max(chosen, key=lambda broker: _dispensable(broker, chosen, in_sync, takers, load)))
    while len(chosen) < count:
        free = [broker for broker in takers if broker not in chosen]
        if not free:
            break
        used = Counter(takers.get(broker) for broker in chosen)
        chosen.append(min(free, key=lambda broker: (used[takers[broker]], load.get(broker, 0), broker)))
    return tuple(chosen)


def _dispensable(
    broker: int,
    chosen: list[int],
    in_sync: Collection[int],
    takers: Mapping[int, str | None],
    load: Mapping[int, int],
) -> tuple[bool, bool, bool, int, int, int]:
    """The sort key of a replica; the one with the greatest key is removed first. Replicas that aren't in sync have the
    greatest keys, then those on brokers that may have no replicas."""
    racks = Counter(takers.get(other) for other in chosen)
    return (
        broker not in in_sync,
        broker not in takers,
        broker != chosen[0],
        racks[takers.get(broker)],
        load.get(broker, 0),
        chosen.index(broker),
    )
