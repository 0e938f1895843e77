"""Which of a pool's ids are free for its brokers now. Pure.

An id belongs to one broker. The spec may give a pool ids that brokers of another StatefulSet still have, because their
pool was removed from the spec, or shrinks. Then the new brokers wait until the old ones are drained and gone. If there
were two pods of one id, each would register as that broker in turn, and one of them has an empty volume.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from ottla.operator.objects import Object
from ottla.operator.plan import names
from ottla.operator.plan.observed import existing
from ottla.operator.spec.cluster import Cluster


class HeldBack(NamedTuple):
    """The brokers that wait because brokers of other pools still have their ids. `brokers`: a pool's name → how many of
    its brokers wait; `waits_for`: a sentence that names the brokers that have the ids, or empty."""

    brokers: Mapping[str, int] = MappingProxyType({})
    waits_for: str = ""


def within_free_ids(cluster: Cluster, sets: Iterable[Object], pods: Iterable[Object]) -> tuple[Cluster, HeldBack]:
    """The Cluster without the brokers that have to wait for their ids, and a description of that wait.

    `sets` and `pods` are the StatefulSets and pods of brokers. A pool's ids have no gaps. So if one of the ids is taken
    by another pool's broker, the pool's brokers with higher ids wait, too.
    """
    present = existing(sets, pods)
    owners, owned = dict(present), frozenset(present)
    pools, waiting, held_back = [], [], {}
    for pool in cluster.pools:
        own = names.broker_set(cluster, pool)
        others = (broker for broker in pool.ids if broker in owners and (broker, own) not in owned)
        if (first := next(others, None)) is not None:
            waiting.append(f"the pool {pool.name} waits until broker {first} of {owners[first]} is gone")
            held_back[pool.name] = pool.ids.stop - first
            pool = replace(pool, replicas=first - pool.first_id)
        pools.append(pool)
    return replace(cluster, pools=tuple(pools)), HeldBack(held_back, "; ".join(waiting))
