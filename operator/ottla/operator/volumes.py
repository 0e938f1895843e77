"""Replaces a volume that was lost with its node: the pod and its PersistentVolumeClaims are deleted and created anew.

Nothing is deleted because of outdated knowledge: if the pod has been bound to a node since it was last read, its volume
isn't lost. So the pod is deleted first, and only if its resource version hasn't changed: a binding to a node would
change the pod's version, but not the versions of its claims. The StatefulSet may create the next pod before the claims
are gone. The next pod stays pending as its predecessor did: Kubernetes deletes the claims of a pod that has no node,
and the StatefulSet's controller creates the claims that a pending pod lacks. If the next pod has been bound to a node
after all, its volume isn't lost, and the claims are kept. If the operator process ends between the steps, the next
pod's volume counts as lost later, and the steps are repeated.
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
    """Reads the pod again. Deletes it and its claims if it still waits for its volume, and if `safe` returns True.
    A volume counts as lost once a pod has waited `after_s` seconds for it. Raises KubeError."""
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
    await visit.tell("LostVolumeReplaced", f"{name} starts on a new volume: its old volume's node is gone")
    for claim_name in claims_of(again):
        if (claim := visit.found.get("PersistentVolumeClaim", claim_name)) is not None:
            await kube.delete("PersistentVolumeClaim", namespace, claim_name, uid=claim["metadata"]["uid"])
