"""Reads and writes the record of the Topics that Kubernetes has had (`plan/remembered.py`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ottla.operator.objects import Object, Ref
from ottla.operator.plan import names
from ottla.operator.plan.remembered import Remembered, read_record, record, shortened
from ottla.operator.refusals import NameTaken


class Keeper(Protocol):
    """The part of `ottla.operator.kube.Kube` that `TopicMemory` needs."""

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """One object; None where it or its kind doesn't exist."""

    async def create(self, wanted: Object) -> Object:
        """Creates an object. Raises KubeError (409) if it exists already."""

    async def merge(self, kind: str, namespace: str, name: str, patch: Object, subresource: str = "") -> Object:
        """Changes an object by a JSON merge patch (RFC 7396), and returns the object."""


class TopicMemory:
    """Reads and writes the records of all Clusters."""

    def __init__(self, kube: Keeper) -> None:
        self._kube = kube

    async def read(self, cluster: Ref, cluster_uid: str) -> Remembered:
        """The record of a Cluster as it is now. Raises KubeError."""
        found = await self._kube.get("ConfigMap", cluster.namespace, names.remembered_topics(cluster.name))
        return read_record(cluster, cluster_uid, found)

    async def remember(self, before: Remembered, new: Iterable[str], named: Iterable[str]) -> None:
        """Adds the `new` uids to the record, and drops those that aren't in `named`: no topic and no resource has them
        any more. If the record has all of `new`, it isn't written.

        Raises KubeError, also if the record has changed since it was read as `before`, and NameTaken if another owner's
        ConfigMap has the record's name.
        """
        kept = before.uids & set(map(shortened, named))
        added = set(map(shortened, new)) - before.uids
        if not added:
            return
        if before.is_somebody_elses:
            name = names.remembered_topics(before.cluster.name)
            raise NameTaken(
                f"the ConfigMap {name} exists already and doesn't belong to this Cluster: rename it, or delete it; "
                "until then Kubernetes remembers no Topics, and a topic is kept when its Topic is deleted"
            )
        wanted = record(before.cluster, before.cluster_uid, kept | added)
        if before.found is None:
            await self._kube.create(wanted)
            return
        meta = wanted["metadata"]
        seen = {name: before.found["metadata"][name] for name in ("uid", "resourceVersion")}
        patch = {"metadata": {**seen, "ownerReferences": meta["ownerReferences"]}, "data": wanted["data"]}
        await self._kube.merge("ConfigMap", meta["namespace"], meta["name"], patch)
