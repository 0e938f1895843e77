"""Finds the namespaces that a Cluster selects by labels."""

from __future__ import annotations

from ottla.operator.kube import KubeError
from ottla.operator.resources import Lister
from ottla.operator.spec.namespaces import AllowedNamespaces


async def selected_namespaces(kube: Lister, rule: AllowedNamespaces) -> frozenset[str] | None:
    """The namespaces that have the rule's labels; an empty set if the rule has no labels, and None if the operator may
    not list namespaces. Raises KubeError."""
    if rule.labels is None:
        return frozenset()
    text = ",".join(f"{name}={value}" for name, value in sorted(rule.labels.items()))
    try:
        namespaces = await kube.list("Namespace", labels=text)
    except KubeError as error:
        if error.status == 403:
            return None
        raise
    return frozenset(namespace["metadata"]["name"] for namespace in namespaces)
