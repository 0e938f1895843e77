"""Reads the state of a Cluster's volumes: of its claims, and of the StorageClasses that they wait for.

A StorageClass is read only while a claim waits for its volume. If the operator may not read StorageClasses, the status
names the class that the claim waits for, but not whether it exists.
"""

from __future__ import annotations

from ottla.operator.kube import Kube, KubeError
from ottla.operator.plan import etcd_pods
from ottla.operator.plan.broker_pods import BROKER
from ottla.operator.plan.storage import classes_waited_for, standing
from ottla.operator.visit import Visit


async def look_at_volumes(kube: Kube, visit: Visit) -> None:
    """Notes the state of the volumes in the findings. Raises KubeError."""
    found = visit.found
    pods = [*found.all("Pod", BROKER), *found.all("Pod", etcd_pods.ETCD)]
    claims = found.by_name("PersistentVolumeClaim")
    unknown = {name for name in classes_waited_for(claims.values()) if await _is_unknown(kube, name)}
    visit.findings.storage_is(standing(found.all("StatefulSet"), claims, pods, unknown, visit.now))


async def _is_unknown(kube: Kube, storage_class: str) -> bool:
    try:
        return await kube.get("StorageClass", "", storage_class) is None
    except KubeError as error:
        if error.status != 403:
            raise
        return False
