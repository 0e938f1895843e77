"""The objects of a cluster in Kubernetes, all read at the beginning of a reconcile, and the changes to them.

Objects are found by the labels that every object of a cluster has, but anybody may write these labels on any object. So
a StatefulSet or a pod counts only if its owner references say that it belongs to the Cluster. A StatefulSet without an
owner counts only if it also has the name that the operator would have given it. No object of another owner is taken
over, and only objects that the Cluster itself owns are deleted.

If StatefulSets or pods can't be read, nothing can be done. If a list of another kind is refused, the error is raised
only when objects of that kind are asked for.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping

from ottla.operator.kube import Kube, KubeError
from ottla.operator.objects import OPERATOR, Object, annotation, going, is_owned_by_former
from ottla.operator.plan import names
from ottla.operator.plan.broker_pods import BROKER, CONTROLLER
from ottla.operator.plan.etcd_pods import ETCD
from ottla.operator.plan.storage import grown, has_to_be_made_again, kept
from ottla.operator.refusals import Awaited, NameTaken, Refusals
from ottla.operator.spec.cluster import Cluster

OWNED = (
    "ConfigMap",
    "Service",
    "StatefulSet",
    "PodDisruptionBudget",
    "CronJob",
    "NetworkPolicy",
    "EndpointSlice",
)
SEEN = ("Pod", "PersistentVolumeClaim")
# The kinds of objects that are deleted once no part plans them. StatefulSets are removed by steps of their own, because
# brokers are drained first.
PRUNED = ("ConfigMap", "Service", "PodDisruptionBudget", "CronJob", "NetworkPolicy", "EndpointSlice")


class Found:
    """The objects of one cluster, by kind and name."""

    def __init__(
        self, kube: Kube, cluster: Cluster, objects: dict[str, dict[str, Object]], unread: Mapping[str, KubeError]
    ) -> None:
        self._kube = kube
        self._unread = unread
        self._cluster = cluster
        self._news: list[tuple[str, str]] = []
        self._made: list[str] = []
        self.applied: set[tuple[str, str]] = set()  # the kinds and names of objects that this reconcile has applied
        self.strays: tuple[str, ...] = ()  # pods with the labels of the Cluster's own pods, which something else made
        self._objects = defaultdict(dict, objects)  # without Secrets, which are never listed, but read one by one

    @classmethod
    async def look(cls, kube: Kube, cluster: Cluster) -> Found:
        """Reads all objects of a cluster. Raises KubeError if StatefulSets or pods can't be read."""
        selector = names.selector(cluster.name)
        sets = await kube.list("StatefulSet", cluster.namespace, selector)
        kinds = [kind for kind in (*OWNED, *SEEN) if kind != "StatefulSet"]
        lists = await asyncio.gather(*(_listed(kube, kind, cluster.namespace, selector) for kind in kinds))
        found: dict[str, dict[str, Object]] = {}
        unread: dict[str, KubeError] = {}
        for kind, items in zip(kinds, lists, strict=True):
            if isinstance(items, KubeError):
                unread[kind] = items
            else:
                found[kind] = {item["metadata"]["name"]: item for item in items}
        if "Pod" in unread:
            raise unread["Pod"]
        pods = found["Pod"]
        found |= _pods_and_sets(cluster, sets, pods.values())
        looked = cls(kube, cluster, found, unread)
        others = pods.keys() - found["Pod"].keys()
        looked.strays = tuple(sorted(name for name in others if _is_stray(pods[name], cluster)))
        return looked

    async def look_again(self) -> None:
        """Reads StatefulSets and pods once more, so that a decision is about their present state. Raises KubeError."""
        asked = self._cluster.namespace, names.selector(self._cluster.name)
        sets = await self._kube.list("StatefulSet", *asked)
        self._objects.update(_pods_and_sets(self._cluster, sets, await self._kube.list("Pod", *asked)))

    def get(self, kind: str, name: str) -> Object | None:
        """One object, as it was read or applied last; None if there is none. Raises KubeError if its kind couldn't be
        read."""
        return self._of(kind).get(name)

    def all(self, kind: str, component: str = "") -> list[Object]:
        """All objects of a kind, or of a kind and a component, sorted by their names. Raises KubeError as `get`."""
        return [
            item
            for _, item in sorted(self._of(kind).items())
            if not component or item["metadata"]["labels"].get(names.COMPONENT) == component
        ]

    def by_name(self, kind: str, component: str = "") -> dict[str, Object]:
        """The objects that `all` returns, by their names."""
        return {item["metadata"]["name"]: item for item in self.all(kind, component)}

    async def revision(self, name: str) -> Object | None:
        """A ControllerRevision, kept once it was read, because it never changes. None where there is none, or the
        operator may not read it. Raises KubeError."""
        known = self._objects["ControllerRevision"]
        if name not in known:
            try:
                read = await self._kube.get("ControllerRevision", self._cluster.namespace, name)
            except KubeError as error:
                if error.status != 403:
                    raise
                return None
            if read is None:
                return None
            known[name] = read
        return known[name]

    async def apply(self, wanted: Object) -> Object:
        """Applies one object, and returns it as it is afterwards. Raises NameTaken, Awaited, KubeError."""
        kind, name = wanted["kind"], wanted["metadata"]["name"]
        present = self.get(kind, name)
        if present is None:
            present = await self._kube.get(kind, self._cluster.namespace, name)
        if present is not None and not self.owns(present) and not _adoptable(present):
            if is_owned_by_former(present, "Cluster", self._cluster.name, self._cluster.uid):
                raise Awaited(
                    f"the {kind} {name} of a deleted Cluster of this name still exists: "
                    "it is made again once Kubernetes has deleted it"
                )
            raise NameTaken(
                f"the {kind} {name} exists already and doesn't belong to this Cluster: delete it, or rename one of them"
            )
        done = await self._kube.apply(wanted, present)
        if present is None:
            self._made.append(f"{kind} {name}")
        self._objects[kind][name] = done
        self.applied.add((kind, name))
        return done

    async def keep_secret(self, wanted: Object, present: Object | None) -> None:
        """Applies a Secret, unless the `present` one, as it was just read, is the Cluster's own and has the wanted
        data and annotations. Raises NameTaken, Awaited, KubeError."""
        noted = (wanted["metadata"].get("annotations") or {}).items()
        if (
            present is None
            or not self.owns(present)
            or (present.get("data") or {}) != wanted["data"]
            or any(annotation(present, name) != value for name, value in noted)
        ):
            await self.apply(wanted)

    async def annotate(self, kind: str, item: Object, name: str, value: str) -> None:
        """Annotates an object, if it hasn't changed since it was read. Raises KubeError."""
        meta = item["metadata"]
        seen = {part: meta[part] for part in ("uid", "resourceVersion")}
        patch = {"metadata": {**seen, "annotations": {name: value}}}
        self._objects[kind][meta["name"]] = await self._kube.merge(kind, self._cluster.namespace, meta["name"], patch)

    async def marked(self, kind: str, item: Object, name: str, value: str) -> None:
        """Annotates an object, also if it has changed since it was read. Does nothing if it is gone. Raises
        KubeError."""
        patch = {"metadata": {"uid": item["metadata"]["uid"], "annotations": {name: value}}}
        named = item["metadata"]["name"]
        try:
            self._objects[kind][named] = await self._kube.merge(kind, self._cluster.namespace, named, patch)
        except KubeError as error:
            if error.status not in (404, 409):  # it is gone, or another one has its name
                raise

    async def read_again(self, kind: str, name: str) -> None:
        """Reads one object once more. Raises KubeError."""
        if (now := await self._kube.get(kind, self._cluster.namespace, name)) is not None:
            self._objects[kind][name] = now
        else:
            self._objects[kind].pop(name, None)

    async def apply_each(self, wanted: Iterable[Object]) -> None:
        """Applies all objects, also after one of them was refused. Raises Retry with the first refusal."""
        refusals = Refusals()
        for each in wanted:
            with refusals.gathered():
                await self.apply(each)
        refusals.told()

    async def apply_set(self, wanted: Object) -> tuple[bool, str]:
        """Applies a StatefulSet and the sizes of its pods' claims. Returns whether the StatefulSet was applied, and why
        a claim can't grow; an empty text where all claims can.

        A StatefulSet whose templates of claims have to change isn't applied: it is deleted without its pods, and made
        again by a later reconcile.
        """
        name = wanted["metadata"]["name"]
        trouble = ""
        for claim, size in grown(wanted, self.all("PersistentVolumeClaim")):
            patch = {"spec": {"resources": {"requests": {"storage": size}}}}
            try:
                answer = await self._kube.merge("PersistentVolumeClaim", self._cluster.namespace, claim, patch)
                if grown(wanted, [answer]):
                    became = answer["spec"]["resources"]["requests"]["storage"]
                    changed = "the request was changed on its way, for example by an admission webhook, to"
                    trouble = f"volume {claim} can't grow to {size}: {changed} {became}"
                else:
                    self._news.append(("VolumeGrows", f"volume {claim} grows to {size}"))
            except KubeError as error:
                if error.status not in (403, 422):
                    raise
                trouble = f"volume {claim} can't grow to {size}: {error.message}"
        present = self.get("StatefulSet", name)
        if present is not None and going(present):
            return False, trouble
        if present is not None and has_to_be_made_again(wanted, present):
            uid = present["metadata"]["uid"]
            await self._kube.delete("StatefulSet", self._cluster.namespace, name, uid=uid, propagation="Orphan")
            self._news.append(
                (
                    "StatefulSetMadeAnew",
                    f"{name} is deleted without its pods and made again, because its volumes change",
                )
            )
            return False, trouble
        await self.apply(kept(wanted, present))
        return True, trouble

    async def prune(self, wanted: Iterable[tuple[str, str]]) -> None:
        """Deletes the Cluster's objects that aren't `wanted` (kinds and names). Raises Retry with the first refusal."""
        kept = set(wanted)
        refusals = Refusals()
        for kind in PRUNED:
            for name, item in list(self._objects[kind].items()):
                if (kind, name) in kept or not self.owns(item) or going(item):
                    continue
                with refusals.gathered():
                    await self._kube.delete(kind, self._cluster.namespace, name, uid=item["metadata"]["uid"])
                    self._news.append(("ObjectDeleted", f"{kind} {name} isn't wanted any more"))
                    del self._objects[kind][name]
        refusals.told()

    def told(self) -> list[tuple[str, str]]:
        """The Events to write about the changes that were made: for each its reason and its message."""
        made = [("ObjectsMade", ", ".join(self._made))] if self._made else []
        return [*made, *self._news]

    def _of(self, kind: str) -> dict[str, Object]:
        if kind in self._unread:
            raise self._unread[kind]
        return self._objects[kind]

    def owns(self, item: Object) -> bool:
        """Whether an object is the Cluster's own, by its owner references."""
        return _owned_by(item, self._cluster.uid)

    def may_own(self, item: Object) -> bool:
        """Whether an object is the Cluster's own, or was left without an owner, so that the Cluster takes it over."""
        return self.owns(item) or _adoptable(item)


