"""A Cluster's rules for its topics: which namespaces may have Topics in it, and how topics are treated. Pure.

The rules are read without the rest of the spec: a Cluster whose spec can't be carried out still has its topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.operator.objects import Ref, annotation, ref_of
from ottla.operator.spec.namespaces import AllowedNamespaces, parse_allowed_namespaces

CONFIRM = "ottla.dev/confirm-topic-deletion"
MIN_INSYNC = "min.insync.replicas"


@dataclass(frozen=True, slots=True)
class TopicRules:
    """A Cluster's rules for its Topics."""

    cluster: Ref
    uid: str  # the Cluster's uid
    namespaces: AllowedNamespaces
    paused: bool = False
    throttle_bytes_per_second: int | None = None
    min_insync_replicas: int = 1  # for topics without a value of their own
    confirmed: str = ""  # the token of the deletion that a person has confirmed
    about: Mapping[str, Any] = field(default_factory=dict)  # the Cluster resource itself, for Events

    @property
    def throttles(self) -> bool:
        """Whether the Cluster says how fast replicas may be copied."""
        return self.throttle_bytes_per_second is not None


def parse_topic_rules(resource: Mapping[str, Any]) -> TopicRules:
    """Reads the rules from a Cluster resource as the API server gives it."""
    spec = resource.get("spec") or {}
    cluster = ref_of(resource)
    return TopicRules(
        cluster=cluster,
        uid=resource["metadata"]["uid"],
        namespaces=parse_allowed_namespaces(spec.get("topics") or {}, cluster.namespace),
        paused=bool(spec.get("paused", False)),
        throttle_bytes_per_second=(spec.get("scaling") or {}).get("throttleBytesPerSecond"),
        min_insync_replicas=_number((spec.get("config") or {}).get(MIN_INSYNC)),
        confirmed=annotation(resource, CONFIRM),
        about=resource,
    )


def _number(value: object) -> int:
    """The value of min.insync.replicas; 1, Kafka's default, if it is no number, which the Cluster's status reports."""
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() else 1
