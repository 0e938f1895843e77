"""A Cluster's rules for its topics: which namespaces may have Topics in it, and how topics are treated. Pure.

The rules are read without the rest of the spec: a Cluster whose spec can't be carried out still has its topics.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.operator.objects import Ref, annotation, ref_of

CONFIRM = "ottla.dev/confirm-topic-deletion"
MIN_INSYNC = "min.insync.replicas"


@dataclass(frozen=True, slots=True)
class TopicRules:
    """A Cluster's rules for its Topics. `namespace_labels` is None if the Cluster doesn't select namespaces by
    labels."""

    cluster: Ref
    uid: str  # the Cluster's uid
    paused: bool = False
    everywhere: bool = False
    namespace_labels: Mapping[str, str] | None = None
    throttle_bytes_per_second: int | None = None
    min_insync_replicas: int = 1  # for topics without a value of their own
    confirmed: str = ""  # the token of the deletion that a person has confirmed
    about: Mapping[str, Any] = field(default_factory=dict)  # the Cluster resource itself, for Events

    @property
    def throttles(self) -> bool:
        """Whether the Cluster says how fast replicas may be copied."""
        return self.throttle_bytes_per_second is not None

    def allows(self, namespace: str, selected: Collection[str]) -> bool:
        """Whether Topics of a namespace may belong to the cluster. `selected`: the namespaces that have the labels."""
        if namespace == self.cluster.namespace or self.everywhere:
            return True
        return self.namespace_labels is not None and namespace in selected


def parse_topic_rules(resource: Mapping[str, Any]) -> TopicRules:
    """Reads the rules from a Cluster resource as the API server gives it."""
    spec = resource.get("spec") or {}
    topics = spec.get("topics") or {}
    allowed = topics.get("allowedNamespaces") or "Same"
    cluster = ref_of(resource)
    return TopicRules(
        cluster=cluster,
        uid=resource["metadata"]["uid"],
        paused=bool(spec.get("paused", False)),
        everywhere=allowed == "All",
        namespace_labels=(topics.get("namespaceSelector") or {}).get("matchLabels") if allowed == "Selector" else None,
        throttle_bytes_per_second=(spec.get("scaling") or {}).get("throttleBytesPerSecond"),
        min_insync_replicas=_number((spec.get("config") or {}).get(MIN_INSYNC)),
        confirmed=annotation(resource, CONFIRM),
        about=resource,
    )


def _number(value: object) -> int:
    """The value of min.insync.replicas; 1, Kafka's default, if it is no number, which the Cluster's status reports."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() else 1
