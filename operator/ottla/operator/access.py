"""Whether Kubernetes lets the operator read what it lives by: an operator that may not see anything has no work.

Watches that are refused, or a Lease that may not be read, look from outside like an operator with nothing to do. So all
that the operator reads is asked for now and then, a single object of each kind, and what is refused is said: in the log
once, and by the page's readiness for as long as it lasts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol

from ottla.operator.queue import Retry

logger = logging.getLogger(__name__)

READ = (
    "Cluster",
    "Topic",
    "StatefulSet",
    "Pod",
    "PersistentVolumeClaim",
    "Service",
    "ConfigMap",
    "PodDisruptionBudget",
    "CronJob",
    "NetworkPolicy",
)
LOOKED_AGAIN_S = 60.0
REFUSED_AGAIN_S = 5.0


class Reader(Protocol):
    """What is needed of Kubernetes: `ottla.operator.kube.Kube`."""

    async def knows(self, kind: str, namespace: str = "") -> bool:
        """Whether there is such a kind. Raises Retry where that can't be read."""


class Access:
    """What the operator may read. `trouble` says what it may not; it is empty while all is well."""

    def __init__(self, kube: Reader, namespaces: Iterable[str] = ()) -> None:
        """`namespaces`: those that are watched; none: all."""
        self.trouble = "Kubernetes wasn't read yet"
        self._kube = kube
        self._namespaces = sorted(namespaces) or [""]

    async def keep_looking(self) -> None:
        """Looks until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(REFUSED_AGAIN_S if self.trouble else LOOKED_AGAIN_S)

    async def look(self) -> None:
        """Reads one object of each kind. A kind that isn't defined is no matter of rights."""
        found = await self._refusal()
        if found and found != self.trouble:
            logger.warning("the operator can't read what it looks after: %s", found)
        elif not found and self.trouble:
            logger.info("the operator may read all that it looks after")
        self.trouble = found

    async def _refusal(self) -> str:
        for namespace in self._namespaces:
            for kind in READ:
                try:
                    await self._kube.knows(kind, namespace)
                except Retry as error:
                    return str(error)
        return ""
