"""Brokers' volumes that the spec doesn't want any more: they are kept until no replica is on them. Pure.

A volume is removed in steps, each of which follows from the present objects. A broker places no new replicas on the
volume (`cordoned.log.dirs`), and moves the replicas on it to its other volumes. Once a broker has no replica on the
volume, an annotation of its claim says so, for the pod that was asked. When all claims say so, the StatefulSet is made
again without the volume, and its pods are restarted one by one.

A volume may never have been made, for example because nothing makes volumes of its StorageClass. Then its pod can't
start, and the volume is removed immediately, because it holds no data. Before the StatefulSet is made without the
volume, the claim gets a note (the annotation NEVER_MADE). Without this note, the volume would return to the StatefulSet
as soon as its broker's pod is missing for a moment, and the next pod would wait for it again.

The note that a claim was never made must never count for a volume with data. The argument:

1. A volume has data only after a pod has run with it, and no pod runs before its claim is bound.
2. A claim that was bound names its volume for ever, and the note on a claim that names a volume doesn't count
   (`storage.is_given_up`). So a claim that is bound after the note counts as one that may hold replicas.
3. The note is written only on the claim as it was read, without a volume.
4. If the claim's pod is missing, the claim is read after the pods were listed (`broker_sets.BrokerSets`). If the claim
   names no volume even then, the missing pod hadn't run with it, either.

The rule: no broker is ever started without a volume that may have replicas. The annotation of a claim counts only for
the pod that was asked, because a later pod may have put replicas there. If a broker has no pod, each of its claims
counts as one that may hold replicas unless an annotation says otherwise: its namespace may have been deleted, and its
volumes kept.

A broker that is removed leaves its claims behind, without replicas, because it was drained. An annotation of these
claims says so, which counts only as long as the broker has no pod. If the broker comes back, the annotation is removed
from each claim that its pod will have, before a StatefulSet is asked for that pod. This includes the claim of a volume
that is being removed. Claims that the new pod doesn't have keep the annotation: no replica can get there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from ottla.operator.objects import Object, annotation
from ottla.operator.plan import names
from ottla.operator.plan.observed import broker_sets
from ottla.operator.plan.storage import claims_of, is_given_up, lacks_a_volume, never_made
from ottla.operator.spec.cluster import Cluster, Pool, Volume
from ottla.operator.spec.quantity import amount
from ottla.placement import PartitionName

EMPTIED_FOR = "ottla.dev/emptied-for"  # on a claim: the uid of the pod without replicas on it; empty: being emptied
DRAINED = "drained"  # in place of the uid: the claim's broker was drained, and is removed
MOVES_AT_ONCE = 4  # for each broker; not more, because each move is a copy from disk to disk


@dataclass(frozen=True)
class LogDirectory:
    """A log directory as its broker describes it. `usable_bytes` −1: not known; sizes are in bytes."""

    path: str
    usable_bytes: int = -1
    sizes: Mapping[PartitionName, int] = field(default_factory=dict)
    arriving: Mapping[PartitionName, int] = field(default_factory=dict)  # replicas that are being moved to it
    failed: bool = False
    cordoned: bool = False  # whether the broker places no new replicas on it


@dataclass(frozen=True)
class EmptyPlan:
    """The replicas to move now, by target directory; how many are still to be moved; and why one of them can't be
    moved."""

    moves: Mapping[str, tuple[PartitionName, ...]]
    left: int
    waits_for: str = ""


def mounted(pod: Object) -> set[int]:
    """The ids of the volumes that a broker's pod mounts."""
    suffix = f"-{pod['metadata']['name']}"
    return {found for claim in claims_of(pod) if (found := _id(claim.removesuffix(suffix))) is not None}


def claims_by_volume(pod: str, claims: Mapping[str, Object]) -> dict[int, Object]:
    """The claims of a pod and of its predecessors of the same name, mounted or not, by the ids of their volumes."""
    suffix = f"-{pod}"
    found = {_id(name.removesuffix(suffix)): claim for name, claim in claims.items() if name.endswith(suffix)}
    return {volume: claim for volume, claim in found.items() if volume is not None}


def of_set(stateful_set: Object) -> set[int]:
    """The ids of the volumes that a StatefulSet gives to its pods."""
    templates = stateful_set["spec"].get("volumeClaimTemplates") or ()
    return {found for each in templates if (found := _id(each["metadata"]["name"])) is not None}


def is_noted(claim: Object) -> bool:
    """Whether a claim has the annotation EMPTIED_FOR: its volume is being emptied, or was emptied once."""
    return EMPTIED_FOR in (claim["metadata"].get("annotations") or {})


