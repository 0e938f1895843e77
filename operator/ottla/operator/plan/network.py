"""NetworkPolicies: who may reach the pods of a cluster. Pure.

Brokers reach each other, controllers watch them, the operator asks them; clients come to the listeners, whoever may.
etcd is for the brokers, the controllers, the operator and the jobs that save it. Where the operator runs isn't known
here, so its ports are open to whoever has its label, in any namespace.
"""

from __future__ import annotations

from ottla.operator.objects import Object
from ottla.operator.plan import names
from ottla.operator.plan.broker_file import ETCD_PORT
from ottla.operator.plan.broker_pods import BROKER
from ottla.operator.plan.etcd_pods import ETCD, METRICS_PORT, PEER_PORT
from ottla.operator.plan.names import COMPONENT, INSTANCE
from ottla.operator.plan.pods import found_by
from ottla.operator.spec.cluster import HTTP_PORT, REPLICATION_PORT, Cluster, Etcd, NetworkRules

OPERATOR: Object = {
    "namespaceSelector": {},
    "podSelector": {"matchLabels": {COMPONENT: "operator", "app.kubernetes.io/part-of": "ottla"}},
}


def policies(cluster: Cluster, rules: NetworkRules) -> list[Object]:
    """One for the brokers, one for etcd where there is one."""
    own: Object = {"podSelector": {"matchLabels": {INSTANCE: cluster.name}}}
    listeners = [listener.port for listener in cluster.listeners]
    made = [
        _policy(
            cluster,
            names.broker_service(cluster),
            BROKER,
            [
                _rule([own, OPERATOR], [REPLICATION_PORT, HTTP_PORT, *listeners]),
                _rule(list(rules.clients), listeners),
                *([_rule(list(rules.monitoring), [HTTP_PORT])] if rules.monitoring else []),
            ],
        )
    ]
    if isinstance(cluster.metadata, Etcd):
        made.append(
            _policy(
                cluster,
                names.etcd_set(cluster),
                ETCD,
                [
                    _rule([own, OPERATOR], [ETCD_PORT, PEER_PORT]),
                    *([_rule(list(rules.monitoring), [METRICS_PORT])] if rules.monitoring else []),
                ],
            )
        )
    return made


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


def _rule(peers: list[Object], ports: list[int]) -> Object:
    """No peers: everybody."""
    rule: Object = {"ports": [{"protocol": "TCP", "port": port} for port in ports]}
    if peers:
        rule["from"] = peers
    return rule
