"""Applies the StatefulSets of brokers, one for each pool, and removes brokers only after they were drained."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.operator.kube import Kube
from ottla.operator.objects import Object, going
from ottla.operator.plan import broker_pods, names
from ottla.operator.plan.broker_pods import BROKER
from ottla.operator.plan.observed import broker_sets, crashed
from ottla.operator.plan.storage import NEVER_MADE, Storage
from ottla.operator.plan.volumes import (
    DRAINED,
    EMPTIED_FOR,
    brokers_of,
    come_back,
    given_up_without_pods,
    leaving,
    left_behind,
    never_made_ones,
    with_volumes,
)
from ottla.operator.refusals import Refusals
from ottla.operator.spec.cluster import Pool
from ottla.operator.visit import Visit

CLAIM = "PersistentVolumeClaim"


class BrokerSets:
    """Applies the StatefulSets of any cluster's brokers."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    async def keep(self, visit: Visit) -> None:
        """Applies each pool's StatefulSet, with at least as many replicas as the pool has brokers. If Kubernetes
        refuses one StatefulSet, those of the other pools are applied all the same.

        Deletes the StatefulSets of removed pools that have no brokers: nothing has to be drained before."""
        cluster, found = visit.cluster, visit.found
        refusals = Refusals()
        for pool in cluster.pools:
            with refusals.gathered():
                await self._give_up(visit, pool)
                claims, pods = found.by_name(CLAIM, BROKER), found.by_name("Pod", BROKER)
                present = found.get("StatefulSet", names.broker_set(cluster, pool))
                wanted = _wanted(visit, pool, max(pool.replicas, len(brokers_of(cluster, pool, present, claims, pods))))
                sets = [wanted] if present is None else [present, wanted]
                await self._note(visit, come_back(pool, sets, claims, pods), "")
                made, trouble = await found.apply_set(wanted)
                visit.busy |= not made
                if trouble:
                    visit.findings.storage_is(Storage("Refused", trouble))
        for item in _of_removed_pools(visit):
            with refusals.gathered():
                if _is_empty(visit, item):
                    await self._delete_unwanted(visit, "StatefulSet", item, "Foreground")
                else:
                    await self._let_start(visit, item)
        refusals.told()

    async def shrink(self, visit: Visit) -> None:
        """Removes the pods of drained brokers. Deletes the StatefulSets of pools that aren't in the spec any more.

        A StatefulSet may have been deleted without its pods, to be made again. If its pool is removed from the spec
        before that, the StatefulSet isn't made again, and the pods are deleted one by one.
        """
        cluster, found = visit.cluster, visit.found
        pods = visit.pod_names()
        claims = found.by_name(CLAIM, BROKER)
        await self._note(visit, left_behind((pods[broker] for broker in visit.leaving & pods.keys()), claims), DRAINED)
        pools = {names.broker_set(cluster, pool): pool for pool in cluster.pools}
        for item in found.all("StatefulSet", BROKER):
            name = item["metadata"]["name"]
            (ids,) = broker_sets([item]).values()
            if (pool := pools.get(name)) is not None and len(ids) > pool.replicas:
                await visit.tell("ScalingDown", f"{name} goes from {len(ids)} to {pool.replicas} brokers")
                await found.apply_set(_wanted(visit, pool, pool.replicas))
        for item in _of_removed_pools(visit):
            if _is_empty(visit, item):
                continue  # `keep` has deleted it
            # Foreground: the StatefulSet goes after its pods. Pods that still ran without it wouldn't count as the
            # Cluster's any more, and would stop being drained.
            await self._delete_unwanted(visit, "StatefulSet", item, "Foreground")
        sets = pools.keys() | found.by_name("StatefulSet").keys()
        for name, pod in found.by_name("Pod", BROKER).items():
            if names.set_of(name) not in sets and not going(pod):
                await self._delete_unwanted(visit, "Pod", pod)

    async def free(self, visit: Visit, pods: Iterable[str]) -> None:
        """Notes on the claims of these pods, which are gone, that no replica is on them. Raises KubeError."""
        await self._note(visit, left_behind(pods, visit.found.by_name(CLAIM, BROKER)), DRAINED)

    async def _delete_unwanted(self, visit: Visit, kind: str, item: Object, propagation: str = "Background") -> None:
        """Deletes the StatefulSet of a removed pool or, if the pool has no StatefulSet any more, one of its pods."""
        name, uid = item["metadata"]["name"], item["metadata"]["uid"]
        await visit.tell("ScalingDown", f"{name} is deleted: its pool isn't wanted any more")
        await self._kube.delete(kind, visit.cluster.namespace, name, uid=uid, propagation=propagation)

    async def _let_start(self, visit: Visit, item: Object) -> None:
        """Gives the StatefulSet of a removed pool the Cluster's present image, if one of its pods doesn't start.

        The brokers of a removed pool run unchanged until they are drained. But a broker that doesn't start can't be
        drained of the partitions that it alone has. The image may be why the broker doesn't start, and a person can't
        correct the image of a pool that isn't in the spec any more, only the Cluster's.
        """
        template, meta = item["spec"]["template"]["spec"], item["metadata"]
        image = visit.cluster.image
        pods = visit.found.by_name("Pod", BROKER)
        its_pods = (pod for name, pod in pods.items() if names.set_of(name) == meta["name"])
        if template["containers"][0]["image"] == image or not any(map(crashed, its_pods)):
            return
        containers = [{**each, "image": image} for each in template["containers"]]
        patch = {
            "metadata": {part: meta[part] for part in ("uid", "resourceVersion")},
            "spec": {"template": {"spec": {"containers": containers}}},
        }
        await self._kube.merge("StatefulSet", visit.cluster.namespace, meta["name"], patch)
        visit.busy = True

    async def _give_up(self, visit: Visit, pool: Pool) -> None:
        """Finds the claims of a pool's unwanted volumes that never got a volume, and annotates them with NEVER_MADE.

        Since the claims were listed, a pod may have got its volume, run, and been deleted. So if a pod is missing, the
        annotation of its claim counts only after the claim was read once more.
        """
        cluster, found = visit.cluster, visit.found
        claims, pods = found.by_name(CLAIM, BROKER), found.by_name("Pod", BROKER)
        present = found.get("StatefulSet", names.broker_set(cluster, pool))
        for claim in never_made_ones(cluster, pool, present, claims, pods, visit.now):
            await found.annotate(CLAIM, claim, NEVER_MADE, "true")
        for name in given_up_without_pods(cluster, pool, present, claims, pods):
            await found.read_again(CLAIM, name)

    async def _note(self, visit: Visit, claims: Iterable[Object], emptied_for: str) -> None:
        """Writes the annotation EMPTIED_FOR on claims."""
        for claim in claims:
            meta = claim["metadata"]
            patch = {"metadata": {"uid": meta["uid"], "annotations": {EMPTIED_FOR: emptied_for}}}
            await self._kube.merge(CLAIM, visit.cluster.namespace, meta["name"], patch)

    async def retire_controllers(self, visit: Visit) -> None:
        """Deletes the controllers with pods of their own, once every broker's process may be elected controller."""
        cluster, decision = visit.cluster, visit.findings.decision
        name = names.controller_set(cluster)
        if cluster.controllers.replicas or decision is None or decision.rolling or not decision.evictable:
            return
        if (present := visit.found.get("StatefulSet", name)) is not None:
            await visit.tell("ControllersRetired", f"{name} is deleted: every broker may be elected controller now")
            await self._kube.delete("StatefulSet", cluster.namespace, name, uid=present["metadata"]["uid"])


