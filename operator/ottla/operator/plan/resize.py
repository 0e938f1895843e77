"""Which brokers' pods get other resources in place, without a restart, and how far each resize is. Pure: times are
inputs.

Kubernetes 1.33 and newer can change the CPU and memory of a running container (KEP-1287): the operator patches the
subresource `resize` of the pod, and then the kubelet changes the containers. A resized pod still has the label of the
StatefulSet's revision by which it was made. So before the operator asks for new resources, it notes on the pod itself
the revision whose resources these are (`Note`).

1. If two revisions of a StatefulSet's template differ in nothing but their containers' resources, pods are resized.
2. Some changes need a restart by the rules of `roll.py`, because the API server would refuse a resize, or the resize
   would restart the container: a change of a resource other than CPU and memory, the removal of a resource, and a
   change in a container whose `resizePolicy` is RestartContainer. A pod that isn't ready is restarted, too, because its
   successor may become ready on another node.
3. A resize that the API server refuses, that the node can't ever carry out (`Infeasible`), or that isn't done after
   `LATE_S`, calls for a restart, too. So does a resize that Kubernetes accepted, if the pod's spec lacks the resources
   afterwards: an admission webhook has changed the request, or another program sets the pod's resources, and the
   operator would ask again for ever.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from ottla.operator.objects import Object, annotation, condition, seconds_since
from ottla.operator.plan import names
from ottla.operator.spec.quantity import amount

LATE_S = 300.0
STALE_S = 10.0  # for so long, a condition without an observed generation may be about an earlier resize
RESIZABLE = frozenset({"cpu", "memory"})
_KINDS = ("requests", "limits")
_ANY_TIME = datetime.fromtimestamp(0, UTC)
Resources = Mapping[str, Mapping[tuple[str, str], str]]
"""A container's name → (`requests` or `limits`, the resource's name) → the quantity."""


@dataclass(frozen=True)
class Note:
    """The note on a pod about its last resize, kept as an annotation."""

    pod: str  # the pod's uid: a copy of the annotation on another pod doesn't count
    revision: str  # the revision of the StatefulSet's template whose resources the pod is given
    since: str = ""  # when Kubernetes accepted the request; empty if that isn't known
    done: bool = False
    refused: str = ""  # why the API server refused the request, or how it was changed on its way

    @property
    def text(self) -> str:
        """The annotation's value."""
        return json.dumps({name: value for name, value in asdict(self).items() if value})


def noted(pod: Object) -> Note | None:
    """The note on a pod; None where the pod has no note that can be read, or has the note of another pod."""
    try:
        note = Note(**json.loads(annotation(pod, names.RESIZE)))
        if note.since:
            seconds_since(note.since, _ANY_TIME)
    except (ValueError, TypeError):
        return None
    return note if note.pod == pod["metadata"]["uid"] else None


@dataclass(frozen=True)
class Resize:
    """The state of a pod's resize, as long as the pod isn't known to have its StatefulSet's resources."""

    revision: str  # the revision of the template whose resources the pod is to get
    what: str = ""  # which resources change
    begun: bool = False  # the resize is noted on the pod
    asked: bool = False  # the pod's spec has the new resources
    done: bool = False  # the pod's containers have the new resources, too
    waits_for: str = ""  # the node's message about the resize
    refused: str = ""  # why the pod needs a restart instead
    unknown: bool = False  # revisions couldn't be read, so a restart may be needed


def revision_of(pod: Object) -> str:
    """The revision of the template by which a pod was made, or for which it was resized last."""
    note = noted(pod)
    return note.revision if note is not None else str((pod["metadata"].get("labels") or {}).get(names.REVISION, ""))


def needed_revisions(stateful_set: Object, pod: Object) -> frozenset[str]:
    """The names of the revisions that `resize_of` compares; none where the pod has the newest revision already."""
    both = frozenset({revision_of(pod), str(stateful_set["status"].get("updateRevision", ""))})
    return both if len(both) > 1 else frozenset()


