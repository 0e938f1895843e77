"""Reads the state of a Cluster's volumes: of its claims, and of the StorageClasses that they wait for.

A StorageClass is read only while a claim waits for its volume, or while brokers are to get a new volume. If the
operator may not read StorageClasses, the status names the class that the claim waits for, but not whether it exists,
and new volumes are added as if their classes existed.
"""

from __future__ import annotations

from ottla.operator.kube import Kube, KubeError
from ottla.operator.plan import etcd_pods
from ottla.operator.plan.broker_pods import BROKER
from ottla.operator.plan.new_volumes import new_classes, with_possible_volumes
from ottla.operator.plan.storage import Storage, classes_waited_for, standing
from ottla.operator.visit import Visit

CLAIM = "PersistentVolumeClaim"


async def hold_new_volumes(kube: Kube, visit: Visit) -> None:
    """Leaves new volumes out of the Cluster as long as their StorageClasses don't exist, and notes the first of these
    volumes in the findings. Raises KubeError."""
    cluster, found = visit.cluster, visit.found
    known = found.by_name("StatefulSet", BROKER), found.by_name(CLAIM, BROKER), found.by_name("Pod", BROKER)
    unknown = {name for name in new_classes(cluster, *known) if await _is_unknown(kube, name)}
    visit.cluster, held = with_possible_volumes(cluster, unknown, *known)
    if held:
        visit.findings.storage_is(Storage("Held", held))


async def look_at_volumes(kube: Kube, visit: Visit) -> None:
    """Notes the state of the volumes in the findings. Raises KubeError."""
    found = visit.found
    pods = [*found.all("Pod", BROKER), *found.all("Pod", etcd_pods.ETCD)]
    claims = found.by_name(CLAIM)
    unknown = {name for name in classes_waited_for(claims.values()) if await _is_unknown(kube, name)}
    visit.findings.storage_is(standing(found.all("StatefulSet"), claims, pods, unknown, visit.now))


async def _is_unknown(kube: Kube, storage_class: str) -> bool:
    try:
        return await kube.get("StorageClass", "", storage_class) is None
    except KubeError as error:
        if error.status != 403:
            raise
        return False
