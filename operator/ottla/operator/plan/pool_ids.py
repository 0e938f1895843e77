"""Which of its ids a pool may give to brokers now. Pure.

An id is one broker's. A pool may be given ids that the brokers of another StatefulSet still have: of a pool that was
taken out of the spec, or that shrinks. Then its own brokers wait until those are drained and gone. Two pods of one id
would take turns at being that broker, and one of them has an empty volume.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from ottla.operator.objects import Object
from ottla.operator.plan import names
from ottla.operator.plan.observed import broker_sets
from ottla.operator.spec.cluster import Cluster


class HeldBack(NamedTuple):
    """How many brokers aren't made yet because others have their ids, and what they wait for."""

    brokers: int = 0
    waits_for: str = ""


def within_free_ids(cluster: Cluster, sets: Iterable[Object], pods: Iterable[Object]) -> tuple[Cluster, HeldBack]:
    """The Cluster with only those brokers whose ids are free or their own pool's; and the others.

    `sets` and `pods` are the brokers'. A pool's ids have no gaps, so its brokers end before the first id that is
    another pool's.
    """
    had = {(broker, name) for name, ids in broker_sets(sets).items() for broker in ids}
    for pod in pods:
        name, _, number = pod["metadata"]["name"].rpartition("-")
        had.add((int(number), name))
    owners = dict(had)
    pools, waiting, held_back = [], [], 0
    for pool in cluster.pools:
        own = names.broker_set(cluster, pool)
        others = (broker for broker in pool.ids if broker in owners and (broker, own) not in had)
        if (first := next(others, None)) is not None:
            waiting.append(f"the pool {pool.name} waits until broker {first} of {owners[first]} is gone")
            held_back += pool.ids.stop - first
            pool = replace(pool, replicas=first - pool.first_id)
        pools.append(pool)
    return replace(cluster, pools=tuple(pools)), HeldBack(held_back, "; ".join(waiting))
