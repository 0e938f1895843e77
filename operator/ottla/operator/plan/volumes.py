"""Volumes that brokers have and the spec doesn't want any more: kept until nothing lies on them. Pure.

A volume goes in steps, each of which follows from what there is. Brokers get no new replicas on it
(`cordoned.log.dirs`) and move those that they have to their other volumes. Once a broker has nothing on it, the claim
says so, for the pod that was asked. When all claims do, the StatefulSet is made again without the volume, and pods are
restarted one by one.

A volume that was never made, because there is no such class for example, is waited for by a pod that can't start, and
goes at once: nothing lies there. Its claim says so before the StatefulSet is made without it. Otherwise it would come
back as soon as its broker's pod is missing for a moment, and the next pod would wait for it again.

That a claim was never made is a note, which mustn't outlive its truth. The argument:

1. Something lies on a volume only after a pod has run with it, and no pod runs before its claim is bound.
2. A claim that was bound names its volume for ever, and the note on a claim that names one counts for nothing
   (`storage.is_given_up`). So a claim that is bound after it was noted counts as full.
3. The note is written only on the claim as it was read, without a volume.
4. Where the claim's pod is missing, the claim is read after the pods were listed (`broker_sets.BrokerSets`). If the
   claim still names no volume then, the pod that is missing hadn't run with it, either.

The rule: a broker is never started without a volume that may hold replicas. What is known of a claim holds only for the
pod that was asked: one that started since may have put something there. A claim of a broker without a pod counts as
full unless it says otherwise, as after a namespace was deleted and its volumes were kept.

A broker that goes leaves its claims behind, and nothing on them, because it was drained. Its claims say so, and this
counts only as long as the broker has no pod: when it comes back, each that its pod will have counts as full before a
StatefulSet is asked for that pod, also one of a volume that goes. The others were never full again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from ottla.operator.objects import Object, annotation
from ottla.operator.plan import names
from ottla.operator.plan.etcd_pods import size_bytes
from ottla.operator.plan.observed import broker_sets
from ottla.operator.plan.storage import claims_of, is_given_up, lacks_a_volume, never_made
from ottla.operator.spec.cluster import Cluster, Pool, Volume
from ottla.placement import PartitionName

EMPTIED_FOR = "ottla.dev/emptied-for"  # of a claim: the pod that had nothing on it; empty: it is being emptied
DRAINED = "drained"  # in the pod's place: its broker has gone, and had nothing anywhere
MOVES_AT_ONCE = 4  # of one broker: each is a copy from disk to disk


@dataclass(frozen=True)
class LogDirectory:
    """A log directory as its broker describes it. `usable_bytes` −1: nobody knows."""

    path: str
    usable_bytes: int = -1
    sizes: Mapping[PartitionName, int] = field(default_factory=dict)
    arriving: Mapping[PartitionName, int] = field(default_factory=dict)  # copies that catch up
    failed: bool = False
    cordoned: bool = False  # it gets no new replicas


@dataclass(frozen=True)
class EmptyPlan:
    """What to move now, by target, how many replicas are still there, and why one can't be moved."""

    moves: Mapping[str, tuple[PartitionName, ...]]
    left: int
    waits_for: str = ""


def mounted(pod: Object) -> set[int]:
    """The ids of the volumes that a broker's pod has."""
    suffix = f"-{pod['metadata']['name']}"
    return {found for claim in claims_of(pod) if (found := _id(claim.removesuffix(suffix))) is not None}


def claims_by_volume(pod: str, claims: Mapping[str, Object]) -> dict[int, Object]:
    """The claims of a pod of that name, those that it doesn't have any more included, by the ids of their volumes."""
    suffix = f"-{pod}"
    found = {_id(name.removesuffix(suffix)): claim for name, claim in claims.items() if name.endswith(suffix)}
    return {volume: claim for volume, claim in found.items() if volume is not None}


def is_noted(claim: Object) -> bool:
    """Whether a claim is being emptied, or was once."""
    return EMPTIED_FOR in (claim["metadata"].get("annotations") or {})


