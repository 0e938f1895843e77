"""The one way in which the operator restarts a pod: it was looked at again just now, and is still what was judged.

Between a look and a delete somebody may have paused the Cluster or changed its spec, and the pod may be another one or
in another state. So the Cluster is read once more, and the delete holds the pod's uid and the version of what was read.
"""

from __future__ import annotations

from ottla.operator.kube import Kube
from ottla.operator.objects import Object, going
from ottla.operator.visit import Visit


async def restart(kube: Kube, visit: Visit, pod: Object, reason: str, message: str) -> bool:
    """Deletes it and tells so; whether it was done. `pod` is as it was read just now. Raises KubeError."""
    visit.busy = True
    asked_by = visit.resource["metadata"]
    resource = await kube.get("Cluster", *visit.cluster.ref)
    if resource is None or going(resource):
        return False
    if any(resource["metadata"].get(part) != asked_by.get(part) for part in ("uid", "generation")):
        return False
    meta, namespace = pod["metadata"], visit.cluster.namespace
    done = await kube.delete("Pod", namespace, meta["name"], uid=meta["uid"], version=meta["resourceVersion"])
    if done:
        visit.restarted = meta["name"]
        await visit.tell(reason, message)
    return done
