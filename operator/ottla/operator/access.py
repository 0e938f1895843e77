"""Whether Kubernetes lets the operator read the kinds of objects that it needs.

An operator whose watches or whose Lease are refused looks from outside like an operator with nothing to do. So the
operator tries now and then to read one object of each kind. It logs a refusal once, and its page says that the operator
isn't ready for as long as the refusal lasts.
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
    "User",
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
    """The part of `ottla.operator.kube.Kube` that `Access` needs."""

    async def knows(self, kind: str, namespace: str = "") -> bool:
        """Whether Kubernetes has this kind. Raises Retry if the kind can't be read."""


class Access:
    """Checks what the operator may read. `trouble` names the objects that the operator may not read; it is empty while
    the operator may read everything."""

    def __init__(self, kube: Reader, namespaces: Iterable[str] = ()) -> None:
        """`namespaces` are the watched namespaces. If this is empty, the operator watches all namespaces."""
        self.trouble = "the operator hasn't read any object from Kubernetes yet"
        self._kube = kube
        self._namespaces = sorted(namespaces) or [""]

    async def keep_looking(self) -> None:
        """Checks again and again, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(REFUSED_AGAIN_S if self.trouble else LOOKED_AGAIN_S)

    async def look(self) -> None:
        """Reads one object of each kind. A kind that isn't defined in Kubernetes is no trouble, because no right is
        missing."""
        found = await self._refusal()
        if found and found != self.trouble:
            logger.warning("the operator can't read objects that it needs: %s", found)
        elif not found and self.trouble:
            logger.info("the operator can read all kinds of objects that it needs")
        self.trouble = found

    async def _refusal(self) -> str:
        for namespace in self._namespaces:
            for kind in READ:
                try:
                    await self._kube.knows(kind, namespace)
                except Retry as error:
                    return str(error)
        return ""
