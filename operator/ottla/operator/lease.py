"""A Lease lets only one of several operators act at a time.

The operator that has the Lease renews it. If it couldn't renew the Lease for `RENEWED_WITHIN_S`, it stops immediately.
Another operator takes the Lease once it has seen no change of the Lease for `DURATION_S`. Each operator measures this
time by its own clock, so clocks needn't agree. An operator that ends without a crash releases the Lease, and another
operator takes it at its next attempt.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from time import monotonic

from ottla.operator.kube import Kube
from ottla.operator.objects import Object
from ottla.operator.queue import Retry

logger = logging.getLogger(__name__)

# Long, because an API server on a busy machine takes seconds. Only after a crash must a successor wait for so long.
DURATION_S = 30
RENEWED_WITHIN_S = 20.0  # then the holder stops, well before another operator may take the Lease
RENEW_S = 4.0


class LeaseLost(Exception):
    """The Lease couldn't be renewed, or another process has it: this process has to stop."""


class Lease:
    """A Lease that this process wants. `utc` gives the time for the Lease's fields."""

    def __init__(self, kube: Kube, namespace: str, name: str, holder: str, utc: Callable[[], datetime]) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._holder = holder
        self._utc = utc
        self._seen: tuple[str, float] = ("", 0.0)  # the Lease's resource version, and since when it has been seen
        self._renewed = 0.0
        self.trouble = f"the lease {namespace}/{name} wasn't read yet"  # why the Lease couldn't be read or written

    async def acquire(self) -> None:
        """Waits until this process has the Lease."""
        while True:
            trouble = ""
            try:
                if await self._take():
                    self.trouble = trouble
                    logger.info("%s holds the lease %s/%s", self._holder, self._namespace, self._name)
                    return
            except Retry as error:
                trouble = f"the lease {self._namespace}/{self._name} can't be read or taken: {error}"
                if trouble != self.trouble:
                    logger.warning("%s", trouble)
            self.trouble = trouble
            await asyncio.sleep(RENEW_S)

    async def keep(self) -> None:
        """Renews the Lease until cancelled. Raises LeaseLost."""
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                async with asyncio.timeout(max(0.1, self._renewed + RENEWED_WITHIN_S - monotonic())):
                    if not await self._take():
                        raise LeaseLost(f"another process has the lease {self._namespace}/{self._name}")
            except (Retry, TimeoutError) as error:
                since_s = monotonic() - self._renewed
                if since_s > RENEWED_WITHIN_S:
                    said = str(error) or "the API server gave no answer in time"
                    lease = f"{self._namespace}/{self._name}"
                    raise LeaseLost(f"the lease {lease} couldn't be renewed for {since_s:.0f} s: {said}") from error

    async def release(self) -> None:
        """Releases the Lease, if this process has it."""
        with suppress(Retry):
            found = await self._kube.get("Lease", self._namespace, self._name)
            if found is not None and found["spec"].get("holderIdentity") == self._holder:
                found["spec"]["holderIdentity"] = ""
                await self._kube.replace(found)

    async def _take(self) -> bool:
        found = await self._kube.get("Lease", self._namespace, self._name)
        asked_at = monotonic()
        if found is None:
            await self._kube.create(self._document({}))
            self._renewed = asked_at
            return True
        spec = found.get("spec") or {}
        version = found["metadata"]["resourceVersion"]
        if self._seen[0] != version:
            self._seen = (version, asked_at)
        ours = spec.get("holderIdentity") in ("", None, self._holder)
        expired = asked_at - self._seen[1] > (spec.get("leaseDurationSeconds") or DURATION_S)
        if not ours and not expired:
            return False
        await self._kube.replace(self._document(found))
        self._renewed = asked_at
        return True

    def _document(self, found: Object) -> Object:
        now = self._utc().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = dict(found.get("spec") or {})
        if spec.get("holderIdentity") != self._holder:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        spec |= {"holderIdentity": self._holder, "leaseDurationSeconds": DURATION_S, "renewTime": now}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": found.get("metadata") or {"name": self._name, "namespace": self._namespace},
            "spec": spec,
        }
