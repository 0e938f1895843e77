"""What resources that belong to a Cluster (Topics and Users) have in common. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from ottla.operator.objects import Ref, going, holds, ref_of


@dataclass(frozen=True, slots=True)
class OfCluster:
    """A resource whose spec names its Cluster."""

    ref: Ref
    uid: str
    created: str  # RFC 3339 in UTC with whole seconds, so texts sort by time
    generation: int
    cluster: Ref
    deleting: bool = field(default=False, kw_only=True)  # it is being deleted, and a finalizer keeps it for now
    status: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    refusal: str = field(default="", kw_only=True)  # what a person has to change; empty where the spec can be followed

    @property
    def ready(self) -> bool:
        """Whether the resource's status has the condition Ready as True."""
        return holds(self.status, "Ready")


class Common(TypedDict):
    """The fields that both kinds read in the same way."""

    ref: Ref
    uid: str
    created: str
    generation: int
    cluster: Ref
    deleting: bool
    status: Mapping[str, Any]


def common_fields(resource: Mapping[str, Any]) -> Common:
    """Reads these fields of a resource as the API server gives it."""
    metadata = resource["metadata"]
    return {
        "ref": ref_of(resource),
        "uid": metadata["uid"],
        "created": metadata["creationTimestamp"],
        "generation": int(metadata.get("generation", 1)),
        "cluster": cluster_of(resource),
        "deleting": going(resource),
        "status": resource.get("status") or {},
    }


def cluster_of(resource: Mapping[str, Any]) -> Ref:
    """The Cluster that a resource's spec names; without a namespace it is in the resource's own."""
    cluster = (resource.get("spec") or {}).get("cluster") or {}
    return Ref(cluster.get("namespace") or ref_of(resource).namespace, str(cluster.get("name", "")))
