"""Reads and writes the record of the Topics that Kubernetes has had (`plan/remembered.py`)."""

from __future__ import annotations

from collections.abc import Iterable

from ottla.operator import records
from ottla.operator.objects import Ref
from ottla.operator.plan import names
from ottla.operator.plan.remembered import Remembered, read_record, record, shortened
from ottla.operator.records import Keeper


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
        if added:
            consequence = "Kubernetes remembers no Topics, and a topic is kept when its Topic is deleted"
            await records.write(self._kube, before.record, record(before, kept | added), consequence)
