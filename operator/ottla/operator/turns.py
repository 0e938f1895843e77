"""One Cluster at a time has its pods restarted for another release of the operator. The rule is `plan/turns.py`'s.

The turn counts once it stands in the Cluster's status: an operator that dies leaves it to its successor, and no pod is
restarted by a turn that nobody could read. What is remembered here only keeps two Clusters from taking it at once, and
spares looking at the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from ottla.operator.kube import Kube
from ottla.operator.objects import Ref, going
from ottla.operator.plan.turns import noted_release


class Turns:
    """Whose turn it is."""

    def __init__(self, kube: Kube, clusters: Callable[[], Iterable[Ref]]) -> None:
        """`clusters`: all that this operator looks after."""
        self._kube = kube
        self._clusters = clusters
        self._holder: Ref | None = None
        self._one_at_a_time = asyncio.Lock()

    def has(self, key: Ref) -> None:
        """Its status says that it has the turn."""
        self._holder = key

    def ended(self, key: Ref) -> None:
        """It doesn't need the turn any more."""
        if self._holder == key:
            self._holder = None

    async def take(self, key: Ref) -> Ref | None:
        """Whoever has the turn; None where it is this one's now, and may be written down. Raises KubeError."""
        async with self._one_at_a_time:
            if self._holder is None:
                self._holder = await self._noted(key) or key
            return self._holder if self._holder != key else None

    async def _noted(self, but: Ref) -> Ref | None:
        for key in sorted(self._clusters()):
            found = await self._kube.get("Cluster", *key) if key != but else None
            if found is not None and not going(found) and noted_release(found.get("status") or {}).turn:
                return key
        return None