def leaving(
    cluster: Cluster, pool: Pool, claims: Mapping[str, Object], pods: Mapping[str, Object], now: datetime
) -> set[int]:
    """The volumes that aren't wanted and may hold replicas. `claims` and `pods` by name."""
    found = {
        volume
        for member in _members(cluster, pool, pods)
        for volume, claim in claims_by_volume(member, claims).items()
        if may_hold_replicas(claim, pods.get(member), now)
    }
    return found - {volume.id for volume in pool.volumes}


def may_hold_replicas(claim: Object, pod: Object | None, now: datetime) -> bool:
    """Whether replicas may lie on a claim of that pod's."""
    emptied_for = annotation(claim, EMPTIED_FOR)
    if pod is None:
        return not emptied_for and not is_given_up(claim)
    if never_made(claim, pod, now):
        return False
    return claim["metadata"]["name"] in claims_of(pod) and emptied_for != pod["metadata"]["uid"]


def never_made_ones(
    cluster: Cluster,
    pool: Pool,
    present: Object | None,
    claims: Mapping[str, Object],
    pods: Mapping[str, Object],
    now: datetime,
) -> list[Object]:
    """The claims of volumes that aren't wanted and were never made which don't say so yet: a pod waits in vain, or the
    pool's StatefulSet `present` is without the volume already, and no pod has it. `claims` and `pods` by name."""
    wanted = {volume.id for volume in pool.volumes}
    found = []
    for member in _members(cluster, pool, pods):
        pod = pods.get(member)
        for volume, claim in claims_by_volume(member, claims).items():
            if volume in wanted or is_given_up(claim):
                continue
            if pod is not None and volume in mounted(pod):
                given_up = never_made(claim, pod, now)
            else:
                given_up = present is not None and volume not in _of_set(present) and lacks_a_volume(claim, now)
            if given_up:
                found.append(claim)
    return found


def given_up_without_pods(
    cluster: Cluster, pool: Pool, claims: Mapping[str, Object], pods: Mapping[str, Object]
) -> list[str]:
    """The names of a pool's claims that say that they were never made, and whose pods are missing. `claims` and `pods`
    by name."""
    missing = [member for member in _members(cluster, pool, pods) if member not in pods]
    held = (claim for member in missing for claim in claims_by_volume(member, claims).values())
    return [claim["metadata"]["name"] for claim in held if is_given_up(claim)]


def left_behind(names_of_pods: Iterable[str], claims: Mapping[str, Object]) -> list[Object]:
    """The claims of drained brokers that go which don't say yet that nothing is on them."""
    every = (claim for pod in sorted(names_of_pods) for claim in claims_by_volume(pod, claims).values())
    return [claim for claim in every if not annotation(claim, EMPTIED_FOR)]


def come_back(
    pool: Pool, sets: Iterable[Object], claims: Mapping[str, Object], pods: Mapping[str, Object]
) -> list[Object]:
    """The claims of drained brokers that are wanted again, and on which there may be replicas soon: their pods have
    them, or one of the pool's StatefulSets, as it is or will be, makes pods that do. `claims` and `pods` by name."""
    found: dict[str, Object] = {}
    for stateful_set in sets:
        given = _of_set(stateful_set)
        for of, ids in broker_sets([stateful_set]).items():
            for pod in (f"{of}-{broker}" for broker in ids if broker in pool.ids):
                has = given | (mounted(pods[pod]) if pod in pods else set())
                held = {volume: claim for volume, claim in claims_by_volume(pod, claims).items() if volume in has}
                found |= {claim["metadata"]["name"]: claim for claim in held.values() if is_left_behind(claim)}
    return list(found.values())


def is_left_behind(claim: Object) -> bool:
    """Whether the claim says that its broker goes, or has gone."""
    return annotation(claim, EMPTIED_FOR) == DRAINED


