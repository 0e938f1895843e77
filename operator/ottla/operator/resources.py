"""The resources of one kind in memory, as the watch reports them, so that a reconcile doesn't have to list thousands.

The kinds are those whose resources belong to a Cluster: Topics and Users. The watch alone isn't enough to act on: right
after the start it has reported only some resources, and it may have missed a deletion. So all resources are listed
before the first reconcile, now and then, and always before the operator acts because a resource is missing. If the
watch reports a resource while such a list is under way, the watch's version of the resource counts as the newer one.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from ottla.operator.kube import KubeError
from ottla.operator.objects import Object, Ref, ref_of
from ottla.operator.spec.of_cluster import OfCluster

LISTED_AGAIN_S = 900.0

_R = TypeVar("_R", bound=OfCluster)


class Lister(Protocol):
    """The part of `ottla.operator.kube.Kube` that lists resources."""

    async def list(self, kind: str, namespace: str = "", labels: str = "") -> list[Object]:
        """All objects of a kind, in one namespace or, without one, in all."""


class Resources(ABC, Generic[_R]):
    """All resources of one kind in the watched `namespaces`. If `namespaces` is None, the operator watches all
    namespaces."""

    def __init__(
        self,
        kube: Lister,
        namespaces: frozenset[str] | None = None,
        read: Callable[[Ref, str], None] = lambda ref, version: None,
    ) -> None:
        """`read` is called with the version of each resource that a list shows."""
        self._read = read
        self.namespaces = namespaces
        self._kube = kube
        self._known: dict[Ref, _R] = {}
        self._told: set[Ref] = set()  # resources that the watch has reported since the present list was requested
        self._listed_at: float | None = None
        self._listing = asyncio.Lock()

    @property
    @abstractmethod
    def kind(self) -> str:
        """The kind's name."""

    @abstractmethod
    def parsed(self, body: Mapping[str, Any]) -> _R:
        """Reads a resource as the API server gives it."""

    def met(self, before: _R | None, resource: _R) -> None:
        """Notes a resource that the watch reported or a list showed. `before` is the resource that was known until now
        under the same name, or None. Kinds that remember more than the resources do so here."""

    def gone(self, resource: _R) -> None:
        """Notes that a resource doesn't exist any more. Kinds that remember more than the resources do so here."""

    def seen(self, event: str | None, body: Mapping[str, Any]) -> Ref | None:
        """Notes an event of the watch. Returns the Cluster to reconcile for it; None if only a status changed."""
        resource = self.parsed(body)
        before = self._known.get(resource.ref)
        self._told.add(resource.ref)
        if event == "DELETED":
            if before is None or before.uid == resource.uid:
                self._known.pop(resource.ref, None)
            self.gone(resource)
        else:
            self.met(before, resource)
            self._known[resource.ref] = resource
            if before is not None and replace(before, status={}) == replace(resource, status={}):
                return None
        return resource.cluster

    def of(self, cluster: Ref) -> list[_R]:
        """The resources that refer to a Cluster."""
        return [resource for resource in self._known.values() if resource.cluster == cluster]

    def wrote(self, resource: _R, status: Mapping[str, Any]) -> None:
        """Notes a status that the operator itself has written, because the watch reports it only later."""
        known = self._known.get(resource.ref)
        if known is not None and known.uid == resource.uid:
            self._told.add(resource.ref)
            self._known[resource.ref] = replace(known, status=status)

    async def up_to_date(self, now: float, *, within_s: float = LISTED_AGAIN_S) -> None:
        """Lists all resources anew, unless they were listed within the last `within_s` seconds. Raises KubeError."""
        async with self._listing:
            if self._listed_at is not None and now - self._listed_at <= within_s:
                return
            self._told.clear()
            bodies = await self._list()
            for body in bodies:
                if (ref := ref_of(body)) not in self._told:
                    self._read(ref, body["metadata"].get("resourceVersion", ""))
            found = [self.parsed(body) for body in bodies]
            listed = {resource.ref: resource for resource in found}
            for ref, resource in listed.items():
                if ref not in self._told:
                    self.met(self._known.get(ref), resource)
            for ref in self._known.keys() - listed.keys() - self._told:
                self.gone(self._known[ref])
            kept = {ref: self._known[ref] for ref in self._told if ref in self._known}
            self._known = {ref: one for ref, one in listed.items() if ref not in self._told} | kept
            self._listed_at = now

    async def there_now(self) -> frozenset[str]:
        """The uids of all resources that exist now, listed anew because the watch may be late. Raises KubeError."""
        return frozenset(body["metadata"]["uid"] for body in await self._list())

    async def _list(self) -> list[Object]:
        try:
            if self.namespaces is None:
                return await self._kube.list(self.kind)
            return [
                body for namespace in sorted(self.namespaces) for body in await self._kube.list(self.kind, namespace)
            ]
        except KubeError as error:
            if error.status == 404:  # the kind isn't defined any more
                return []
            raise