def leaving(
    cluster: Cluster,
    pool: Pool,
    present: Object | None,
    claims: Mapping[str, Object],
    pods: Mapping[str, Object],
    now: datetime,
) -> set[int]:
    """The ids of a pool's volumes that aren't wanted and may have replicas. `present`: the pool's StatefulSet; `claims`
    and `pods` by name."""
    found = {
        volume
        for member in _members(cluster, pool, present, claims, pods)
        for volume, claim in claims_by_volume(member, claims).items()
        if may_hold_replicas(claim, pods.get(member), now)
    }
    return found - {volume.id for volume in pool.volumes}


def may_hold_replicas(claim: Object, pod: Object | None, now: datetime) -> bool:
    """Whether replicas may be on the volume of a claim. `pod` is the pod that the claim is for, or None if that pod is
    missing."""
    if pod is None:
        return _is_full_without_pod(claim)
    if never_made(claim, pod, now):
        return False
    return claim["metadata"]["name"] in claims_of(pod) and annotation(claim, EMPTIED_FOR) != pod["metadata"]["uid"]


def _is_full_without_pod(claim: Object) -> bool:
    """Whether replicas may be on the volume of a claim whose pod is missing."""
    return not annotation(claim, EMPTIED_FOR) and not is_given_up(claim)


def never_made_ones(
    cluster: Cluster,
    pool: Pool,
    present: Object | None,
    claims: Mapping[str, Object],
    pods: Mapping[str, Object],
    now: datetime,
) -> list[Object]:
    """The claims of unwanted volumes that were never made, if they don't have the annotation NEVER_MADE yet.

    Either a pod waits for the volume in vain, or no pod mounts it and the pool's present StatefulSet doesn't have it.
    `claims` and `pods` by name.
    """
    wanted = {volume.id for volume in pool.volumes}
    found = []
    for member in _members(cluster, pool, present, claims, pods):
        pod = pods.get(member)
        for volume, claim in claims_by_volume(member, claims).items():
            if volume in wanted or is_given_up(claim):
                continue
            if pod is not None and volume in mounted(pod):
                given_up = never_made(claim, pod, now)
            else:
                given_up = present is not None and volume not in of_set(present) and lacks_a_volume(claim, now)
            if given_up:
                found.append(claim)
    return found


def given_up_without_pods(
    cluster: Cluster, pool: Pool, present: Object | None, claims: Mapping[str, Object], pods: Mapping[str, Object]
) -> list[str]:
    """The names of a pool's claims without a volume that have the annotation NEVER_MADE, and whose pods are missing.
    `present`: the pool's StatefulSet; `claims` and `pods` by name."""
    missing = [member for member in _members(cluster, pool, present, claims, pods) if member not in pods]
    held = (claim for member in missing for claim in claims_by_volume(member, claims).values())
    return [claim["metadata"]["name"] for claim in held if is_given_up(claim)]


def left_behind(names_of_pods: Iterable[str], claims: Mapping[str, Object]) -> list[Object]:
    """The claims of drained brokers (given by their pods' names) whose annotations don't say yet that no replica is on
    the claim."""
    every = (claim for pod in sorted(names_of_pods) for claim in claims_by_volume(pod, claims).values())
    return [claim for claim in every if not annotation(claim, EMPTIED_FOR)]


def come_back(
    pool: Pool, sets: Iterable[Object], claims: Mapping[str, Object], pods: Mapping[str, Object]
) -> list[Object]:
    """The claims whose annotation says that their broker was drained, although replicas may soon be on them again.

    These are claims of brokers of the pool for which one of `sets` (the pool's present StatefulSet and the wanted one)
    makes pods. The broker's pod mounts the claim, or a new pod would. `claims` and `pods` by name.
    """
    found: dict[str, Object] = {}
    for stateful_set in sets:
        given = of_set(stateful_set)
        for of, ids in broker_sets([stateful_set]).items():
            for pod in (f"{of}-{broker}" for broker in ids if broker in pool.ids):
                has = given | (mounted(pods[pod]) if pod in pods else set())
                held = {volume: claim for volume, claim in claims_by_volume(pod, claims).items() if volume in has}
                found |= {claim["metadata"]["name"]: claim for claim in held.values() if is_left_behind(claim)}
    return list(found.values())


def is_left_behind(claim: Object) -> bool:
    """Whether the claim says that its broker was drained to be removed."""
    return annotation(claim, EMPTIED_FOR) == DRAINED


