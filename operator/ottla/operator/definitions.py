"""Reads when a kind was defined in Kubernetes: resources that are older vanished with an earlier definition."""

from __future__ import annotations

from typing import Protocol

from ottla.operator.kube import KubeError
from ottla.operator.objects import Object, going
from ottla.operator.plan.orphans import Definition, Unreadable


class Reader(Protocol):
    """The part of `ottla.operator.kube.Kube` that reads objects."""

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """One object; None where it or its kind doesn't exist."""


async def definition(kube: Reader, name: str) -> Definition | Unreadable | None:
    """The definition of that name, such as `topics.ottla.dev`; None where there is none. Raises KubeError."""
    try:
        found = await kube.get("CustomResourceDefinition", "", name)
    except KubeError as error:
        if error.status == 403:
            return Unreadable()
        raise
    return None if found is None else Definition(found["metadata"]["creationTimestamp"], going(found))
