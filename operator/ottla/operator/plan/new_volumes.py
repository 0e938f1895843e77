"""New volumes of brokers that run: a pool gets them only once their StorageClasses exist. Pure.

A pod gets a new volume only by a restart. If the volume can't be made, the restarted pod stays pending, and the pool
has a broker less. So as long as the StorageClass of a new volume doesn't exist, the pool keeps exactly the volumes that
it has: a new volume may be meant to take the replicas of an old one, so the old ones aren't removed either.

A pool without a StatefulSet and without pods has no broker that could be lost, and gets all its volumes at once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from ottla.operator.objects import Object
from ottla.operator.plan import names
from ottla.operator.plan.volumes import claims_by_volume, mounted, of_set, with_volumes
from ottla.operator.spec.cluster import Cluster, Pool


def new_classes(
    cluster: Cluster, sets: Mapping[str, Object], claims: Mapping[str, Object], pods: Mapping[str, Object]
) -> set[str]:
    """The StorageClasses that the spec names for new volumes of existing pools. `sets`, `claims` and `pods` by name."""
    found = set()
    for pool in cluster.pools:
        has = _present(cluster, pool, sets, claims, pods)
        found |= {volume.class_name for volume in pool.volumes if has and volume.id not in has and volume.class_name}
    return found


def with_possible_volumes(
    cluster: Cluster,
    unknown_classes: Collection[str],
    sets: Mapping[str, Object],
    claims: Mapping[str, Object],
    pods: Mapping[str, Object],
) -> tuple[Cluster, str]:
    """The Cluster without new volumes that can't be made, and a sentence about the first of these; else an empty text.

    `unknown_classes`: those of `new_classes` that don't exist; `sets`, `claims` and `pods` by name.
    """
    pools, said = [], ""
    for pool in cluster.pools:
        has = _present(cluster, pool, sets, claims, pods)
        waiting = [volume for volume in pool.volumes if volume.id not in has and volume.class_name in unknown_classes]
        if has and waiting:
            said = said or (
                f"the pool {pool.name} doesn't get its volume {waiting[0].id} yet, because there is no StorageClass "
                f"{waiting[0].class_name}: make the class, or name another one"
            )
            own = tuple(volume for volume in pool.volumes if volume.id in has)
            of = names.broker_set(cluster, pool)
            others = has - {volume.id for volume in own}
            pool = with_volumes(replace(pool, volumes=own), of, others, sets.get(of), claims)
        pools.append(pool)
    return replace(cluster, pools=tuple(pools)), said


def _present(
    cluster: Cluster,
    pool: Pool,
    sets: Mapping[str, Object],
    claims: Mapping[str, Object],
    pods: Mapping[str, Object],
) -> set[int]:
    """The ids of the volumes that a pool's StatefulSet gives to its pods. If the StatefulSet is missing, because it was
    deleted to be made again, they are those that the pool's pods mount."""
    of = names.broker_set(cluster, pool)
    if (stateful_set := sets.get(of)) is not None:
        return of_set(stateful_set)
    return {
        volume
        for name, pod in pods.items()
        if names.set_of(name) == of
        for volume in mounted(pod) & claims_by_volume(name, claims).keys()
    }
