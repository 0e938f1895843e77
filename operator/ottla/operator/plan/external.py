"""Listeners for clients outside: a Service for each broker, and the addresses that follow from it. Pure.

Each broker needs an address of its own, because clients connect to each partition's leader. A broker's address is known
only once its Service has a node port or a load balancer, and for node ports once its pod has a node. Then the running
broker is told its address. Brokers may also share a load balancer: one Service with a port for each of them.

The Cluster's status keeps a broker's node port when the Service is gone. So a broker that comes back has the port that
firewalls and clients know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ottla.net.names import Address
from ottla.operator.objects import Object
from ottla.operator.plan import names
from ottla.operator.plan.broker_pods import BROKER
from ottla.operator.plan.endpoints import BOOTSTRAP_PORT, broker_port
from ottla.operator.plan.pods import found_by
from ottla.operator.plan.services import port, service
from ottla.operator.spec.cluster import Cluster, Listener

NodePorts = Mapping[tuple[str, int], int]  # (a listener's name, a broker's id) → port


def external_services(cluster: Cluster, pods: Mapping[int, str], known: NodePorts) -> list[Object]:
    """All Services for clients outside; `pods`: broker → the pod's name; `known`: the node ports to keep."""
    made = []
    for listener in cluster.listeners:
        if not listener.external:
            continue
        if listener.shared:
            made.append(_shared(cluster, listener, pods))
            continue
        made.append(
            _service(
                cluster,
                listener,
                names.bootstrap_service(cluster, listener),
                found_by(cluster, BROKER),
                listener.bootstrap_node_port,
            )
        )
        for broker, pod in sorted(pods.items()):
            name = names.external_service(cluster, pod, listener)
            first = listener.first_node_port
            node_port = first + broker if first is not None else known.get((listener.name, broker))
            each = _service(cluster, listener, name, {names.POD_NAME: pod}, node_port)
            each["spec"]["publishNotReadyAddresses"] = True  # clients that need this broker can't use another one
            made.append(each)
    return made


def node_ports(
    cluster: Cluster, pods: Mapping[int, str], services: Mapping[str, Object], noted: NodePorts
) -> NodePorts:
    """The brokers' node ports. They are those of the `services` (name → object) or, for a broker without a Service,
    those that the Cluster's status `noted`."""
    ports = {}
    for listener in cluster.listeners:
        if listener.type != "NodePort":
            continue
        ports.update({key: port for key, port in noted.items() if key[0] == listener.name})
        for broker, pod in pods.items():
            present = services.get(names.external_service(cluster, pod, listener))
            if present is None:
                continue
            if port := present["spec"]["ports"][0].get("nodePort"):
                ports[listener.name, broker] = port
            else:
                ports.pop((listener.name, broker), None)
    return ports


def noted_ports(status: Mapping[str, Any]) -> NodePorts:
    """The node ports that `ports_noted` has written into a Cluster's status."""
    return {(each["listener"], each["broker"]): each["port"] for each in status.get("nodePorts") or ()}


def ports_noted(ports: NodePorts) -> list[Object]:
    """Node ports in the form that a Cluster's status has."""
    return [
        {"listener": listener, "broker": broker, "port": port} for (listener, broker), port in sorted(ports.items())
    ]


def service_of(cluster: Cluster, pod: str, listener: Listener) -> str:
    """The name of the Service by which clients outside reach one broker."""
    return (
        names.bootstrap_service(cluster, listener)
        if listener.shared
        else names.external_service(cluster, pod, listener)
    )


def _service(cluster: Cluster, listener: Listener, name: str, selector: Object, node_port: int | None) -> Object:
    reached = port(listener.name, listener.port)
    if listener.type == "NodePort" and node_port is not None:
        reached["nodePort"] = node_port
    return _opened(cluster, listener, name, {"selector": selector, "ports": [reached]})


def _shared(cluster: Cluster, listener: Listener, brokers: Iterable[int]) -> Object:
    """One Service for all brokers; `endpoints.py` makes the endpoints of its ports."""
    ports = [port(BOOTSTRAP_PORT, listener.port)]
    ports += [
        {**port(broker_port(broker), listener.port), "port": listener.port_outside(broker)}
        for broker in sorted(brokers)
    ]
    return _opened(cluster, listener, names.bootstrap_service(cluster, listener), {"ports": ports})


def _opened(cluster: Cluster, listener: Listener, name: str, spec: Object) -> Object:
    """A Service of the listener's type, with the listener's settings for node ports or load balancers."""
    spec["type"] = listener.type
    if listener.traffic_policy:
        spec["externalTrafficPolicy"] = listener.traffic_policy
    if listener.type == "LoadBalancer":
        if listener.load_balancer_class:
            spec["loadBalancerClass"] = listener.load_balancer_class
        if listener.source_ranges:
            spec["loadBalancerSourceRanges"] = list(listener.source_ranges)
    return service(cluster, name, BROKER, spec, listener.annotations)


def address(listener: Listener, broker: int | None, found: Object | None, node_host: str) -> str:
    """host:port at which clients outside reach a broker or, if `broker` is None, bootstrap; empty while it isn't known.

    `found`: the Service; `node_host`: the address of the broker's node.
    """
    if found is None:
        return ""
    (reached, *_) = found["spec"].get("ports") or [{}]
    if listener.type == "LoadBalancer":
        ingress = ((found.get("status") or {}).get("loadBalancer") or {}).get("ingress") or [{}]
        host = ingress[0].get("hostname") or ingress[0].get("ip") or ""
        number = listener.port if broker is None else listener.port_outside(broker)
        if not host:
            return ""
    else:
        host, number = node_host, reached.get("nodePort")
    if listener.host_template:
        host = listener.host_template.replace("{id}", "bootstrap" if broker is None else str(broker))
    if not host or not number:
        return ""
    return str(Address(host, number))


def told(listeners: Mapping[str, str]) -> str:
    """The value of a broker's setting `ottla.listener.addresses`. `listeners`: name → host:port; an address that isn't
    known yet is empty, and left out."""
    return ",".join(f"{name.upper()}://{where}" for name, where in sorted(listeners.items()) if where)


def node_address(node: Object) -> str:
    """A node's external address, else its internal one; empty where it has none."""
    found = {each["type"]: each["address"] for each in (node.get("status") or {}).get("addresses") or ()}
    kinds = ("ExternalDNS", "ExternalIP", "InternalIP", "Hostname")
    return next((found[kind] for kind in kinds if kind in found), "")


def bootstrap_servers(addresses: Iterable[str]) -> str:
    """The known addresses, each once, as one value of `bootstrap.servers`."""
    return ",".join(dict.fromkeys(filter(None, addresses)))
