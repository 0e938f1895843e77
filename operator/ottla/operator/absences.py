"""Since when pods are missing that StatefulSets are to have: of a pod that isn't there Kubernetes doesn't say so.

It is remembered in this process only. Another one begins to count anew, and waits longer than it would have to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from ottla.operator.objects import Object, Ref
from ottla.operator.plan.turns import not_serving


class Absences:
    """Of the pods of all Clusters."""

    def __init__(self) -> None:
        self._since: dict[Ref, dict[str, datetime]] = {}

    def look(
        self, cluster: Ref, sets: Iterable[Object], pods: Iterable[Object], now: datetime
    ) -> Mapping[str, datetime]:
        """Since when each pod is missing that is missing now, of these StatefulSets."""
        before = self._since.get(cluster, {})
        missing = not_serving(sets, ()).keys() - {pod["metadata"]["name"] for pod in pods}
        self._since[cluster] = {name: before.get(name, now) for name in missing}
        return self._since[cluster]

    def forget(self, cluster: Ref) -> None:
        """The Cluster is gone."""
        self._since.pop(cluster, None)
