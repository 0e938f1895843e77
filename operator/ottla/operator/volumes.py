"""A pod whose volume is lost with its node begins anew on an empty one: its claims are deleted, then the pod itself.

Nothing is deleted by an old look: a pod that has found its node since keeps its volume.
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
    """Deletes claims and pod if a second look says the same; `safe` is asked after it. Raises KubeError."""
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    await visit.found.look_again()
    again = visit.found.get("Pod", name)
    if again is None or again["metadata"]["uid"] != uid or not waits_for_its_volume(again, after_s, visit.now):
        return
    if not safe():
        return
    await visit.tell("LostVolumeReplaced", f"{name} begins anew: its volume's node is gone")
    for claim_name in claims_of(again):
        if (claim := visit.found.get("PersistentVolumeClaim", claim_name)) is not None:
            claim_uid = claim["metadata"]["uid"]
            await kube.delete("PersistentVolumeClaim", visit.cluster.namespace, claim_name, uid=claim_uid)
    await kube.delete("Pod", visit.cluster.namespace, name, uid=uid)