def _wanted(visit: Visit, pool: Pool, replicas: int) -> Object:
    """A pool's StatefulSet. It keeps volumes that the spec doesn't want any more while they may still have replicas."""
    cluster, found = visit.cluster, visit.found
    claims, name = found.by_name(CLAIM, BROKER), names.broker_set(cluster, pool)
    present = found.get("StatefulSet", name)
    kept = leaving(cluster, pool, present, claims, found.by_name("Pod", BROKER), visit.now)
    with_kept = with_volumes(pool, name, kept, present, claims)
    return broker_pods.broker_set(cluster, with_kept, replicas)


def _of_removed_pools(visit: Visit) -> list[Object]:
    """The StatefulSets of pools that aren't in the spec any more, without those that are being deleted."""
    wanted = {names.broker_set(visit.cluster, pool) for pool in visit.cluster.pools}
    sets = visit.found.all("StatefulSet", BROKER)
    return [item for item in sets if item["metadata"]["name"] not in wanted and not going(item)]


def _is_empty(visit: Visit, item: Object) -> bool:
    """Whether a StatefulSet wants no pods and has none."""
    pods = map(names.set_of, visit.found.by_name("Pod", BROKER))
    return not item["spec"].get("replicas", 0) and item["metadata"]["name"] not in pods
