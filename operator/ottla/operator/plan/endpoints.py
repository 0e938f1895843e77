"""The endpoints of a load balancer that all brokers share: each broker is behind a port of its own. Pure.

A Service with a selector sends each of its ports to all pods that it selects. So this Service has no selector, and the
operator writes its EndpointSlices: one for each broker, and one with all brokers for the bootstrap port. The operator
keeps them up to date with the pods' addresses, as Kubernetes' own controller does for Services with a selector.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.operator.objects import OPERATOR, Object, going
from ottla.operator.plan import names
from ottla.operator.plan.broker_pods import BROKER
from ottla.operator.plan.observed import address, is_ready
from ottla.operator.spec.cluster import Cluster, Listener

SERVICE_NAME = "kubernetes.io/service-name"  # a label by which kube-proxy and load balancers find a Service's slices
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
BOOTSTRAP_PORT = "bootstrap"


def broker_port(broker: int) -> str:
    """The name of a broker's port in the Service."""
    return f"broker-{broker}"


def endpoint_slices(cluster: Cluster, pods: Mapping[int, Object]) -> list[Object]:
    """All EndpointSlices of a cluster; `pods`: broker → its pod."""
    made = []
    for listener in cluster.listeners:
        if not listener.shared:
            continue
        brokers = sorted(pods.items())
        serving = [_endpoint(pod, is_ready(pod)) for _, pod in brokers if address(pod)]
        made += _by_family(cluster, listener, BOOTSTRAP_PORT, serving)
        for broker, pod in brokers:
            # The endpoint counts as ready even if the pod isn't: a client that needs this broker can't use another one.
            own = [_endpoint(pod, True)] if address(pod) else []
            made += _by_family(cluster, listener, broker_port(broker), own)
    return made


def _endpoint(pod: Object, ready: bool) -> Object:
    meta = pod["metadata"]
    endpoint: Object = {
        "addresses": [address(pod)],
        "conditions": {"ready": ready, "serving": is_ready(pod), "terminating": going(pod)},
        "targetRef": {"kind": "Pod", "namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]},
    }
    if node := pod["spec"].get("nodeName"):
        endpoint["nodeName"] = node
    return endpoint


def _by_family(cluster: Cluster, listener: Listener, port: str, endpoints: Iterable[Object]) -> list[Object]:
    """One EndpointSlice for each address type (IPv4, IPv6): a slice has only one address type, which can't be
    changed."""
    families: dict[str, list[Object]] = {}
    for endpoint in endpoints:
        families.setdefault("IPv6" if ":" in endpoint["addresses"][0] else "IPv4", []).append(endpoint)
    return [_slice(cluster, listener, port, family, members) for family, members in sorted(families.items())]


def _slice(cluster: Cluster, listener: Listener, port: str, family: str, endpoints: list[Object]) -> Object:
    service = names.bootstrap_service(cluster, listener)
    labels = {SERVICE_NAME: service, MANAGED_BY: OPERATOR}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": names.metadata(cluster, f"{service}-{port}-{family.lower()}", BROKER, labels),
        "addressType": family,
        "ports": [{"name": port, "port": listener.port, "protocol": "TCP"}],
        "endpoints": endpoints,
    }
