"""Which of a pool's ids are free for its brokers now. Pure.

An id belongs to one broker. The spec may give a pool ids that brokers of another StatefulSet still have, because their
pool was removed from the spec, or shrinks. Then the new brokers wait until the old ones are drained and gone. If there
were two pods of one id, each would register as that broker in turn, and one of them has an empty volume.

A broker may also be gone without having been drained: a Cluster was made again with fewer brokers, or with other pools.
Then partitions may still have replicas on its id, and the records are on its volumes, whose claims have the name of its
StatefulSet. A broker of another pool would start as this broker with an empty volume, and could lead a partition whose
records only the old volume has. So the new brokers wait while claims of another pool's broker may hold replicas, unless
they have such claims, too. The wait ends when the old broker has come back and was drained, when no partition has a
replica on its id any more, or when a person has deleted its claims.

A StatefulSet numbers its pods from one first id on. So a pool that is asked for with another first id than the brokers
have that it still has, because it was removed from the spec meanwhile, waits until these are drained and gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from ottla.operator.objects import Object
from ottla.operator.plan import names
from ottla.operator.plan.observed import broker_sets, existing
from ottla.operator.plan.volumes import undrained
from ottla.operator.spec.cluster import Cluster
from ottla.wording import first_named

CLAIMS_SHOWN = 3


class HeldBack(NamedTuple):
    """The brokers that wait because brokers of other pools still have their ids. `brokers`: a pool's name → how many of
    its brokers wait; `waits_for`: a sentence that names the brokers that have the ids, or empty; `undrained`: the pods'
    names of those that are gone, and whose volumes may have replicas, by broker id."""

    brokers: Mapping[str, int] = MappingProxyType({})
    waits_for: str = ""
    undrained: Mapping[int, tuple[str, ...]] = MappingProxyType({})


def within_free_ids(
    cluster: Cluster, sets: Iterable[Object], pods: Iterable[Object], claims: Mapping[str, Object]
) -> tuple[Cluster, HeldBack]:
    """The Cluster without the brokers that have to wait for their ids, and a description of that wait.

    `sets`, `pods` and `claims` (by name) are the StatefulSets, pods and claims of brokers. A pool's ids have no gaps.
    So if one of the ids is another pool's broker's, the pool's brokers with higher ids wait, too.
    """
    sets = list(sets)
    present, first_ids = existing(sets, pods), {of: ids.start for of, ids in broker_sets(sets).items() if ids}
    owners, owned = dict(present), frozenset(present)
    held = undrained(claims)
    pools, waiting, held_back, gone = [], [], {}, {}
    for pool in cluster.pools:
        own = names.broker_set(cluster, pool)
        ids = [broker for broker, of in present if of == own]
        first_id = first_ids.get(own, min([pool.first_id, *ids]))
        absent = (broker for broker in pool.ids if (broker, own) not in owned)
        first = next((broker for broker in absent if broker in owners or _is_anothers(held, broker, own)), None)
        if first_id != pool.first_id:
            waiting.append(f"the pool {pool.name} waits until broker {min(ids)} of {own} is gone")
            held_back[pool.name] = pool.replicas
            pool = replace(pool, first_id=first_id, replicas=0)
        elif first is not None:
            if first in owners:
                waiting.append(f"the pool {pool.name} waits until broker {first} of {owners[first]} is gone")
            else:
                waiting.append(_waits_for_volumes(cluster, pool.name, first, held[first]))
                gone[first] = tuple(f"{of}-{first}" for of in held[first])
            held_back[pool.name] = pool.ids.stop - first
            pool = replace(pool, replicas=first - pool.first_id)
        pools.append(pool)
    return replace(cluster, pools=tuple(pools)), HeldBack(held_back, "; ".join(waiting), gone)


def _is_anothers(held: Mapping[int, Mapping[str, object]], broker: int, own: str) -> bool:
    """Whether claims may hold replicas of this broker, and all of them are those of other StatefulSets than `own`."""
    return broker in held and own not in held[broker]


def _waits_for_volumes(cluster: Cluster, pool: str, broker: int, held: Mapping[str, list[str]]) -> str:
    of, claims = next(iter(held)), [name for each in held.values() for name in each]
    other = of.removeprefix(f"{cluster.name}-")
    return (
        f"the pool {pool} waits, because broker {broker} of {of} is gone without having been drained, and its volumes "
        f"may have replicas ({first_named(claims, CLAIMS_SHOWN)}): bring broker {broker} back in a pool {other}, and "
        "remove it again, or delete these claims"
    )
