"""The Services of a cluster for clients inside Kubernetes, and the ConfigMap with the clients' settings. Pure.

The headless Service gives every broker a name in DNS, ready or not, because the other brokers have to find a broker
that starts. The bootstrap Service sends connections to ready brokers only.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.operator.objects import Object
from ottla.operator.plan import names
from ottla.operator.plan.broker_file import between_brokers
from ottla.operator.plan.broker_pods import BROKER
from ottla.operator.plan.pods import found_by
from ottla.operator.spec.cluster import HTTP_PORT, Cluster
from ottla.operator.spec.security import Authentication


def brokers(cluster: Cluster) -> Object:
    """The headless Service that gives each broker its name in DNS."""
    ports = {**_between(cluster), "http": HTTP_PORT, **_inside(cluster)}
    return headless(cluster, names.broker_service(cluster), BROKER, ports)


def bootstrap(cluster: Cluster) -> Object:
    """The Service by which clients inside Kubernetes bootstrap, and the operator: it connects by a listener between
    brokers, whatever the listeners for clients ask for."""
    ports = [port(name, number) for name, number in {**_inside(cluster), **_between(cluster)}.items()]
    spec = {"type": "ClusterIP", "selector": found_by(cluster, BROKER), "ports": ports}
    return service(cluster, names.bootstrap_service(cluster), BROKER, spec)


def headless(cluster: Cluster, name: str, component: str, ports: Mapping[str, int]) -> Object:
    """A Service that gives each pod of a component a name in DNS, also before it is ready: the pods need each other to
    become ready."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": found_by(cluster, component),
        "ports": [port(name, number) for name, number in ports.items()],
    }
    return service(cluster, name, component, spec)


def service(
    cluster: Cluster, name: str, component: str, spec: Object, annotations: Mapping[str, str] | None = None
) -> Object:
    """A Service that Kubernetes deletes with the Cluster."""
    meta = names.metadata(cluster, name, component)
    if annotations:
        meta["annotations"] = dict(annotations)
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def bootstrap_servers(cluster: Cluster) -> dict[str, str]:
    """`bootstrap.servers` of each listener inside Kubernetes, by the listener's name."""
    host = f"{names.bootstrap_service(cluster)}.{cluster.namespace}.svc"
    return {each.name: f"{host}:{each.port}" for each in cluster.listeners if not each.external}


def client_config(cluster: Cluster, external: Mapping[str, str], trust: bytes) -> Object:
    """The ConfigMap with the settings that a client needs, to be mounted or read as environment variables. It lacks a
    client's own certificate or password.

    `external`: `bootstrap.servers` of each external listener whose addresses are known, by the listener's name;
    `trust`: the certificates (PEM) by which clients trust the brokers.
    """
    inside = bootstrap_servers(cluster)
    main = cluster.internal
    properties = {"bootstrap.servers": inside[main.name], "security.protocol": main.protocol}
    if main.authentication is Authentication.SCRAM:
        properties["sasl.mechanism"] = "SCRAM-SHA-512"
    if main.tls and main.certificate_secret is None:
        in_a_line = trust.decode().strip().replace("\n", "\\n")
        properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": in_a_line}
    data = {
        "bootstrap.servers": inside[main.name],
        "security.protocol": main.protocol,
        "client.properties": "".join(f"{name}={value}\n" for name, value in properties.items()),
        "OTTLA_BOOTSTRAP": inside[main.name],
    }
    protocols = {listener.name: listener.protocol for listener in cluster.listeners}
    for name, servers in {**inside, **external}.items():
        data[f"{name}.bootstrap.servers"] = servers
        if protocols[name] != "PLAINTEXT":
            data[f"{name}.security.protocol"] = protocols[name]
    return names.config_map(cluster, names.client_config(cluster), "client", data)


def _between(cluster: Cluster) -> dict[str, int]:
    return {name.lower(): number for name, number in between_brokers(cluster).items()}


def _inside(cluster: Cluster) -> dict[str, int]:
    return {listener.name: listener.port for listener in cluster.listeners if not listener.external}


def port(name: str, number: int) -> Object:
    """A port of a Service that has the same number in the pods."""
    return {"name": name, "port": number, "targetPort": number, "protocol": "TCP"}
