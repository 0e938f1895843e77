"""Kubernetes' rules for the resources of a running pod: the API server's checks of a resize, and the node's answer.

The rules are those of Kubernetes 1.33 to 1.36, for pods of one container whose quantities are all written in the same
way.
"""

from __future__ import annotations

from typing import Any

from ottla.operator.kube import KubeError
from ottla.operator.spec.quantity import amount

Object = dict[str, Any]
KINDS = ("requests", "limits")


def filled_in(template: Object) -> Object:
    """A pod's spec as the API server stores it: a resource with a limit only gets the limit as its request."""
    containers = []
    for container in template["containers"]:
        given = container.get("resources") or {}
        requests = {**given.get("limits", {}), **given.get("requests", {})}
        containers.append({**container, "resources": {**given, "requests": requests} if requests else given})
    return {**template, "containers": containers}


def check_resize(pod: Object, patch: Object, *, lowers_memory: bool = True) -> None:
    """Raises KubeError (422) if the API server would refuse this patch of the subresource `resize`."""
    (before,), (after,) = pod["spec"]["containers"], patch["spec"]["containers"]
    old, new = before["resources"], after["resources"]
    if {**before, "resources": {}} != {**after, "resources": {}}:
        _refuse(pod, "only cpu and memory resources are mutable")
    for kind in KINDS:
        had, has = old.get(kind, {}), new.get(kind, {})
        if had.keys() - has.keys():
            _refuse(pod, f"resource {kind} cannot be removed")
        if any(had.get(name) != has[name] for name in has if name not in ("cpu", "memory")):
            _refuse(pod, "only cpu and memory resources are mutable")
    if quality_of_service(old) != quality_of_service(new):
        _refuse(pod, "Pod QOS Class may not change as a result of resizing")
    memory = [amount(each.get("limits", {}).get("memory", "0")) for each in (old, new)]
    if memory[1] < memory[0] and not lowers_memory:
        _refuse(pod, "memory limits cannot be decreased unless resizePolicy is RestartContainer")


def quality_of_service(resources: Object) -> str:
    """The QoS class of a pod with one container."""
    requests, limits = ({k: v for k, v in resources.get(kind, {}).items() if k in ("cpu", "memory")} for kind in KINDS)
    if not requests and not limits:
        return "BestEffort"
    return "Guaranteed" if requests == limits and len(limits) == 2 else "Burstable"


def resources_told(pod: Object, says: str = "") -> tuple[list[Object], Object]:
    """The node's status of a pod: its conditions, and the fields of its container's status.

    `says` is the node's answer to a resize: empty if the resize is done, Infeasible or Deferred if the node can't do it
    now, InProgress if the node has begun it."""
    container, meta = pod["spec"]["containers"][0], pod["metadata"]
    wanted = container.get("resources") or {}
    told = ((pod.get("status") or {}).get("containerStatuses") or [{}])[0]
    has = told.get("resources", wanted)
    conditions = []
    if has == wanted or not says:
        has = wanted
    else:
        kind, reason = ("PodResizeInProgress", "") if says == "InProgress" else ("PodResizePending", says)
        condition = {"type": kind, "status": "True", "reason": reason, "observedGeneration": meta["generation"]}
        conditions = [{**condition, "message": "Node didn't have enough resource: memory"}]
    return conditions, {"name": container["name"], "resources": has, "allocatedResources": has.get("requests", {})}


def _refuse(pod: Object, why: str) -> None:
    raise KubeError(422, f"patching Pod {pod['metadata']['name']}", why)
