"""A pod whose volume is lost with its node begins anew on an empty one: the pod is deleted, then its claims.

Nothing is deleted by an old look: a pod that has found its node since keeps its volume. So the pod goes first, if it is
still what was looked at: being bound to a node changes it, and claims have nothing that such a change would show in.
The StatefulSet may make the next pod before its claims are gone. That pod waits as the one before did; Kubernetes takes
claims away under a pod without a node, and makes claims that a pending pod misses. If that pod has found its node
after all, its volume isn't lost, and stays. Where the operator ends in between, the next pod is taken for lost in turn.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.operator.kube import Kube
from ottla.operator.objects import Object
from ottla.operator.plan.lost import waits_for_its_volume
from ottla.operator.plan.storage import claims_of
from ottla.operator.visit import Visit


async def begin_anew(
    kube: Kube, visit: Visit, pod: Object, after_s: float, safe: Callable[[], bool] = lambda: True
) -> None:
    """Deletes pod and claims if a second look says the same; `safe` is asked after it. Raises KubeError."""
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    await visit.found.look_again()
    again = visit.found.get("Pod", name)
    if again is None or again["metadata"]["uid"] != uid or not waits_for_its_volume(again, after_s, visit.now):
        return
    if not safe():
        return
    namespace = visit.cluster.namespace
    if not await kube.delete("Pod", namespace, name, uid=uid, version=again["metadata"]["resourceVersion"]):
        return
    successor = await kube.get("Pod", namespace, name)
    if successor is not None and successor["spec"].get("nodeName"):
        return
    await visit.tell("LostVolumeReplaced", f"{name} begins anew: its volume's node is gone")
    for claim_name in claims_of(again):
        if (claim := visit.found.get("PersistentVolumeClaim", claim_name)) is not None:
            await kube.delete("PersistentVolumeClaim", namespace, claim_name, uid=claim["metadata"]["uid"])
