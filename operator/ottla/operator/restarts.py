"""Restarts pods. Just before the operator deletes a pod, a second decision must choose the same pod again.

Since the first decision, a person may have paused the Cluster or changed its spec, and the pod may have been replaced
or be in another state. So pods are read once more and decided about again, the Cluster is read once more, and the
deletion has the pod's uid and resource version as preconditions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ottla.operator.kube import Kube
from ottla.operator.objects import Object, going
from ottla.operator.plan.roll import Decision, Restart
from ottla.operator.visit import Visit


async def restart_chosen(
    kube: Kube, visit: Visit, decision: Decision, decide_again: Callable[[], Awaitable[Decision]]
) -> Decision:
    """Deletes the chosen pod, if `decide_again` chooses the same one after pods were read again. Returns the last
    decision. Raises KubeError."""
    if (chosen := decision.restart) is None:
        return decision
    await visit.found.look_again()
    decision = await decide_again()
    if (again := decision.restart) is not None and again.pod.uid == chosen.pod.uid:
        pod = visit.found.get("Pod", again.pod.name)
        assert pod is not None
        await _restart(kube, visit, pod, again)
    return decision


async def _restart(kube: Kube, visit: Visit, pod: Object, chosen: Restart) -> None:
    """Deletes the pod and writes an Event, unless the Cluster or the pod has changed. `pod` was read just now."""
    visit.busy = True
    asked_by = visit.resource["metadata"]
    resource = await kube.get("Cluster", *visit.cluster.ref)
    if resource is None or going(resource):
        return
    if any(resource["metadata"].get(part) != asked_by.get(part) for part in ("uid", "generation")):
        return
    meta, namespace = pod["metadata"], visit.cluster.namespace
    if await kube.delete("Pod", namespace, meta["name"], uid=meta["uid"], version=meta["resourceVersion"]):
        visit.restarted = meta["name"]
        await visit.tell(chosen.reason, chosen.message)
