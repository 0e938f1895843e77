"""Which members etcd is to have, the next change of its list of members, and what each may do at its start. Pure.

Rules: (1) The list of members changes by one member at a time, and only while a majority of the members that stay
answers. (2) A member that says it has no data is removed before it is added anew, so that it never votes again under
an identity whose votes it has lost. (3) A member that was added starts with the list as it is after the addition.
(4) No member may form a new cluster once the cluster was formed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ottla.operator.plan import names
from ottla.operator.plan.etcd_pods import member_names, peer_url
from ottla.operator.spec.cluster import Cluster, Etcd


@dataclass(frozen=True)
class Member:
    """An entry of etcd's list of members. An empty name: the member was added, and has never started."""

    id: str
    name: str
    peer_url: str


@dataclass(frozen=True)
class Seen:
    """A member's pod. `ready`: it answers, and reaches a majority; `no_data`: it said that it has no data."""

    name: str
    ready: bool
    no_data: bool = False
    uid: str = ""


@dataclass(frozen=True)
class Remove:
    """The step: remove a member from etcd's list."""

    member: Member
    why: str


@dataclass(frozen=True)
class Add:
    """The step: add a member to etcd's list."""

    name: str
    peer_url: str


@dataclass(frozen=True)
class StartNow:
    """The step: delete the pod of a member that may start now, so that its next attempt comes without delay."""

    name: str
    uid: str


Step = Remove | Add | StartNow


def next_step(cluster: Cluster, etcd: Etcd, members: list[Member], seen: list[Seen]) -> Step | None:
    """The one change to make now; None where nothing is to change, or nothing may change yet."""
    wanted = member_names(cluster, etcd)
    by_url = {member.peer_url: member for member in members}
    ready = {pod.name for pod in seen if pod.ready}
    majority = len(members) // 2 + 1
    for member in members:
        if member.name and member.name not in wanted and _survives(members, member, ready):
            return Remove(member, f"{member.name} isn't wanted any more")
    for pod in seen:
        if pod.name not in wanted or not pod.no_data or pod.ready:
            continue
        listed = by_url.get(peer_url(cluster, pod.name))
        if listed is None:
            # An added member counts immediately: the members that answer must be a majority of the longer list, too.
            if len(ready) >= (len(members) + 1) // 2 + 1 or len(members) == 1 == len(ready):
                return Add(pod.name, peer_url(cluster, pod.name))
        elif not listed.name:
            return StartNow(pod.name, pod.uid)
        elif len(ready) >= majority and len(members) > 1:
            return Remove(listed, f"{pod.name} has no data of the cluster: it becomes a new member")
    return None


def _survives(members: list[Member], leaving: Member, ready: set[str]) -> bool:
    """Whether the ready members are a majority of the list without the member that leaves."""
    left = [member for member in members if member != leaving]
    return bool(left) and sum(member.name in ready for member in left) >= len(left) // 2 + 1


def start_rules(cluster: Cluster, etcd: Etcd, members: list[Member] | None, *, formed: bool) -> dict[str, str]:
    """The data of the ConfigMap that members read at their start: the state, the list, and which members may join.
    `members` is None if no member answers; `formed`: whether the cluster was ever formed."""
    wanted = member_names(cluster, etcd)
    if not formed or members is None:
        everybody = _list((name, peer_url(cluster, name)) for name in wanted)
        return {"state": "existing" if formed else "new", "initial-cluster": everybody}
    names_by_url = {peer_url(cluster, name): name for name in wanted}
    known = [(names_by_url.get(member.peer_url, member.name), member) for member in members]
    rules = {"state": "existing", "initial-cluster": _list((name, member.peer_url) for name, member in known)}
    for name, member in known:
        if not member.name and name:
            rules[f"join-{name}"] = member.id
    return rules


def replicas(cluster: Cluster, etcd: Etcd, members: list[Member] | None, present: int) -> int:
    """How many pods the StatefulSet has to have: a member keeps its pod until it was removed from the list. `present`:
    how many pods there are; `members` is None if no member answers."""
    if members is None:
        return max(etcd.members, present)
    listed = {member.peer_url for member in members}
    name = names.etcd_set(cluster)
    needed = [number + 1 for number in range(present) if peer_url(cluster, f"{name}-{number}") in listed]
    return max([etcd.members, *needed])


def left_behind(cluster: Cluster, etcd: Etcd, members: list[Member] | None, claims: Iterable[str]) -> list[str]:
    """The claims of members that were removed. If such a member were added again, its old data would have an identity
    that the other members don't know."""
    listed = {member.peer_url for member in members or ()}
    name = names.etcd_set(cluster)
    gone = []
    for claim in claims:
        prefix, _, number = claim.rpartition("-")
        pod = f"{name}-{number}"
        if prefix == f"data-{name}" and members is not None and int(number) >= etcd.members:
            gone += [claim] if peer_url(cluster, pod) not in listed else []
    return gone


def _list(pairs: Iterable[tuple[str, str]]) -> str:
    return ",".join(f"{name}={url}" for name, url in pairs)
