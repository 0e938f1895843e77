"""The order of restarts: within a Cluster by components, and for another release of the operator by Clusters. Pure.

Within a Cluster etcd's members are restarted before the controllers, and these before the brokers. No pod is restarted
while a pod of another component is about to become ready, because the components depend on each other. If a pod can't
become ready because of its image or its settings, all other components wait: a correction replaces that pod
immediately, and the other components go on when the pod serves. A pod isn't waited for if no node can run it, if it
can't be created, or if it has neither become ready nor disappeared for a long time. So such a pod doesn't keep a
correction of other components from being applied.

Another release of the operator may make other pods by the same specs, in every Cluster that it manages. So a Cluster
first takes its turn, which its status records and which only one Cluster has at a time. A Cluster takes the turn only
while all its pods serve, and keeps it until all its new pods serve, however long that takes. So if the new pods don't
come up, the other Clusters still run the old ones; and a Cluster that was broken before holds up no other Cluster. A
change of pods in a Cluster's spec needs no turn, because it was meant for that Cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Any

from ottla.operator.objects import Object, going, seconds_since
from ottla.operator.plan import broker_pods, etcd_pods
from ottla.operator.plan.observed import broker_sets, crashed, is_ready, not_ready_s, stuck
from ottla.operator.plan.roll import SILENT_S_MAX
from ottla.operator.spec.cluster import Cluster, Etcd

RELEASE_MAX = 1024  # in characters, as in the CRD


def not_serving(sets: Iterable[Object], pods: Iterable[Object]) -> dict[str, str]:
    """The pods that don't serve: the pod's name → what the pod waits for. Missing pods that one of these StatefulSets
    should have are included."""
    there = {pod["metadata"]["name"]: pod for pod in pods}
    wanted = [f"{name}-{number}" for name, ids in broker_sets(sets).items() for number in ids]
    found = {}
    for name in dict.fromkeys([*wanted, *there]):
        pod = there.get(name)
        if pod is None:
            found[name] = f"{name} to be created"
        elif going(pod):
            found[name] = f"{name} to stop"
        elif not is_ready(pod):
            found[name] = f"{name}, which is stuck: {why}" if (why := stuck(pod)) else f"{name} to be ready"
    return found


def on_its_way(
    sets: Iterable[Object], pods: Iterable[Object], absent_since: Mapping[str, datetime], now: datetime
) -> str:
    """The first pod that other components have to wait for, with what is missing until it serves; else empty.

    Other components wait for a pod that should serve soon, or that can't serve because of its image or settings.
    `absent_since`: since when wanted pods are missing, by name; a missing pod that isn't in it has just disappeared.
    """
    there = {pod["metadata"]["name"]: pod for pod in pods}
    for name, waits_for in not_serving(sets, there.values()).items():
        if not _given_up(there.get(name), absent_since.get(name, now), now):
            return waits_for
    return ""


def _given_up(pod: Object | None, absent_since: datetime, now: datetime) -> bool:
    """Whether a pod that doesn't serve isn't waited for: no node can run it, or it was missing, stopping or not ready
    for too long. A pod that crashes is waited for until it is deleted."""
    if pod is None:
        return (now - absent_since).total_seconds() >= SILENT_S_MAX
    if going(pod):  # a pod on a lost node stays as long as the node's object
        return seconds_since(pod["metadata"]["deletionTimestamp"], now) >= SILENT_S_MAX
    return not crashed(pod) and (bool(stuck(pod)) or not_ready_s(pod, now) >= SILENT_S_MAX)


def makes_other_pods(before: Cluster, after: Cluster) -> bool:
    """Whether a change of a Cluster's spec changes the template of any pods."""
    templates = _templates(before)
    return any(templates.get(name) != template for name, template in _templates(after).items())


def _templates(cluster: Cluster) -> dict[str, Object]:
    sets = [broker_pods.broker_set(cluster, pool, pool.replicas) for pool in cluster.pools]
    if isinstance(etcd := cluster.metadata, Etcd):
        sets.append(etcd_pods.member_set(cluster, etcd, etcd.members))
    if cluster.controllers.replicas:
        sets.append(broker_pods.controller_set(cluster))
    return {item["metadata"]["name"]: item["spec"]["template"] for item in sets}


@dataclass(frozen=True)
class Release:
    """The release of the operator that made the Cluster's pods, and whether the Cluster has the turn (its pods may be
    restarted for another release), both from the Cluster's status."""

    of_pods: str = ""
    turn: bool = False


class Standing(Enum):
    """Whether a Cluster's pods are as the operator's present release makes them, and whether they may be restarted."""

    FOLLOWS = auto()  # all pods are as this release makes them, or differ because of a change of the spec
    TURN = auto()  # the Cluster has the turn: its pods are restarted for this release
    UNKNOWN = auto()  # the status of a StatefulSet isn't about its newest spec yet
    WAITS = auto()  # pods differ, and the Cluster has to take its turn first
    PARTLY = auto()  # pods are as this release makes them, but some of its StatefulSets couldn't be applied


def standing(
    release: str,
    noted: Release,
    outdated: Collection[str],
    away: Collection[str],
    *,
    current: bool,
    applied: bool,
    asked_for: bool,
) -> Standing:
    """Whether a Cluster's pods are those of `release`, by what its status `noted` and by its pods.

    `outdated`: the pods that differ from their templates; `away`: the pods that don't serve; `current`: whether the
    status of each applied StatefulSet is about its newest spec; `applied`: whether all StatefulSets could be applied;
    `asked_for`: whether a change of the spec asks for other pods just now.
    """
    if noted.turn:
        if outdated or away or not current:
            return Standing.TURN
    elif asked_for or noted.of_pods == release:
        return Standing.FOLLOWS
    elif not current:
        return Standing.UNKNOWN
    elif outdated:
        return Standing.WAITS
    return Standing.FOLLOWS if applied else Standing.PARTLY


def noted_release(status: Mapping[str, Any]) -> Release:
    """Reads what `release_noted` has written into a Cluster's status."""
    noted = status.get("operator") or {}
    return Release(noted.get("release", ""), noted.get("turn", False))


def release_noted(release: Release) -> Object:
    """The fields `release` and `turn` for the Cluster's status; empty values are left out."""
    told = {"release": release.of_pods, "turn": release.turn}
    return {name: value for name, value in told.items() if value}
