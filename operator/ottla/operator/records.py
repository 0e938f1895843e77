"""Reads and writes what the operator remembers about a Cluster inside of Kubernetes (`plan/records.py`)."""

from __future__ import annotations

from typing import Protocol

from ottla.operator.objects import Object
from ottla.operator.plan.records import Record
from ottla.operator.refusals import NameTaken


class Keeper(Protocol):
    """The part of `ottla.operator.kube.Kube` that reads and writes single objects, such as records."""

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """One object; None where it or its kind doesn't exist."""

    async def create(self, wanted: Object) -> Object:
        """Creates an object. Raises KubeError (409) if it exists already."""

    async def merge(self, kind: str, namespace: str, name: str, patch: Object, subresource: str = "") -> Object:
        """Changes an object by a JSON merge patch (RFC 7396), and returns the object."""


async def write(kube: Keeper, before: Record, wanted: Object, consequence: str) -> Object:
    """Writes a record, and returns the ConfigMap. Raises KubeError, also if the record has changed since it was read as
    `before`, and NameTaken if another owner's ConfigMap has the record's name; `consequence` says what happens until
    somebody renames it."""
    if before.is_somebody_elses:
        raise NameTaken(
            f"the ConfigMap {before.name} exists already and doesn't belong to this Cluster: rename it, or delete it; "
            f"until then {consequence}"
        )
    if before.found is None:
        return await kube.create(wanted)
    meta = wanted["metadata"]
    seen = {name: before.found["metadata"][name] for name in ("uid", "resourceVersion")}
    patch = {"metadata": {**seen, "ownerReferences": meta["ownerReferences"]}, "data": wanted["data"]}
    return await kube.merge("ConfigMap", meta["namespace"], meta["name"], patch)