def resize_of(
    stateful_set: Object,
    pod: Object,
    revisions: Mapping[str, Object | None],
    now: datetime,
    *,
    ready: bool,
) -> Resize | None:
    """The state of a pod's resize; None where the pod needs none, or differs from its template in more than resources.

    It is None, too, if one of the two revisions doesn't exist. The StatefulSet's status has to be about its present
    spec. `revisions`: ControllerRevisions by name."""
    newest, note = str(stateful_set["status"].get("updateRevision", "")), noted(pod)
    if revision_of(pod) != newest:
        pair = [revisions.get(name) for name in (revision_of(pod), newest)]
        before, after = (_template(each) if each is not None else None for each in pair)
        if before is None or after is None or _without_resources(before) != _without_resources(after):
            return None
        what = _changes(_resources(before), _resources(after))
        why = _not_in_place(pod, _resources(before), _resources(after))
        return Resize(newest, what, refused=why or ("" if ready else "the pod isn't ready"))
    if note is None or note.done:
        return None
    if note.refused:
        return Resize(newest, begun=True, refused=note.refused)
    return _under_way(pod, stateful_set, note, now)


def not_known(revision: str) -> Resize:
    """The state of a pod that isn't of this revision, while it isn't known whether a resize would bring the pod to
    it."""
    return Resize(revision, waits_for="it isn't known whether they can change in place", unknown=True)


def lacking(stateful_set: Object, pod: Object) -> str:
    """Which of the StatefulSet's resources the pod's spec lacks, and what it has instead; empty where it lacks none."""
    there = {container["name"]: container.get("resources") or {} for container in pod["spec"]["containers"]}
    lacks = [
        f"{kind.removesuffix('s')} of {name} of {container} was to be {quantity}, and is "
        f"{(there.get(container, {}).get(kind) or {}).get(name, 'none')}"
        for container, its in _resources(stateful_set["spec"]["template"]).items()
        for (kind, name), quantity in sorted(its.items())
        if not _has(there.get(container), {(kind, name): quantity})
    ]
    return ", ".join(lacks)


def containers_resized(stateful_set: Object, pod: Object) -> list[Object]:
    """The pod's containers with the resources of its StatefulSet's template. Other containers and resources stay."""
    wanted = _resources(stateful_set["spec"]["template"])
    found = []
    for container in pod["spec"]["containers"]:
        if (its := wanted.get(container["name"])) is None:
            found.append(container)
            continue
        resources: Object = dict(container.get("resources") or {})
        for (kind, name), quantity in its.items():
            resources[kind] = {**(resources.get(kind) or {}), name: quantity}
        found.append({**container, "resources": resources})
    return found


def _under_way(pod: Object, stateful_set: Object, note: Note, now: datetime) -> Resize:
    wanted = _resources(stateful_set["spec"]["template"])
    if lacks := lacking(stateful_set, pod):
        refused = f"another program gave the pod other resources: {lacks}" if note.since else ""
        return Resize(note.revision, begun=True, waits_for="to be asked for", refused=refused)
    pending, working = (_current(pod, kind, note, now) for kind in ("PodResizePending", "PodResizeInProgress"))
    if not pending and not working and _carried_out(pod, wanted):
        return Resize(note.revision, begun=True, asked=True, done=True)
    says = _said(pending or working)
    refused = says if pending.get("reason") == "Infeasible" else ""
    if not refused and _waited_s(note, now) >= LATE_S:
        refused = f"the resize isn't done after {LATE_S:.0f} s" + (f" ({says})" if says else "")
    return Resize(note.revision, begun=True, asked=True, waits_for=says, refused=refused)


def _waited_s(note: Note, now: datetime) -> float:
    return seconds_since(note.since, now) if note.since else 0.0


def _said(told: Mapping[str, Any]) -> str:
    return ": ".join(filter(None, (told.get("reason"), told.get("message"))))