async def _listed(kube: Kube, kind: str, namespace: str, selector: str) -> list[Object] | KubeError:
    try:
        return await kube.list(kind, namespace, selector)
    except KubeError as error:
        return error


def _pods_and_sets(cluster: Cluster, sets: Iterable[Object], pods: Iterable[Object]) -> dict[str, dict[str, Object]]:
    """The StatefulSets and pods that are the Cluster's, by kind and name.

    StatefulSets have to be listed before pods. Then the owner of a listed pod is one of the listed StatefulSets, or the
    pod has none, because its StatefulSet was deleted without its pods, and is to be made again.
    """
    ours = {
        item["metadata"]["name"]: item
        for item in sets
        if _owned_by(item, cluster.uid)
        or (_adoptable(item) and names.is_set_of(cluster, item["metadata"]["name"], item["metadata"]["labels"]))
    }
    made = {pod["metadata"]["name"]: pod for pod in pods if _is_made_by(pod, ours, cluster)}
    return {"StatefulSet": ours, "Pod": made}


def _owned_by(item: Object, *uids: str) -> bool:
    return any(owner["uid"] in uids for owner in item["metadata"].get("ownerReferences") or ())


def _is_made_by(pod: Object, sets: Mapping[str, Object], cluster: Cluster) -> bool:
    """Whether a pod belongs to one of these StatefulSets, or to one that was deleted without its pods.

    A deleted StatefulSet is to be made again. Until then the pod has no owner; the new StatefulSet adopts it by its
    name. One of the pod's labels tells that a StatefulSet made it.
    """
    if _owned_by(pod, *(item["metadata"]["uid"] for item in sets.values())):
        return True
    name = pod["metadata"]["name"]
    of = names.set_of(name)
    labels = pod["metadata"]["labels"]
    let_go = not pod["metadata"].get("ownerReferences") and labels.get(names.POD_NAME) == name
    # The pool may have been removed from the spec before its StatefulSet was made again.
    ours = of in {*sets, *names.sets(cluster)} or names.is_set_of(cluster, of, labels)
    return let_go and ours and name.rpartition("-")[2].isdecimal()


def _is_stray(pod: Object, cluster: Cluster) -> bool:
    """Whether a pod that isn't the Cluster's has the labels of its brokers, its controllers or etcd's members. Pods of
    the operator's Jobs have another component."""
    labels, owners = pod["metadata"]["labels"], pod["metadata"].get("ownerReferences") or ()
    if labels.get(names.COMPONENT) not in (BROKER, CONTROLLER, ETCD):
        return False
    over = going(pod) or pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    predecessors = any(names.is_set_of(cluster, owner["name"], labels) for owner in owners)  # Kubernetes deletes it
    return not over and not predecessors


def _adoptable(item: Object) -> bool:
    """Whether an object was made by an operator and has no owner. `kubectl delete --cascade=orphan` of a Cluster leaves
    such objects."""
    managed = (item["metadata"].get("labels") or {}).get(names.MANAGED_BY) == OPERATOR
    return managed and not item["metadata"].get("ownerReferences")
