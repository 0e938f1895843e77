"""Which brokers a partition's replicas are on once there are to be more or fewer of them. Pure.

What is there stays as far as it can: nothing is copied but the replicas that are added, and the preferred leader stays
in its place as long as it is in sync.
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
    """`count` replicas, fewer where there aren't as many brokers. `takers`: broker → rack; `load`: replicas of each."""
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
    """The greater, the sooner it goes: first what isn't in sync or is on a broker that is to have nothing."""
    racks = Counter(takers.get(other) for other in chosen)
    return (
        broker not in in_sync,
        broker not in takers,
        broker != chosen[0],
        racks[takers.get(broker)],
        load.get(broker, 0),
        chosen.index(broker),
    )
