"""PodDisruptionBudgets: how many pods may be evicted, for example when a node is drained. Pure.

The brokers' budget allows one pod to be away while every broker says that it may stop, and none otherwise. Kubernetes
itself counts the pods that are away, so of two simultaneous evictions the second is refused. It counts every pod that
the budget's selector finds. A foreign pod with the brokers' labels would allow one more eviction, so a budget selects
only pods that a StatefulSet has numbered. A pod that isn't ready may always be evicted: it serves no clients, and the
drain of its node must not wait for it.

With one broker, and for topics with one replica, an eviction is allowed: otherwise the brokers' nodes could never be
drained.
"""

from __future__ import annotations

from ottla.operator.objects import Object
from ottla.operator.plan import names
from ottla.operator.plan.broker_pods import BROKER, CONTROLLER
from ottla.operator.plan.etcd_pods import ETCD
from ottla.operator.plan.pods import found_by
from ottla.operator.spec.cluster import Cluster


def brokers(cluster: Cluster, *, evictable: bool) -> Object:
    """The brokers' budget. `evictable`: whether one pod may be away."""
    return _budget(cluster, names.broker_service(cluster), BROKER, int(evictable))


def etcd(cluster: Cluster) -> Object:
    """etcd's budget: one member at a time may be away, because brokers keep serving while a single member is away."""
    return _budget(cluster, names.etcd_set(cluster), ETCD, 1)


def controllers(cluster: Cluster) -> Object:
    """The budget of controllers with pods of their own: one at a time may be away."""
    return _budget(cluster, names.controller_set(cluster), CONTROLLER, 1)


def _budget(cluster: Cluster, name: str, component: str, unavailable: int) -> Object:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": names.metadata(cluster, name, component),
        "spec": {
            "maxUnavailable": unavailable,
            "selector": {
                "matchLabels": found_by(cluster, component),
                "matchExpressions": [{"key": names.POD_NAME, "operator": "Exists"}],
            },
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