def with_volumes(
    pool: Pool, of: str, more: Iterable[int], present: Object | None, claims: Mapping[str, Object]
) -> Pool:
    """The pool with volumes that it keeps for now, as its StatefulSet, called `of`, has them; where there is none, as
    the smallest claim of that StatefulSet's pods is, because nobody asked that any of them grow."""
    known = {
        template["metadata"]["name"]: template["spec"]
        for template in (present or {"spec": {}})["spec"].get("volumeClaimTemplates") or ()
    }
    kept = []
    for volume in sorted(more):
        name = names.volume(volume)
        own = [claim["spec"] for claim_name, claim in sorted(claims.items()) if _is_claim(claim_name, name, of)]
        spec = known.get(name) or min(own, key=lambda spec: size_bytes(spec["resources"]["requests"]["storage"]))
        kept.append(Volume(spec["resources"]["requests"]["storage"], spec.get("storageClassName"), volume))
    return replace(pool, volumes=tuple(sorted((*pool.volumes, *kept), key=lambda volume: volume.id)))


def emptied(directories: Iterable[LogDirectory], going: Iterable[str]) -> EmptyPlan:
    """Moves from directories that go to others, the largest replicas first, each to where most room is left."""
    known = {directory.path: directory for directory in directories}
    sources = [known[path] for path in going if path in known]
    targets = {
        path: directory.usable_bytes
        for path, directory in known.items()
        if path not in set(going) and not directory.failed and not directory.cordoned
    }
    left = sum(len(source.sizes) + len(source.arriving) for source in sources)
    if failed := next((source.path for source in sources if source.failed), ""):
        return EmptyPlan({}, left, f"{failed} has failed, and nobody knows what lies there")
    if any(not source.cordoned for source in sources):
        return EmptyPlan({}, left, "the broker still places new replicas on it")
    under_way = {name for directory in known.values() for name in directory.arriving if directory.path in targets}
    moves: dict[str, list[PartitionName]] = {}
    for source in sources:  # copies that somebody else began: a replica that is to stay where it lies isn't copied
        for name in source.arriving:
            lies = next((path for path, each in known.items() if path not in set(going) and name in each.sizes), None)
            if lies is not None:
                moves.setdefault(lies, []).append(name)
    waits_for = ""
    at_once = MOVES_AT_ONCE - len(under_way)
    replicas = sorted(((size, name) for source in sources for name, size in source.sizes.items()), reverse=True)
    for size, name in replicas:
        if name in under_way or at_once <= 0:
            continue
        if not targets:
            return EmptyPlan({}, left, "the broker has no other log directory yet")
        target = max(targets, key=lambda path: (targets[path], path))
        if 0 <= targets[target] <= size:
            waits_for = waits_for or f"no other volume has room for partition {name[0]}-{name[1]} ({size} bytes)"
            continue
        moves.setdefault(target, []).append(name)
        targets[target] -= size if targets[target] >= 0 else 0
        at_once -= 1
    return EmptyPlan({path: tuple(names) for path, names in moves.items()}, left, waits_for)


def _members(cluster: Cluster, pool: Pool, pods: Iterable[str]) -> list[str]:
    """The names of a pool's pods: of those that are wanted, and of those that are there."""
    of = names.broker_set(cluster, pool)
    return sorted({f"{of}-{broker}" for broker in pool.ids} | {name for name in pods if name.rpartition("-")[0] == of})


def _is_claim(claim: str, volume: str, of: str) -> bool:
    """Whether it is the claim of a volume of a pod of the StatefulSet `of`."""
    prefix = f"{volume}-{of}-"
    return claim.startswith(prefix) and claim.removeprefix(prefix).isdecimal()


def _of_set(stateful_set: Object) -> set[int]:
    """The ids of the volumes that a StatefulSet gives the pods that it makes."""
    templates = stateful_set["spec"].get("volumeClaimTemplates") or ()
    return {found for each in templates if (found := _id(each["metadata"]["name"])) is not None}


def _id(name: str) -> int | None:
    number = name.removeprefix(names.VOLUME)
    return int(number) if name.startswith(names.VOLUME) and number.isdecimal() else None