def _current(pod: Object, kind: str, note: Note, now: datetime) -> Mapping[str, Any]:
    """The condition, if it is True and about the pod's present spec; else an empty mapping."""
    found = condition(pod.get("status"), kind)
    if found.get("status") != "True":
        return {}
    if about := found.get("observedGeneration"):
        return found if about >= pod["metadata"].get("generation", 0) else {}
    return found if found.get("reason") != "Infeasible" or _waited_s(note, now) >= STALE_S else {}


def _carried_out(pod: Object, wanted: Resources) -> bool:
    """Whether the running containers have the wanted resources, by the pod's status, which the node writes."""
    status = pod.get("status") or {}
    if status.get("observedGeneration", math.inf) < pod["metadata"].get("generation", 0):
        return False
    told = {each.get("name"): each for each in status.get("containerStatuses") or ()}
    for name, its in wanted.items():
        container = told.get(name, {})
        has = dict(container.get("resources") or {})
        if allocated := container.get("allocatedResources"):  # `resources` has CPU as the kernel rounds it
            has["requests"] = allocated
        if not _has(has, its):
            return False
    return True


def _has(resources: Object | None, wanted: Mapping[tuple[str, str], str]) -> bool:
    return all(
        _same(((resources or {}).get(kind) or {}).get(name), quantity) for (kind, name), quantity in wanted.items()
    )


def _same(one: object, other: object) -> bool:
    if one is None or other is None or str(one) == str(other):
        return one is not None and other is not None
    try:
        return math.isclose(amount(str(one)), amount(str(other)), rel_tol=1e-9)
    except ValueError:
        return False


# ---- what changes from one template to another


def _template(revision: Object) -> Object:
    template: Object = revision["data"]["spec"]["template"]
    return template


def _without_resources(template: Object) -> Object:
    spec = template["spec"]
    containers = [
        {name: value for name, value in container.items() if name not in ("resources", "resizePolicy")}
        for container in spec["containers"]
    ]
    return {**template, "spec": {**spec, "containers": containers}}


def _resources(template: Object) -> Resources:
    """The resources that a template gives to pods: a resource with a limit and no request requests as much."""
    found: dict[str, dict[tuple[str, str], str]] = {}
    for container in template["spec"]["containers"]:
        given = container.get("resources") or {}
        requests = {**(given.get("limits") or {}), **(given.get("requests") or {})}
        both = {**given, "requests": requests}
        found[container["name"]] = {
            (kind, name): str(quantity) for kind in _KINDS for name, quantity in (both.get(kind) or {}).items()
        }
    return found


def _differing(before: Resources, after: Resources) -> dict[str, set[tuple[str, str]]]:
    """For each container, the kinds and names of the resources that differ, as (kind, name)."""
    return {
        name: {
            each
            for each in before.get(name, {}).keys() | its.keys()
            if not _same(before.get(name, {}).get(each), its.get(each))
        }
        for name, its in after.items()
    }


def _changes(before: Resources, after: Resources) -> str:
    told = [
        f"{kind.removesuffix('s')} of {name} {before.get(container, {}).get((kind, name), 'none')} → "
        f"{after[container].get((kind, name), 'none')}"
        for container, changed in _differing(before, after).items()
        for kind, name in sorted(changed)
    ]
    return ", ".join(told)


def _not_in_place(pod: Object, before: Resources, after: Resources) -> str:
    """Why the API server would refuse a resize, or why the resize would restart a container; empty if neither would
    happen."""
    policies = {
        (container["name"], policy["resourceName"]): policy["restartPolicy"]
        for container in pod["spec"]["containers"]
        for policy in container.get("resizePolicy") or ()
    }
    for container, changed in _differing(before, after).items():
        for kind, name in sorted(changed):
            if name not in RESIZABLE:
                return f"only CPU and memory can change in place, not {name}"
            if (kind, name) not in after[container]:
                return f"a {kind.removesuffix('s')} of {name} can't be removed in place"
            if policies.get((container, name)) == "RestartContainer":
                return f"the container's resizePolicy for {name} is RestartContainer"
    return ""
