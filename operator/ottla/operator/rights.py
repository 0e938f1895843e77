"""The operator's rights in Kubernetes, with reasons: the source of its chart's rules, and of the doctor's checks. Pure.

The operator has only the rights that it needs. It may read, create and change Secrets, which it finds by name: the
name stands in the spec of a Cluster or User, or follows from its name. It may not list or watch Secrets, because that
would show it other Secrets. It may not delete Secrets, because Kubernetes deletes them with their Cluster or
User.
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
    Right(("Cluster", "Topic", "User"), LOOKED_AT),
    Right(("Cluster", "Topic", "User"), ("patch",), subresource="status"),
    Right(
        ("Service", "ConfigMap", "PersistentVolumeClaim", "StatefulSet", "PodDisruptionBudget"),
        (*LOOKED_AT, *MADE),
        "The operator makes these objects for a Cluster, and restores them after somebody else has changed them.",
    ),
    Right(("NetworkPolicy", "CronJob"), ("get", "list", *MADE)),
    Right(
        ("EndpointSlice",),
        ("get", "list", *MADE),
        "By EndpointSlices, a shared load balancer finds each broker: a Service can't select a pod by its port.",
    ),
    Right(
        ("Secret",),
        ("get", "create", "patch"),
        "For the authorities and certificates of etcd, brokers and users, and for users' passwords, which Kubernetes "
        "deletes with their Cluster or User, and for Secrets that a Cluster or a User names.",
    ),
    Right(
        ("Pod",),
        (*LOOKED_AT, "patch", "delete"),
        "A rolling restart deletes pods, and a broker learns its rack from its pod's annotation. Only "
        "StatefulSets make pods.",
    ),
    Right(("Pod",), ("patch",), "Brokers get other CPU and memory without a restart.", subresource="resize"),
    Right(
        ("ControllerRevision",),
        ("get",),
        "To find out whether a pod differs from its StatefulSet in nothing but resources.",
    ),
    Right(("Event",), ("create",)),
)
"""The rights that the operator needs in each namespace of its Clusters."""

OF_NO_NAMESPACE = (
    Right(
        ("Node",),
        ("get",),
        "To read the zone of a broker's node, and the address at which clients outside reach a node port.",
    ),
    Right(("StorageClass",), ("get",), "To find out whether a volume waits for a StorageClass that doesn't exist."),
    Right(
        ("Namespace",),
        ("list",),
        "To find the namespaces from which a Cluster takes Topics and Users, if it selects them by labels.",
    ),
    Right(
        ("CustomResourceDefinition",),
        ("get",),
        "To find out whether Topics or Users vanished with their definition: then what they made in Kafka is kept.",
    ),
)
"""The rights to objects outside of namespaces. The operator works without them, except for the purpose that each of
these rights names."""

FOR_ITS_LEASE = (
    Right(("Lease",), ("get", "create", "update"), "By this Lease, only one of several operators acts at a time."),
)
"""The rights that the operator needs in its own namespace."""


class Asked(NamedTuple):
    """A single right, in the form in which the doctor asks the API server about it."""

    verb: str
    group: str
    resource: str
    subresource: str = ""

    def __str__(self) -> str:
        part = f"/{self.subresource}" if self.subresource else ""
        return f"{self.verb} {self.resource}{part}"


def each(rights: Iterable[Right]) -> Iterator[Asked]:
    """Splits rights into single rights: one for each verb on each kind."""
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
