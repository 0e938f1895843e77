"""The one way in which the operator restarts a pod: a second look, made just before the delete, chooses it again.

Between a look and a delete somebody may have paused the Cluster or changed its spec, and the pod may be another one or
in another state. So pods are read and judged once more, the Cluster is read once more, and the delete holds the pod's
uid and the version of what was read.
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
    """Deletes the pod that was chosen, if `decide_again` chooses the same one after a second look; the last decision.
    Raises KubeError."""
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
    """Deletes it and tells so, unless the Cluster or the pod has changed. `pod` is as it was read just now."""
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
