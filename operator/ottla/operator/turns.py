"""Restarts the pods of one Cluster at a time for another release of the operator, by the rules of `plan/turns.py`.

The Cluster whose pods may be restarted *has the turn*. No pod is restarted before the turn stands in the Cluster's
status, so that an operator process that starts later knows who has the turn. The statuses are read by a LIST request
for all Clusters, because watches may not have reported every Cluster yet. The state in memory only keeps two Clusters
from taking the turn at the same time, spares further LIST requests, and has waiting Clusters reconciled when the turn
ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ottla.operator.followed import kept_by
from ottla.operator.objects import Object, Ref, going, ref_of
from ottla.operator.plan import names
from ottla.operator.plan.broker_pods import CONTROLLER
from ottla.operator.plan.etcd_pods import ETCD
from ottla.operator.plan.observed import is_current, outdated
from ottla.operator.plan.turns import (
    RELEASE_MAX,
    Release,
    Standing,
    makes_other_pods,
    not_serving,
    noted_release,
    standing,
)
from ottla.operator.spec.cluster import Cluster, Defaults, Etcd, parse_cluster
from ottla.operator.visit import Visit

ListClusters = Callable[[], Awaitable[list[Object]]]
"""Lists all Clusters that this operator reconciles, as Kubernetes has them now. Raises KubeError."""
_WINDOW = "the next maintenance window"


class Turns:
    """Knows which Cluster has the turn (its pods may be restarted for another release of the operator), and which
    Clusters wait for the turn."""

    def __init__(self, clusters: ListClusters, again: Callable[[Ref], None]) -> None:
        """`clusters` lists all Clusters. `again` has a Cluster reconciled soon: when a turn ends, it is called for each
        Cluster that waits."""
        self._clusters = clusters
        self._again = again
        self._holder: Ref | None = None
        self._waits: dict[Ref, str] = {}
        self._waiting: set[Ref] = set()
        self._one_at_a_time = asyncio.Lock()

    async def take(self, key: Ref) -> Ref | None:
        """Gives the Cluster `key` the turn if no other Cluster has it. Returns the other Cluster that has the turn, or
        None if `key` has it now and may write that into its status. Raises KubeError."""
        async with self._one_at_a_time:
            if self._holder is None:
                self._holder = await self._noted() or key
            if self._holder == key:
                return None
            self._waiting.add(key)
            return self._holder

    def waits(self, key: Ref, why: str) -> None:
        """Notes why the restarts of the Cluster `key` make no progress, or would make none if it had the turn. An empty
        `why`: nothing holds them up."""
        self._waits[key] = why

    def why(self, key: Ref) -> str:
        """The reason that `waits` noted last for the Cluster `key`; empty if there is none."""
        return self._waits.get(key, "")

    def ended(self, key: Ref) -> None:
        """Notes that the Cluster `key` doesn't have the turn any more. If it had the turn, the waiting Clusters are
        reconciled."""
        self._waits.pop(key, None)
        if self._holder == key:
            self._holder = None
            waiting, self._waiting = self._waiting, set()
            for other in sorted(waiting):
                self._again(other)

    async def _noted(self) -> Ref | None:
        """The first Cluster, by namespace and name, whose status says that it has the turn; None if there is none."""
        having = (
            ref_of(each)
            for each in await self._clusters()
            if not going(each) and noted_release(each.get("status") or {}).turn
        )
        return min(having, default=None)


class Upgrades:
    """Has each Cluster take the turn before its pods are restarted for this operator's release."""

    def __init__(self, turns: Turns, defaults: Defaults) -> None:
        """`defaults`: the images and the version that this operator was installed with."""
        self._turns = turns
        self._defaults = defaults
        self._release = defaults.release[:RELEASE_MAX]

    async def take_turn(self, visit: Visit) -> None:
        """Takes the turn if the Cluster that is being reconciled needs it. While the Cluster may not have the turn, or
        its restarts wait for something else, `visit.hold` says what they wait for."""
        noted, key = visit.findings.operator, visit.cluster.ref
        if visit.cluster.paused:
            self._turns.waits(key, "it is paused")
            return
        found = visit.found
        sets = {name: found.get("StatefulSet", name) for name in _wanted_sets(visit.cluster)}
        applied = {name for name in sets if ("StatefulSet", name) in found.applied}
        away = not_serving(found.all("StatefulSet"), found.all("Pod"))
        first_away = next(iter(away.values()), "")
        how = standing(
            self._release,
            noted,
            _outdated(visit, sets),
            away,
            current=all(item is None or name not in applied or is_current(item) for name, item in sets.items()),
            applied=len(applied) == len(sets),
            asked_for=self._asked_for(visit),
        )
        if how is Standing.FOLLOWS:
            visit.findings.operator = Release(self._release)
        elif how is Standing.PARTLY:
            visit.findings.operator = Release(noted.of_pods)
        elif how is Standing.UNKNOWN:
            visit.hold = "Kubernetes to observe the change of a StatefulSet"
        elif how is Standing.TURN:
            closed = "" if visit.window_open else "its maintenance window is closed"
            self._turns.waits(key, f"it waits for {first_away}" if first_away else closed)
            if not await self._hold_for_the_other(visit) and closed:
                visit.hold = _WINDOW  # resizes wait, too: they are for the release, not the spec
        elif not visit.window_open:
            visit.hold = _WINDOW
        else:
            visit.hold = first_away
            if not first_away and not await self._hold_for_the_other(visit):
                visit.hold = "its turn to be written into its status"
                visit.findings.operator = Release(noted.of_pods, turn=True)
                visit.busy = True

    def _asked_for(self, visit: Visit) -> bool:
        """Whether the spec asks for other pods than the spec that the operator followed before."""
        before = kept_by(visit.followed, visit.resource, self._defaults)
        if before is None or before[1] == visit.spec:
            return False
        return makes_other_pods(before[0], parse_cluster({**visit.resource, "spec": visit.spec}, self._defaults))

    async def _hold_for_the_other(self, visit: Visit) -> bool:
        """Takes the turn if no other Cluster has it. Otherwise has this Cluster's restarts wait (`visit.hold`), and
        returns True."""
        visit.hold = "the list of Clusters, to know whose turn it is"
        other = await self._turns.take(visit.cluster.ref)
        visit.hold, visit.patient = "", other is not None
        if other is not None:
            why = self._turns.why(other)
            first = f"the Cluster {other}, whose pods are restarted for this version of the operator first"
            visit.hold = f"{first} ({why})" if why else first
        return visit.patient


def _outdated(visit: Visit, sets: dict[str, Object | None]) -> list[str]:
    """The names of all pods that differ from their StatefulSets' templates."""
    old = [pod.name for pod in visit.findings.pods or () if pod.is_old]
    for pod in (*visit.found.all("Pod", ETCD), *visit.found.all("Pod", CONTROLLER)):
        name = pod["metadata"]["name"]
        old += [name] if outdated(sets.get(names.set_of(name)), pod) else []
    return old


def _wanted_sets(cluster: Cluster) -> list[str]:
    """The names of the StatefulSets that the spec asks for."""
    wanted = [names.broker_set(cluster, pool) for pool in cluster.pools]
    wanted += [names.etcd_set(cluster)] if isinstance(cluster.metadata, Etcd) else []
    return wanted + ([names.controller_set(cluster)] if cluster.controllers.replicas else [])
