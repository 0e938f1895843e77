"""The brokers' server.properties: the operator's own settings, then the spec's. Pure.

One file serves all brokers and controllers of a cluster. Settings that differ between them come from the environment of
their pods. Where the spec has settings for a single broker, they come from a second file that this broker's pod reads
after the first one. Settings that can change while a broker runs are in neither file. The operator sets them as dynamic
settings, so that a change of them never makes a pod look outdated.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.operator.plan import broker_tls, names
from ottla.operator.plan.broker_tls import ENCRYPTED_REPLICATION
from ottla.operator.spec.cluster import ENCRYPTED_REPLICATION_PORT, HTTP_PORT, REPLICATION_PORT, Cluster, Etcd

REPLICATION = "REPLICATION"
FACTOR_MAX = 3
ETCD_PORT = 2379
SECRETS = "/etc/ottla-etcd"


def server_properties(cluster: Cluster) -> str:
    """The text of the file that all brokers and controllers read."""
    between = between_brokers(cluster)
    opened = [f"{name}://:{port}" for name, port in between.items()]
    opened += [f"{listener.kafka_name}://:{listener.port}" for listener in cluster.listeners]
    protocols = [f"{name}:{'PLAINTEXT' if name == REPLICATION else 'SSL'}" for name in between]
    protocols += [f"{listener.kafka_name}:{listener.protocol}" for listener in cluster.listeners]
    # Brokers that are to be removed still count. Their removal may be refused or taken back, and then the file must not
    # change again, because the other brokers would be restarted for it.
    factor = str(min(FACTOR_MAX, len(cluster.broker_ids) + cluster.leaving))
    settings = {
        "process.roles": "broker" if cluster.controllers.replicas else "broker,controller",
        "listeners": ",".join(opened),
        "listener.security.protocol.map": ",".join(protocols),
        "inter.broker.listener.name": ENCRYPTED_REPLICATION if cluster.links.by_encrypted else REPLICATION,
        "default.replication.factor": factor,
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
        "ottla.http.listener": f":{HTTP_PORT}",
        "ottla.log.format": "json",
        **store(cluster),
        **broker_tls.settings(cluster),
        **cluster.static_config,
    }
    return _lines(settings)


def between_brokers(cluster: Cluster) -> dict[str, int]:
    """The ports of the open listeners between brokers, by the listeners' names."""
    plain = {REPLICATION: REPLICATION_PORT} if cluster.links.plain_open else {}
    encrypted = {ENCRYPTED_REPLICATION: ENCRYPTED_REPLICATION_PORT} if cluster.links.encrypted_open else {}
    return {**plain, **encrypted}


def own_properties(cluster: Cluster) -> dict[int, str]:
    """The texts of the files that single brokers read after the common one, by broker id."""
    return {broker: _lines(own.static) for broker, own in sorted(cluster.overrides.items()) if own.static}


def store(cluster: Cluster) -> dict[str, str]:
    """The settings by which brokers reach etcd, and authenticate there."""
    settings = {
        "ottla.metadata.store": "etcd:" + ",".join(etcd_endpoints(cluster)),
        "ottla.metadata.etcd.prefix": cluster.prefix,
    }
    if isinstance(cluster.metadata, Etcd):
        if cluster.metadata.tls:
            settings |= {
                "ottla.metadata.etcd.tls": "true",
                "ottla.metadata.etcd.tls.ca.file": f"{SECRETS}/tls/ca.crt",
                "ottla.metadata.etcd.tls.certificate.file": f"{SECRETS}/tls/client.crt",
                "ottla.metadata.etcd.tls.key.file": f"{SECRETS}/tls/client.key",
            }
        return settings
    if cluster.metadata.tls:
        settings["ottla.metadata.etcd.tls"] = "true"
    if cluster.metadata.tls_secret:
        settings["ottla.metadata.etcd.tls.ca.file"] = f"{SECRETS}/tls/ca.crt"
    if cluster.metadata.client_certificate:
        settings["ottla.metadata.etcd.tls.certificate.file"] = f"{SECRETS}/tls/tls.crt"
        settings["ottla.metadata.etcd.tls.key.file"] = f"{SECRETS}/tls/tls.key"
    if cluster.metadata.credentials_secret:
        settings["ottla.metadata.etcd.password.file"] = f"{SECRETS}/credentials/password"
    return settings


def etcd_endpoints(cluster: Cluster) -> list[str]:
    """etcd's members as host:port."""
    if not isinstance(cluster.metadata, Etcd):
        return list(cluster.metadata.endpoints)
    service = names.etcd_set(cluster)
    pods = [f"{service}-{number}" for number in range(cluster.metadata.members)]
    return [f"{names.pod_host(cluster, pod, service)}:{ETCD_PORT}" for pod in pods]


def _lines(settings: Mapping[str, str]) -> str:
    return "".join(f"{name}={_escaped(value)}\n" for name, value in settings.items())


def _escaped(value: str) -> str:
    """The value with doubled backslashes, which java.util.Properties reads as single ones."""
    return value.replace("\\", "\\\\")
