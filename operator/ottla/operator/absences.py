"""Remembers since when each pod that a StatefulSet should have has been missing. Kubernetes keeps no record of a pod
that doesn't exist.

The times are kept in memory only. After a restart, the operator counts from its own start, and so waits longer than
necessary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from ottla.operator.objects import Object, Ref
from ottla.operator.plan.turns import not_serving


class Absences:
    """Remembers since when pods are missing, for all Clusters."""

    def __init__(self) -> None:
        self._since: dict[Ref, dict[str, datetime]] = {}

    def look(
        self, cluster: Ref, sets: Iterable[Object], pods: Iterable[Object], now: datetime
    ) -> Mapping[str, datetime]:
        """Since when each missing pod of these StatefulSets has been missing, by the pod's name."""
        before = self._since.get(cluster, {})
        missing = not_serving(sets, ()).keys() - {pod["metadata"]["name"] for pod in pods}
        self._since[cluster] = {name: before.get(name, now) for name in missing}
        return self._since[cluster]

    def forget(self, cluster: Ref) -> None:
        """Drops the times of a Cluster that is gone."""
        self._since.pop(cluster, None)
