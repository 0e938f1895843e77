"""Tells each broker its rack, if racks are labels of nodes. Then a broker's rack is known only once its pod has a node.

As soon as a pod has a node, the operator annotates the pod with the rack, and the pod's container waits for that
annotation. So brokers don't read nodes, and need no rights in Kubernetes.
"""

from __future__ import annotations

from ottla.operator.found import Found
from ottla.operator.kube import Kube, KubeError
from ottla.operator.objects import Object
from ottla.operator.plan.broker_pods import BROKER, RACK
from ottla.operator.plan.names import POOL
from ottla.operator.refusals import Refusals
from ottla.operator.spec.cluster import Cluster


async def tell_racks(kube: Kube, cluster: Cluster, found: Found) -> str:
    """Annotates each pod that has a node, and no rack yet, with its node's rack. Returns why the first pod without a
    rack gets none; else empty. A node that lacks the label `rackKey`, or can't be read, delays only the pods on that
    node. Raises Retry with the first request that Kubernetes refuses."""
    trouble = ""
    keys = {pool.name: pool.rack_key for pool in cluster.pools if pool.rack_key}
    refusals = Refusals()
    for pod in found.all("Pod", BROKER):
        meta, node_name = pod["metadata"], pod["spec"].get("nodeName")
        key = keys.get(meta["labels"].get(POOL, ""))
        if not key or not node_name or RACK in (meta.get("annotations") or {}):
            continue
        with refusals.gathered():
            untold = await _tell(kube, pod, node_name, key)
            trouble = trouble or untold
    refusals.told()
    return trouble


async def _tell(kube: Kube, pod: Object, node_name: str, key: str) -> str:
    """Annotates one pod with its node's rack. Returns why it has no rack; empty if it has one. Raises KubeError."""
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    try:
        node = await kube.get("Node", "", node_name)
    except KubeError as error:
        if error.status == 403:
            return f"rackKey: the operator may not read nodes, so {name} doesn't learn its rack"
        raise
    rack = ((node or {}).get("metadata", {}).get("labels") or {}).get(key, "")
    if not rack:
        return f"rackKey: node {node_name} of {name} has no label {key}"
    await kube.merge("Pod", namespace, name, {"metadata": {"annotations": {RACK: rack}}})
    return ""
