"""Tells each broker its rack where that is a label of its node: only the node that a pod got says it.

The pod waits for an annotation, which is written as soon as it has a node; brokers read no nodes, so they need no
rights.
"""

from __future__ import annotations

from ottla.operator.found import Found
from ottla.operator.kube import Kube, KubeError
from ottla.operator.plan.broker_pods import BROKER, RACK
from ottla.operator.plan.names import POOL
from ottla.operator.spec.cluster import Cluster


async def tell_racks(kube: Kube, cluster: Cluster, found: Found) -> str:
    """Annotates pods that have a node and no rack yet; what is in the way of the first one that can't be told.

    A node without the label holds up only its own pod: the others have to start whatever becomes of that one.
    """
    trouble = ""
    keys = {pool.name: pool.rack_key for pool in cluster.pools if pool.rack_key}
    for pod in found.all("Pod", BROKER):
        meta, node_name = pod["metadata"], pod["spec"].get("nodeName")
        key = keys.get(meta["labels"].get(POOL, ""))
        if not key or not node_name or RACK in (meta.get("annotations") or {}):
            continue
        try:
            node = await kube.get("Node", "", node_name)
        except KubeError as error:
            if error.status == 403:
                return f"rackKey: the operator may not read nodes, so {meta['name']} doesn't learn its rack"
            raise
        rack = ((node or {}).get("metadata", {}).get("labels") or {}).get(key, "")
        if not rack:
            trouble = trouble or f"rackKey: node {node_name} of {meta['name']} has no label {key}"
            continue
        await kube.merge("Pod", cluster.namespace, meta["name"], {"metadata": {"annotations": {RACK: rack}}})
    return trouble
