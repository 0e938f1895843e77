"""The growth and the state of volumes: of existing claims, and of the claims that StatefulSets would make. Pure.

A claim is made larger in place. The templates of claims of a StatefulSet can't change, so the StatefulSet is deleted
without its pods and made again. A claim that is larger than in the spec stays as it is, because another program may be
responsible for sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from ottla.operator.objects import Object, annotation, condition, holds, seconds_since
from ottla.operator.plan import names
from ottla.operator.spec.quantity import amount

GROWS_S_MAX = 300.0
PENDING_S_MAX = 60.0  # not shorter, because some volumes are made only when their pod has a node
NEVER_MADE = "ottla.dev/never-made"  # an annotation of a claim that was given up without a volume
_FILLED_BY_OTHERS = ("dataSource", "dataSourceRef", "selector")  # fields of claims, which the operator doesn't set
_REFUSED = frozenset({"ControllerResizeInfeasible", "NodeResizeInfeasible"})


class Storage(NamedTuple):
    """The state of volumes: one of `REASONS`, which begin with the worst, and a sentence about it."""

    reason: str = "AsWanted"
    message: str = ""


REASONS = ("Lost", "Refused", "Pending", "Held", "Emptying", "Growing", "AsWanted")


def grown(wanted: Object, claims: Iterable[Object]) -> list[tuple[str, str]]:
    """The claims of a StatefulSet's pods that have to grow: their names and new sizes."""
    sizes = _sizes(wanted)
    name = wanted["metadata"]["name"]
    larger = []
    for claim in claims:
        present = claim["spec"]["resources"]["requests"]["storage"]
        template = claim["metadata"]["name"].rpartition(f"-{name}-")[0]
        if template in sizes and amount(sizes[template]) > amount(present):
            larger.append((claim["metadata"]["name"], sizes[template]))
    return larger


def grows_at_its_start(pod: Object, claims: Mapping[str, Object], now: datetime) -> str:
    """The claim of a volume that has grown, but whose file system grows only at a restart of the pod; else empty.

    Drivers that grow file systems in use do so within seconds, so the result is empty until `GROWS_S_MAX` has passed.
    The result is empty, too, for a pod that was made after the volume had grown: a second restart wouldn't help.
    """
    for name in claims_of(pod):
        pending = condition(claims.get(name, {}).get("status"), "FileSystemResizePending")
        since = pending.get("lastTransitionTime") or ""
        if pod["metadata"].get("creationTimestamp", "") < since and seconds_since(since, now) > GROWS_S_MAX:
            return name
    return ""


def classes_waited_for(claims: Iterable[Object]) -> set[str]:
    """The StorageClasses of claims that have no volume yet."""
    return {name for claim in claims if _is_pending(claim) and (name := claim["spec"].get("storageClassName"))}


def standing(
    wanted: Iterable[Object],
    claims: Mapping[str, Object],
    pods: Iterable[Object],
    unknown_classes: Collection[str],
    now: datetime,
) -> Storage:
    """The worst state of all claims that pods use, compared with the StatefulSets' templates. `claims` by name;
    `unknown_classes`: the classes of `classes_waited_for` that don't exist."""
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
        templates = sets.get(names.set_of(name), {})
        for claim_name in claims_of(pod):
            if (claim := claims.get(claim_name)) is not None:
                found.append(_standing(claim, templates.get(claim_name.removesuffix(f"-{name}"))))
    return min(found, key=lambda storage: REASONS.index(storage.reason))


def never_made(claim: Object, pod: Object, now: datetime) -> bool:
    """Whether a pod waits in vain for the volume of its claim. Such a claim has no data: no pod has run with it.

    A volume that existed already, for example from before the namespace was deleted, would be bound within seconds.
    """
    waits = claim["metadata"]["name"] in claims_of(pod) and not pod["spec"].get("nodeName")
    return waits and lacks_a_volume(claim, now)


def lacks_a_volume(claim: Object, now: datetime) -> bool:
    """Whether a claim has been without a volume for so long (`PENDING_S_MAX`) that probably no volume is being made for
    it."""
    return _never_bound(claim) and seconds_since(claim["metadata"]["creationTimestamp"], now) > PENDING_S_MAX


def is_given_up(claim: Object) -> bool:
    """Whether a claim's annotation (NEVER_MADE) says that no volume is awaited for it any more, and the claim still has
    no volume.

    The annotation doesn't count any more once the claim has a volume: `spec.volumeName` is set when a claim is bound,
    before any pod uses the volume, and Kubernetes lets nobody change or remove it afterwards.
    """
    return bool(annotation(claim, NEVER_MADE)) and _never_bound(claim)


def _never_bound(claim: Object) -> bool:
    """Whether a claim has never had a volume, and could only get an empty volume."""
    spec = claim["spec"]
    return _is_pending(claim) and not spec.get("volumeName") and not any(map(spec.get, _FILLED_BY_OTHERS))


def _is_pending(claim: Object) -> bool:
    return (claim.get("status") or {}).get("phase") == "Pending"


def _unmade(claim: Object, unknown_classes: Collection[str], now: datetime, *, awaited: bool) -> Storage:
    """The state of a claim without a volume. `awaited`: whether a pod waits for the volume. Many StorageClasses make a
    volume only for a pod; the volume for snapshots, for example, is made for the first Job."""
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
    if capacity is None or amount(capacity) >= amount(asked):
        return Storage()
    for kind in ("ControllerResizeError", "NodeResizeError"):
        if holds(status, kind):
            return Storage("Refused", f"volume {name} can't grow to {asked}: {condition(status, kind).get('message')}")
    if (status.get("allocatedResourceStatuses") or {}).get("storage") in _REFUSED:
        return Storage("Refused", f"volume {name} can't grow to {asked}: its storage refuses this size")
    if holds(status, "FileSystemResizePending"):
        return Storage("Growing", f"volume {name} has grown to {asked}, and its file system follows")
    return Storage("Growing", f"volume {name} grows from {capacity} to {asked}")


def claims_of(pod: Object) -> list[str]:
    """The names of the claims that a pod uses."""
    return [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["spec"].get("volumes") or ()
        if "persistentVolumeClaim" in volume
    ]


def has_to_be_made_again(wanted: Object, present: Object) -> bool:
    """Whether a StatefulSet's templates of claims differ from the wanted ones in names or classes, or are smaller."""
    before, after = _sizes(present), _sizes(wanted)
    if before.keys() != after.keys() or _classes(present) != _classes(wanted):
        return True
    return any(amount(size) > amount(before[name]) for name, size in after.items())


def kept(wanted: Object, present: Object | None) -> Object:
    """The wanted StatefulSet as it can be applied: with the present sizes of claims, which can't change in place."""
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
