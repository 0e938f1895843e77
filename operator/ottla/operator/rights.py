"""The operator's rights in Kubernetes, with reasons: the source of its chart's rules, and of the doctor's checks. Pure.

The operator has only the rights that it needs. It may read, create and change Secrets, which it finds by name: the
name stands in a Cluster's spec, or follows from the Cluster's name. It may not list or watch Secrets, because that
would show it other Secrets. It may not delete Secrets, because Kubernetes deletes them with their Cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ottla.operator.kinds import KINDS

LOOKED_AT = ("get", "list", "watch")
MADE = ("create", "patch", "delete")


class Right(NamedTuple):
    """Verbs on kinds, or on a subresource of each kind, and the reason for them (`why`)."""

    kinds: tuple[str, ...]
    verbs: tuple[str, ...]
    why: str = ""
    subresource: str = ""


IN_NAMESPACES = (
    Right(("Cluster", "Topic"), LOOKED_AT),
    Right(("Cluster", "Topic"), ("patch",), subresource="status"),
    Right(
        ("Service", "ConfigMap", "PersistentVolumeClaim", "StatefulSet", "PodDisruptionBudget"),
        (*LOOKED_AT, *MADE),
        "It makes these for a Cluster, and mends them as soon as somebody else has changed them.",
    ),
    Right(("NetworkPolicy", "CronJob"), ("get", "list", *MADE)),
    Right(
        ("EndpointSlice",),
        ("get", "list", *MADE),
        "Where a load balancer that brokers share finds each of them: a Service can't select a pod by its port.",
    ),
    Right(
        ("Secret",),
        ("get", "create", "patch"),
        "With etcd's certificates, or named by a Cluster for an etcd of somebody else's. They go with their Cluster.",
    ),
    Right(
        ("Pod",),
        (*LOOKED_AT, "patch", "delete"),
        "A rolling restart deletes pods, and a broker's rack is told by an annotation; nothing but the StatefulSets "
        "makes pods.",
    ),
    Right(("Pod",), ("patch",), "Brokers are given other resources in place.", subresource="resize"),
    Right(("ControllerRevision",), ("get",), "Whether a pod differs from its StatefulSet in nothing but resources."),
    Right(("Event",), ("create",)),
)
"""The rights that the operator needs in each namespace of its Clusters."""

OF_NO_NAMESPACE = (
    Right(("Node",), ("get",), "The zone of a broker's node, and where clients outside find a node port."),
    Right(("StorageClass",), ("get",), "Whether a volume waits for a class that there isn't."),
    Right(("Namespace",), ("list",), "Which namespaces a Cluster takes Topics from, where it says so by labels."),
    Right(
        ("CustomResourceDefinition",),
        ("get",),
        "Whether Topics vanished with their definition: then their topics are kept.",
    ),
)
"""The rights to objects outside of namespaces. The operator works without them, except for the purpose that each of
these rights names."""

FOR_ITS_LEASE = (Right(("Lease",), ("get", "create", "update"), "By which one operator of several acts."),)
"""The rights that the operator needs in its own namespace."""


class Asked(NamedTuple):
    """A single right, as the API server is asked about it."""

    verb: str
    group: str
    resource: str
    subresource: str = ""

    def __str__(self) -> str:
        part = f"/{self.subresource}" if self.subresource else ""
        return f"{self.verb} {self.resource}{part}"


def each(rights: Iterable[Right]) -> Iterator[Asked]:
    """These rights as single rights: one for each verb on each kind."""
    for right in rights:
        for kind in right.kinds:
            for verb in right.verbs:
                yield asked(verb, kind, right.subresource)


def asked(verb: str, kind: str, subresource: str = "") -> Asked:
    """The single right to a verb on a kind, or on a subresource of it."""
    return Asked(verb, _group(kind), KINDS[kind].plural, subresource)


def rules(rights: Iterable[Right]) -> str:
    """The rights as the `rules` of a Role or ClusterRole, in YAML."""
    lines = []
    for right in rights:
        if right.why:
            lines.append(f"# {right.why}")
        groups = dict.fromkeys(_group(kind) for kind in right.kinds)
        for group in groups:
            part = f"/{right.subresource}" if right.subresource else ""
            plurals = [KINDS[kind].plural + part for kind in right.kinds if _group(kind) == group]
            lines += [
                "- apiGroups: [" + (group or '""') + "]",
                f"  resources: [{', '.join(plurals)}]",
                f"  verbs: [{', '.join(right.verbs)}]",
            ]
    return "\n".join(lines) + "\n"


def _group(kind: str) -> str:
    """A kind's API group; empty for the core group."""
    return KINDS[kind].api_version.rpartition("/")[0]
