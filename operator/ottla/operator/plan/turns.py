"""Whose pods are restarted when: one pod of a Cluster at a time, and for another operator one Cluster at a time. Pure.

Within a Cluster etcd's members go before the controllers, and these before the brokers; none of them is restarted while
one of the others is on its way, because each counts on the others. One that can't come up for what it was made of (its
image, its settings) ends the matter: a correction replaces it at once, and the others wait until that one serves. One
that no node takes, or that hasn't come back for long, isn't waited for: it doesn't keep a correction of others from
getting through.

An operator of another release may make other pods of the same specs, in every Cluster that it looks after. So a
Cluster first takes its turn, which stands in its status and which one Cluster has at a time; where the new pods don't
come up, the other Clusters still run the old ones. What somebody changes in a spec needs no turn: that Cluster was
meant.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Any

from ottla.operator.objects import Object, going
from ottla.operator.plan.observed import broker_sets, crashed, is_ready, not_ready_s, stuck
from ottla.operator.plan.roll import SILENT_S_MAX

RELEASE_MAX = 1024  # characters, as the resource's definition says


def on_its_way(sets: Iterable[Object], pods: Iterable[Object], now: datetime) -> str:
    """The first pod of these StatefulSets that is expected to serve soon, or that can't for what it was made of."""
    there = {pod["metadata"]["name"]: pod for pod in pods}
    for item in sets:
        ((name, ids),) = broker_sets([item]).items()
        for number in ids:
            pod = there.get(f"{name}-{number}")
            if pod is None:
                return f"{name}-{number} to be created"
            if going(pod):
                return f"{name}-{number} to stop"
            if why := crashed(pod):
                return f"{name}-{number}, which is stuck: {why}"
            if not is_ready(pod) and not stuck(pod) and not_ready_s(pod, now) < SILENT_S_MAX:
                return f"{name}-{number} to be ready"
    return ""


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


def standing(release: str, noted: Release, outdated: Collection[str], *, current: bool, asked_for: bool) -> Standing:
    """`outdated`: pods; `current`: whether it is known which are; `asked_for`: the spec has changed just now."""
    if noted.turn:
        return Standing.TURN if outdated or not current else Standing.FOLLOWS
    if asked_for or noted.of_pods == release:
        return Standing.FOLLOWS
    if not current:
        return Standing.UNKNOWN
    return Standing.WAITS if outdated else Standing.FOLLOWS


def noted_release(status: Mapping[str, Any]) -> Release:
    """What `release_noted` has written into a Cluster's status."""
    noted = status.get("operator") or {}
    return Release(noted.get("release", ""), noted.get("turn", False))


def release_noted(release: Release) -> Object:
    """As the status has it."""
    told = {"release": release.of_pods, "turn": release.turn}
    return {name: value for name, value in told.items() if value}
