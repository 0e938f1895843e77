"""The claims that are there, and the StatefulSet that would make new ones: how they grow, and how they stand. Pure.

A claim is made larger in place. What a StatefulSet says of its claims can't change, so it is deleted without its pods
and made again. A claim that is larger than the spec says is left as it is: somebody else may look after sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from ottla.operator.objects import Object, annotation, condition, holds, seconds_since
from ottla.operator.plan.etcd_pods import size_bytes

GROWS_S_MAX = 300.0
PENDING_S_MAX = 60.0  # some are made only when their pod has a node
NEVER_MADE = "ottla.dev/never-made"  # of a claim that was given up without a volume
_FILLED_BY_OTHERS = ("dataSource", "dataSourceRef", "selector")  # of a claim: the operator's ask for an empty volume
_REFUSED = frozenset({"ControllerResizeInfeasible", "NodeResizeInfeasible"})


class Storage(NamedTuple):
    """How the volumes stand; `REASONS` has the worst first."""

    reason: str = "AsWanted"
    message: str = ""


REASONS = ("Lost", "Refused", "Pending", "Emptying", "Growing", "AsWanted")


def grown(wanted: Object, claims: Iterable[Object]) -> list[tuple[str, str]]:
    """Claims of the pods of a StatefulSet that are to be larger, and how large."""
    sizes = _sizes(wanted)
    name = wanted["metadata"]["name"]
    larger = []
    for claim in claims:
        present = claim["spec"]["resources"]["requests"]["storage"]
        template = claim["metadata"]["name"].rpartition(f"-{name}-")[0]
        if template in sizes and size_bytes(sizes[template]) > size_bytes(present):
            larger.append((claim["metadata"]["name"], sizes[template]))
    return larger


def grows_at_its_start(pod: Object, claims: Mapping[str, Object], now: datetime) -> str:
    """Which volume of a pod is larger, but for its file system, which some drivers only grow while no pod has it.

    Nothing for drivers that do it by themselves, which takes them seconds; and nothing for a second start in vain.
    """
    for name in claims_of(pod):
        pending = condition(claims.get(name, {}).get("status"), "FileSystemResizePending")
        since = pending.get("lastTransitionTime") or ""
        if pod["metadata"].get("creationTimestamp", "") < since and seconds_since(since, now) > GROWS_S_MAX:
            return name
    return ""


def classes_waited_for(claims: Iterable[Object]) -> set[str]:
    """The classes of volumes that aren't there yet."""
    return {name for claim in claims if _is_pending(claim) and (name := claim["spec"].get("storageClassName"))}


def standing(
    wanted: Iterable[Object],
    claims: Mapping[str, Object],
    pods: Iterable[Object],
    unknown_classes: Collection[str],
    now: datetime,
) -> Storage:
    """How the claims stand that pods have, beside what their StatefulSets say; the worst of them. `claims` by name;
    `unknown_classes`: of `classes_waited_for` those that aren't there."""
    sets = {item["metadata"]["name"]: _claim_specs(item) for item in wanted}
    pods = list(pods)
    awaited = {name for pod in pods for name in claims_of(pod)}
    left = {name for pod in pods for name in claims if name.endswith(f"-{pod['metadata']['name']}")}
    given_up = (left | {name for name, claim in claims.items() if is_given_up(claim)}) - awaited
    found = [Storage()]
    for name, each in claims.items():
        if _is_pending(each) and name not in given_up:
            found.append(_unmade(each, unknown_classes, now, awaited=name in awaited))
    for pod in pods:
        name = pod["metadata"]["name"]
        templates = sets.get(name.rpartition("-")[0], {})
        for claim_name in claims_of(pod):
            if (claim := claims.get(claim_name)) is not None:
                found.append(_standing(claim, templates.get(claim_name.removesuffix(f"-{name}"))))
    return min(found, key=lambda storage: REASONS.index(storage.reason))


def never_made(claim: Object, pod: Object, now: datetime) -> bool:
    """Whether there has been no volume for a claim that its pod has: nothing lies there, because the pod waits for it.

    A volume that is there already, as after a namespace was deleted, is found within seconds.
    """
    waits = claim["metadata"]["name"] in claims_of(pod) and not pod["spec"].get("nodeName")
    return waits and lacks_a_volume(claim, now)


def lacks_a_volume(claim: Object, now: datetime) -> bool:
    """Whether there has been no volume for a claim for so long that none is on its way."""
    return _never_bound(claim) and seconds_since(claim["metadata"]["creationTimestamp"], now) > PENDING_S_MAX


