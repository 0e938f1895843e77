"""A Cluster's rule about the namespaces from which it takes resources: its own, all, or those with some labels. Pure.

Topics and Users have such a rule each, in the same form.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class AllowedNamespaces:
    """The rule about resources of one kind. `labels` is None if the Cluster doesn't select namespaces by labels."""

    own: str  # the Cluster's own namespace, which is always allowed
    everywhere: bool = False
    labels: Mapping[str, str] | None = None

    def has(self, namespace: str, selected: Collection[str]) -> bool:
        """Whether resources of a namespace may belong to the Cluster. `selected`: the namespaces that have the
        labels."""
        if namespace == self.own or self.everywhere:
            return True
        return self.labels is not None and namespace in selected


def parse_allowed_namespaces(rule: Mapping[str, Any], own: str) -> AllowedNamespaces:
    """Reads the rule from `spec.topics` or `spec.users` of a Cluster in the namespace `own`."""
    allowed = rule.get("allowedNamespaces") or "Same"
    labels = (rule.get("namespaceSelector") or {}).get("matchLabels") if allowed == "Selector" else None
    return AllowedNamespaces(own, allowed == "All", labels)
