"""Replaces a volume that was lost with its node: its pod is deleted, then the pod's claims, and both are made anew.

Nothing is deleted because of an outdated look: if the pod has been bound to a node since, its volume isn't lost. So the
pod is deleted first, and only if its resource version hasn't changed: a binding to a node would change it, while a
claim doesn't change by the binding of its pod. The StatefulSet may make the next pod before the claims are gone. That
pod waits as its predecessor did: Kubernetes deletes claims of a pod that has no node, and the StatefulSet's controller
makes the claims that a pending pod lacks. If that pod has been bound to a node after all, its volume isn't lost, and is
kept. If the operator ends in between, the next pod's volume counts as lost later, and the steps are repeated.
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
    """Deletes the pod and its claims, if after a second look its volume is still lost and `safe` agrees. Raises
    KubeError."""
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
