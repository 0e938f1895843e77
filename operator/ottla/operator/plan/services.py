"""The Services of a cluster, and the ConfigMap that tells clients where to begin. Pure.

The headless Service names every broker, ready or not: a broker that starts has to be found by the others. The bootstrap
Service leads to those that serve.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.operator.objects import Object
from ottla.operator.plan import names
from ottla.operator.plan.broker_file import REPLICATION
from ottla.operator.plan.broker_pods import BROKER
from ottla.operator.plan.pods import found_by
from ottla.operator.spec.cluster import HTTP_PORT, REPLICATION_PORT, Cluster


def headless(cluster: Cluster) -> Object:
    """The brokers' names in DNS."""
    ports = [_port(REPLICATION.lower(), REPLICATION_PORT), _port("http", HTTP_PORT)]
    ports += [_port(listener.name, listener.port) for listener in cluster.listeners if not listener.external]
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": found_by(cluster, BROKER),
        "ports": ports,
    }
    return service(cluster, names.broker_service(cluster), BROKER, spec)


def bootstrap(cluster: Cluster) -> Object:
    """Where clients inside Kubernetes begin."""
    ports = [_port(listener.name, listener.port) for listener in cluster.listeners if not listener.external]
    spec = {"type": "ClusterIP", "selector": found_by(cluster, BROKER), "ports": ports}
    return service(cluster, names.bootstrap_service(cluster), BROKER, spec)


def service(
    cluster: Cluster, name: str, component: str, spec: Object, annotations: Mapping[str, str] | None = None
) -> Object:
    """A Service that goes with the Cluster."""
    meta = names.metadata(cluster, name, component)
    if annotations:
        meta["annotations"] = dict(annotations)
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}


def bootstrap_servers(cluster: Cluster) -> dict[str, str]:
    """`bootstrap.servers` of each listener inside Kubernetes, by its name."""
    host = f"{names.bootstrap_service(cluster)}.{cluster.namespace}.svc"
    return {each.name: f"{host}:{each.port}" for each in cluster.listeners if not each.external}


def client_config(cluster: Cluster, external: Mapping[str, str]) -> Object:
    """What a client needs: mount it, or take its keys as environment variables. `external` as `bootstrap_servers`."""
    inside = bootstrap_servers(cluster)
    main = inside[cluster.internal.name]
    data = {
        "bootstrap.servers": main,
        "security.protocol": "PLAINTEXT",
        "client.properties": f"bootstrap.servers={main}\nsecurity.protocol=PLAINTEXT\n",
        "OTTLA_BOOTSTRAP": main,
    }
    for name, servers in {**inside, **external}.items():
        data[f"{name}.bootstrap.servers"] = servers
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": names.metadata(cluster, names.client_config(cluster), "client"),
        "data": data,
    }


def _port(name: str, number: int) -> Object:
    return {"name": name, "port": number, "targetPort": number, "protocol": "TCP"}