def with_volumes(
    pool: Pool, of: str, more: Iterable[int], present: Object | None, claims: Mapping[str, Object]
) -> Pool:
    """The pool with the volumes `more`: the spec doesn't have them any more, but the pool keeps them until they are
    empty.

    Size and StorageClass of a volume are those in the pool's present StatefulSet, named `of`. If that StatefulSet lacks
    the volume, they are those of the smallest claim of the pool's pods, because nobody asked that any claim grow.
    """
    known = {
        template["metadata"]["name"]: template["spec"]
        for template in (present or {"spec": {}})["spec"].get("volumeClaimTemplates") or ()
    }
    kept = []
    for volume in sorted(more):
        name = names.volume(volume)
        own = [claim["spec"] for claim_name, claim in sorted(claims.items()) if _is_claim(claim_name, name, of)]
        spec = known.get(name) or min(own, key=lambda spec: amount(spec["resources"]["requests"]["storage"]))
        kept.append(Volume(spec["resources"]["requests"]["storage"], spec.get("storageClassName"), volume))
    return replace(pool, volumes=tuple(sorted((*pool.volumes, *kept), key=lambda volume: volume.id)))


def emptied(directories: Iterable[LogDirectory], going: Iterable[str]) -> EmptyPlan:
    """The moves away from the directories `going`: the largest replicas first, each to the directory with most room."""
    known = {directory.path: directory for directory in directories}
    sources = [known[path] for path in going if path in known]
    targets = {
        path: directory.usable_bytes
        for path, directory in known.items()
        if path not in set(going) and not directory.failed and not directory.cordoned
    }
    left = sum(len(source.sizes) + len(source.arriving) for source in sources)
    if failed := next((source.path for source in sources if source.failed), ""):
        return EmptyPlan({}, left, f"the log directory {failed} has failed, so it isn't known which replicas it has")
    if any(not source.cordoned for source in sources):
        return EmptyPlan({}, left, "the broker still places new replicas on the volume")
    under_way = {name for directory in known.values() for name in directory.arriving if directory.path in targets}
    moves: dict[str, list[PartitionName]] = {}
    for source in sources:  # others began moves to a directory that goes: a move to where the replica is cancels one
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


def brokers_of(
    cluster: Cluster, pool: Pool, present: Object | None, claims: Mapping[str, Object], pods: Iterable[str]
) -> range:
    """The ids of a pool's brokers. Brokers that are to be removed are among them, because they stay until they are
    drained. `present`: the pool's StatefulSet; `claims` by name.

    While the StatefulSet is deleted without its pods, to be made again, a broker whose pod is missing is known by its
    claims. If the pool has no pods left, either, the Cluster is new in this Kubernetes, and the pool has no brokers
    yet.
    """
    of = names.broker_set(cluster, pool)
    if present is not None:
        return broker_sets([present])[of]
    ids = [int(name.rpartition("-")[2]) for name in pods if names.set_of(name) == of]
    if ids:
        ids += [broker for broker, held in undrained(claims).items() if of in held]
    return range(pool.first_id, max(ids, default=pool.first_id - 1) + 1)


def undrained(claims: Mapping[str, Object]) -> dict[int, dict[str, list[str]]]:
    """The claims that may hold replicas if the pods that they are for are missing: by the id of the broker, and by the
    name of its StatefulSet, the names of the claims. `claims` by name."""
    found: dict[int, dict[str, list[str]]] = {}
    for name, claim in sorted(claims.items()):
        number, _, pod = name.removeprefix(names.VOLUME).partition("-")
        of, _, broker = pod.rpartition("-")
        is_brokers = name.startswith(names.VOLUME) and number.isdecimal() and broker.isdecimal()
        if is_brokers and _is_full_without_pod(claim):
            found.setdefault(int(broker), {}).setdefault(of, []).append(name)
    return found


def _members(
    cluster: Cluster, pool: Pool, present: Object | None, claims: Mapping[str, Object], pods: Iterable[str]
) -> list[str]:
    """The names of a pool's pods: of wanted ones, and of existing ones. The pod of a broker that isn't drained yet
    counts as existing while it is missing."""
    of = names.broker_set(cluster, pool)
    ids = {*pool.ids, *brokers_of(cluster, pool, present, claims, pods)}
    return sorted({f"{of}-{broker}" for broker in ids} | {name for name in pods if names.set_of(name) == of})


def _is_claim(claim: str, volume: str, of: str) -> bool:
    """Whether `claim` is the name of a claim for this volume, of a pod of the StatefulSet `of`."""
    prefix = f"{volume}-{of}-"
    return claim.startswith(prefix) and claim.removeprefix(prefix).isdecimal()


def _id(name: str) -> int | None:
    number = name.removeprefix(names.VOLUME)
    return int(number) if name.startswith(names.VOLUME) and number.isdecimal() else None
