"""NetworkPolicies: which pods and addresses may connect to the pods of a cluster. Pure.

All ports of brokers are open to brokers, controllers and the operator; each listener is also open to its clients.
Controllers with pods of their own are open to the operator only. etcd's port for clients is open to brokers,
controllers, etcd's members, the operator and the jobs that take snapshots; its port for peers is open to members only.
Ports of metrics are open to the peers of `monitoring`, too. Rules select the Cluster's pods by all labels of
`pods.found_by`, because pods of other software may have the Cluster's name as a label, too.

The operator's namespace isn't known here, so its ports are open to pods with its labels in any namespace.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.operator.objects import Object
from ottla.operator.plan import names
from ottla.operator.plan.broker_file import ETCD_PORT, between_brokers
from ottla.operator.plan.broker_pods import BROKER, CONTROLLER
from ottla.operator.plan.etcd_pods import ETCD, METRICS_PORT, PEER_PORT
from ottla.operator.plan.names import COMPONENT, INSTANCE
from ottla.operator.plan.pods import found_by
from ottla.operator.plan.snapshots import SNAPSHOTS
from ottla.operator.spec.cluster import HTTP_PORT, Cluster, Etcd, NetworkRules

OPERATOR: Object = {
    "namespaceSelector": {},
    "podSelector": {"matchLabels": {COMPONENT: "operator", "app.kubernetes.io/part-of": "ottla"}},
}


def policies(cluster: Cluster, rules: NetworkRules) -> list[Object]:
    """The NetworkPolicies of the brokers, and of controllers and etcd where these have pods of their own."""

    def pods(*components: str) -> list[Object]:
        return [{"podSelector": {"matchLabels": found_by(cluster, component)}} for component in components]

    def monitored(port: int) -> list[Object]:
        return [_rule(rules.monitoring, [port])] if rules.monitoring else []

    listeners = [listener.port for listener in cluster.listeners]
    between = between_brokers(cluster).values()
    ingress = [_rule([*pods(BROKER, CONTROLLER), OPERATOR], [*between, HTTP_PORT, *listeners])]
    for listener in cluster.listeners:
        peers = listener.peers or rules.clients
        ingress.append(_rule([*peers, _charts_test(cluster)] if peers else (), [listener.port]))
    made = [_policy(cluster, names.broker_service(cluster), BROKER, [*ingress, *monitored(HTTP_PORT)])]
    if cluster.controllers.replicas:
        ingress = [_rule([OPERATOR], [HTTP_PORT]), *monitored(HTTP_PORT)]
        made.append(_policy(cluster, names.controller_set(cluster), CONTROLLER, ingress))
    if isinstance(cluster.metadata, Etcd):
        ingress = [
            _rule([*pods(BROKER, CONTROLLER, ETCD, SNAPSHOTS), OPERATOR], [ETCD_PORT]),
            _rule(pods(ETCD), [PEER_PORT]),
            *monitored(METRICS_PORT),
        ]
        made.append(_policy(cluster, names.etcd_set(cluster), ETCD, ingress))
    return made


def _charts_test(cluster: Cluster) -> Object:
    """The pod of `helm test`, a client that the chart brings with the Cluster."""
    return {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "ottla-test", INSTANCE: cluster.name}}}


def _policy(cluster: Cluster, name: str, component: str, ingress: list[Object]) -> Object:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": names.metadata(cluster, name, component),
        "spec": {
            "podSelector": {"matchLabels": found_by(cluster, component)},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    }


def _rule(peers: Sequence[Object], ports: list[int]) -> Object:
    """A rule that lets `peers` connect to `ports`; without peers every address may connect."""
    rule: Object = {"ports": [{"protocol": "TCP", "port": port} for port in ports]}
    if peers:
        rule["from"] = list(peers)
    return rule
