"""Whose pods are restarted when: one pod of a Cluster at a time, and for another operator one Cluster at a time. Pure.

Within a Cluster etcd's members go before the controllers, and these before the brokers; none of them is restarted while
one of the others is on its way, because each counts on the others. One that can't come up for what it was made of (its
image, its settings) ends the matter: a correction replaces it at once, and the others wait until that one serves. One
that no node takes, that can't be created, or that hasn't come back or gone for long, isn't waited for: it doesn't keep
a correction of others from getting through.

An operator of another release may make other pods of the same specs, in every Cluster that it looks after. So a
Cluster first takes its turn, which stands in its status and which one Cluster has at a time. It takes it only while all
its pods serve, and has it until they all do again, however long that takes: where the new pods don't come up, the other
Clusters still run the old ones, and a Cluster that was broken before holds up nobody. What somebody changes about the
pods in a spec needs no turn: that Cluster was meant.
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

RELEASE_MAX = 1024  # characters, as the resource's definition says


def not_serving(sets: Iterable[Object], pods: Iterable[Object]) -> dict[str, str]:
    """The pods that these StatefulSets are to have, or that there are, and that don't serve: what each waits for."""
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
    """The first pod of these StatefulSets that is expected to serve soon, or that can't for what it was made of.

    `absent_since`: the pods that there aren't though they are wanted; one that isn't in it went just now."""
    there = {pod["metadata"]["name"]: pod for pod in pods}
    for name, waits_for in not_serving(sets, there.values()).items():
        if not _given_up(there.get(name), absent_since.get(name, now), now):
            return waits_for
    return ""


def _given_up(pod: Object | None, absent_since: datetime, now: datetime) -> bool:
    """Whether a pod that doesn't serve isn't expected to for a reason that has nothing to do with what is in it."""
    if pod is None:
        return (now - absent_since).total_seconds() >= SILENT_S_MAX
    if going(pod):  # on a node that is lost it goes only with the node
        return seconds_since(pod["metadata"]["deletionTimestamp"], now) >= SILENT_S_MAX
    return not crashed(pod) and (bool(stuck(pod)) or not_ready_s(pod, now) >= SILENT_S_MAX)


def makes_other_pods(before: Cluster, after: Cluster) -> bool:
    """Whether a change of a spec changes what any pod is made of."""
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
    """What a Cluster's status says of operators: which one's pods it has, and whether its turn is now."""

    of_pods: str = ""
    turn: bool = False


class Standing(Enum):
    """How a Cluster stands to the operator's release."""

    FOLLOWS = auto()  # all pods are as this release makes them, or what differs was asked for by the spec
    TURN = auto()  # its pods are restarted for this release
    UNKNOWN = auto()  # Kubernetes hasn't taken note of the change yet
    WAITS = auto()  # it has to take its turn first
    PARTLY = auto()  # as far as this release's StatefulSets could be applied, pods are as it makes them


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
    """`outdated`: pods; `away`: those that don't serve; `current`: whether Kubernetes has taken note of each
    StatefulSet that was applied; `applied`: whether all were; `asked_for`: the spec asks for other pods just now."""
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
    """What `release_noted` has written into a Cluster's status."""
    noted = status.get("operator") or {}
    return Release(noted.get("release", ""), noted.get("turn", False))


def release_noted(release: Release) -> Object:
    """As the status has it."""
    told = {"release": release.of_pods, "turn": release.turn}
    return {name: value for name, value in told.items() if value}
