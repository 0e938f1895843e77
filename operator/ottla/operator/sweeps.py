"""The frame of the reconciles of Topics and of Users: when a sweep of a Cluster's resources is made, and what its
resources are told otherwise.

A key is that of a Cluster. There is no sweep for a Cluster in a namespace that isn't watched, for one that is missing,
paused or another operator's, and while its brokers don't answer.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Generic, Protocol, TypedDict, TypeVar, Unpack

from ottla.operator.kafka import KafkaAdmin, KafkaAdmins, Unreachable
from ottla.operator.link import ENCRYPTED, Link, bootstrap_of, link_of
from ottla.operator.objects import Object, Ref, going, holds
from ottla.operator.queue import Result
from ottla.operator.records import Keeper
from ottla.operator.reports import Outcome, Reports, Writer, reports_of
from ottla.operator.resources import Lister, Resources
from ottla.operator.spec.of_cluster import OfCluster

logger = logging.getLogger(__name__)

BROKERS_S = 15.0  # the pause while brokers don't answer or are too few: they may be starting

_R = TypeVar("_R", bound=OfCluster)
_O = TypeVar("_O", bound=Outcome)
_B = TypeVar("_B")


class Kube(Lister, Writer, Keeper, Protocol):
    """The part of `ottla.operator.kube.Kube` that sweeps need."""


class Around(TypedDict, total=False):
    """What surrounds the sweeps of either kind."""

    ours: Callable[[Ref], bool]  # whether this operator reconciles a Cluster
    bootstrap: Callable[[Ref, Link], str]  # the address at which the operator reaches a Cluster's brokers
    clock: Callable[[], float]
    utc: Callable[[], datetime]


def _every(_: Ref) -> bool:
    return True


def _inside(cluster: Ref, link: Link) -> str:
    return bootstrap_of(cluster.namespace, cluster.name, link)


def _now() -> datetime:
    return datetime.now(UTC)


class Sweeps(ABC, Generic[_R, _O, _B]):
    """Reconciles the resources of one kind, all of one Cluster at a time. `_R`: the resources; `_O`: the outcomes;
    `_B`: what a sweep begins with."""

    def __init__(
        self,
        kube: Kube,
        resources: Resources[_R],
        status: Callable[[_R, _O, datetime], Mapping[str, Any]],
        **around: Unpack[Around],
    ) -> None:
        """`status`: makes the status of a resource by its outcome."""
        self._kube = kube
        self._reports = Reports(kube, resources)
        self._clock = around.get("clock", monotonic)
        self._utc = around.get("utc") or _now
        self._of_kind = resources
        self._status = status
        self._ours = around.get("ours") or _every
        self._bootstrap = around.get("bootstrap") or _inside
        self._admins = KafkaAdmins()
        self._starting: set[Ref] = set()  # Clusters for which the log says that their resources wait

    def close(self) -> None:
        """Ends all connections to brokers."""
        self._admins.close()

    async def reconcile(self, key: Ref) -> Result:
        """One sweep of the resources of the Cluster `key`, if one can be made."""
        watched, kind = self._of_kind.namespaces, self._of_kind.kind
        if watched is not None and key.namespace not in watched:
            return Result(gone=True)
        await self._of_kind.up_to_date(self._clock())
        mine = self._of_kind.of(key)
        found = await self._kube.get("Cluster", *key)
        if found is None or going(found):
            self._let_go(key)
            self._ended(key)
            message = f"there is no Cluster {key}: create it, or name another Cluster in a new {kind}"
            await self._tell({each: self._refused(each, "ClusterNotFound", message) for each in mine})
            return Result(gone=not mine)
        begun = await self._begun(found, mine) if self._ours(key) else None
        if begun is None:
            self._let_go(key)
            return Result(gone=True)
        starting = not holds(found.get("status"), "Ready")
        if (found.get("spec") or {}).get("paused"):
            await self._tell_waiting(mine, "ClusterPaused", f"the Cluster {key} is paused", expected=starting)
            return Result()
        link = await link_of(self._kube, key, encrypted=bool((found.get("status") or {}).get(ENCRYPTED)))
        admin = self._admins.get(key, self._bootstrap(key, link), link)
        try:
            result = await self._swept(begun, admin, mine, starting=starting)
        except Unreachable as error:
            message = f"the brokers of {key} don't answer yet"
            await self._tell_waiting(mine, "ClusterUnreachable", message, expected=starting)
            if not starting:
                raise
            # Not a failure, after which pauses would grow: each change of the Cluster's status causes a new sweep.
            if key not in self._starting:
                self._starting.add(key)
                logger.info("%ss of %s wait until this Cluster is Ready: %s", kind.lower(), key, error)
            return Result(BROKERS_S)
        self._starting.discard(key)
        return result

    # ---- what the kinds differ in

    @abstractmethod
    async def _begun(self, found: Object, mine: Sequence[_R]) -> _B | None:
        """What a sweep of a Cluster begins with; None if there is nothing to do for it."""

    @abstractmethod
    async def _swept(self, begun: _B, admin: KafkaAdmin, mine: list[_R], *, starting: bool) -> Result:
        """Makes the sweep, and writes statuses. `starting`: the Cluster isn't Ready, so missing brokers are expected.
        Raises Unreachable."""

    @abstractmethod
    def _refused(self, resource: _R, reason: str, message: str) -> _O:
        """The outcome of a resource without a Cluster."""

    @abstractmethod
    def _waits(self, resource: _R, reason: str, message: str, *, expected: bool) -> _O:
        """The outcome of a resource that waits for its Cluster."""

    def _let_go(self, key: Ref) -> None:
        """Drops what is known about a Cluster for which there is nothing to do."""
        self._admins.forget(key)
        self._starting.discard(key)

    def _ended(self, key: Ref) -> None:
        """Drops what is known about a Cluster that is gone."""

    # ---- statuses

    async def _tell(self, outcomes: Mapping[_R, _O]) -> None:
        now = self._utc()
        await self._reports.statuses(reports_of(outcomes, self._status, now), now)

    async def _tell_waiting(self, mine: Sequence[_R], reason: str, message: str, *, expected: bool) -> None:
        """Writes the statuses of resources whose spec isn't followed yet; other resources keep their statuses."""
        await self._tell(
            {
                each: self._waits(each, reason, message, expected=expected)
                for each in mine
                if not each.ready or each.status.get("observedGeneration") != each.generation
            }
        )