def is_given_up(claim: Object) -> bool:
    """Whether a claim says that it was given up without a volume, and still has none.

    The note counts for nothing as soon as the claim has a volume: `spec.volumeName` is set when a claim is bound,
    before any pod has the volume, and Kubernetes lets nobody change or remove it afterwards.
    """
    return bool(annotation(claim, NEVER_MADE)) and _never_bound(claim)


def _never_bound(claim: Object) -> bool:
    """Whether a claim has never had a volume, and is to get an empty one, if any."""
    spec = claim["spec"]
    return _is_pending(claim) and not spec.get("volumeName") and not any(map(spec.get, _FILLED_BY_OTHERS))


def _is_pending(claim: Object) -> bool:
    return (claim.get("status") or {}).get("phase") == "Pending"


def _unmade(claim: Object, unknown_classes: Collection[str], now: datetime, *, awaited: bool) -> Storage:
    """`awaited`: by a pod. Many classes make a volume only then; that for snapshots waits for the first of these."""
    name, of = claim["metadata"]["name"], claim["spec"].get("storageClassName")
    if of in unknown_classes:
        return Storage(
            "Pending",
            f"volume {name} can't be made, because there is no StorageClass {of}: "
            "make the class, or name another one for a volume with another id",
        )
    if not awaited or seconds_since(claim["metadata"]["creationTimestamp"], now) <= PENDING_S_MAX:
        return Storage()
    by = f"its StorageClass {of}" if of else "no StorageClass is named, and the default one"
    return Storage("Pending", f"volume {name} isn't made yet: {by} hasn't done it (kubectl describe pvc {name})")


def _standing(claim: Object, wanted: Object | None) -> Storage:
    name, spec, status = claim["metadata"]["name"], claim["spec"], claim.get("status") or {}
    named, has = (wanted or {}).get("storageClassName"), spec.get("storageClassName")
    if named is not None and has is not None and named != has:
        return Storage(
            "Refused",
            f"volume {name} is of the class {has}, not {named}, and a class can't change: "
            "give the volume another id, and its replicas are moved to a new one",
        )
    asked, capacity = spec["resources"]["requests"]["storage"], (status.get("capacity") or {}).get("storage")
    if capacity is None or size_bytes(capacity) >= size_bytes(asked):
        return Storage()
    for kind in ("ControllerResizeError", "NodeResizeError"):
        if holds(status, kind):
            return Storage("Refused", f"volume {name} can't grow to {asked}: {condition(status, kind).get('message')}")
    if (status.get("allocatedResourceStatuses") or {}).get("storage") in _REFUSED:
        return Storage("Refused", f"volume {name} can't grow to {asked}: its storage refuses so much")
    if holds(status, "FileSystemResizePending"):
        return Storage("Growing", f"volume {name} has grown to {asked}, and its file system follows")
    return Storage("Growing", f"volume {name} grows from {capacity} to {asked}")


def claims_of(pod: Object) -> list[str]:
    """The names of the pod's claims."""
    return [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["spec"].get("volumes") or ()
        if "persistentVolumeClaim" in volume
    ]


def has_to_be_made_again(wanted: Object, present: Object) -> bool:
    """Whether a StatefulSet has other claims than it should have, or smaller ones, or ones of another class."""
    before, after = _sizes(present), _sizes(wanted)
    if before.keys() != after.keys() or _classes(present) != _classes(wanted):
        return True
    return any(size_bytes(size) > size_bytes(before[name]) for name, size in after.items())


def kept(wanted: Object, present: Object | None) -> Object:
    """What can be applied: a StatefulSet whose claims are larger than wanted keeps them as they are."""
    if present is None or "volumeClaimTemplates" not in wanted["spec"]:
        return wanted
    before = _sizes(present)
    claims = [
        claim if (name := claim["metadata"]["name"]) not in before else _sized(claim, before[name])
        for claim in wanted["spec"]["volumeClaimTemplates"]
    ]
    return {**wanted, "spec": {**wanted["spec"], "volumeClaimTemplates": claims}}


def _sized(claim: Object, size: str) -> Object:
    return {**claim, "spec": {**claim["spec"], "resources": {"requests": {"storage": size}}}}


def _sizes(stateful_set: Object) -> dict[str, str]:
    return {name: spec["resources"]["requests"]["storage"] for name, spec in _claim_specs(stateful_set).items()}


def _classes(stateful_set: Object) -> dict[str, str | None]:
    return {name: spec.get("storageClassName") for name, spec in _claim_specs(stateful_set).items()}


def _claim_specs(stateful_set: Object) -> dict[str, Object]:
    return {
        claim["metadata"]["name"]: claim["spec"] for claim in stateful_set["spec"].get("volumeClaimTemplates") or ()
    }
