"""What the definition of Cluster refuses, judged by the API server's own code; and that what we make is accepted."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from ottla.operator.plan import broker_pods, disruption, etcd_pods, external, network, services
from ottla.operator.plan.snapshots import snapshot_objects
from ottla.operator.spec.cluster import Defaults, Etcd, parse_cluster
from tests.peers.helm import objections
from tests.unit.operator.test_cluster_objects import EVERYTHING

BROKERS = {"replicas": 3, "storage": {"size": "1Gi"}}

# A fresh machine builds the judge first.
pytestmark = pytest.mark.timeout(2400)


def _objections(spec: dict[str, Any], name: str = "k") -> list[str]:
    resource = {
        "apiVersion": "ottla.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"brokers": BROKERS, **spec},
    }
    return objections(yaml.safe_dump(resource))


@pytest.mark.parametrize(
    "spec",
    [
        {},
        EVERYTHING,
        {"metadata": {"external": {"endpoints": ["etcd:2379"], "tlsSecret": "t"}, "prefix": "/ottla/x/"}},
        {"config": {"num.partitions": 3, "auto.create.topics.enable": False, "log.retention.ms": "1"}},
        {"maintenanceWindows": [{"cron": "0 2 * * 6", "durationMinutes": 240}]},
        {"scaling": {"rebalance": "Balance", "throttleBytesPerSecond": 1048576}},
        {"topics": {"allowedNamespaces": "Selector", "namespaceSelector": {"matchLabels": {"a": "b"}}}},
    ],
)
def test_accepted(spec: dict[str, Any]) -> None:
    assert _objections(spec) == []


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"brokers": {"storage": {"size": "1Gi"}}}, "either replicas or pools"),
        ({"brokers": {"replicas": 3}}, "storage is missing"),
        ({"brokers": {**BROKERS, "replicas": 0}}, "replicas"),
        ({"brokers": {"replicas": 3, "storage": {"size": "much"}}}, "a quantity like 100Gi"),
        ({"brokers": {"replicas": 3, "storage": {"size": "1Gi", "volumes": [{"size": "1Gi"}]}}}, "either size"),
        (
            {"brokers": {"storage": {"size": "1Gi"}, "pools": [{"name": "a", "firstId": 50, "replicas": 1}]}},
            "a multiple of 100",
        ),
        (
            {
                "brokers": {
                    "storage": {"size": "1Gi"},
                    "pools": [
                        {"name": "a", "firstId": 100, "replicas": 1},
                        {"name": "b", "firstId": 100, "replicas": 1},
                    ],
                }
            },
            "a firstId of its own",
        ),
        (
            {"brokers": {"storage": {"size": "1Gi"}, "pools": [{"name": "etcd", "firstId": 0, "replicas": 1}]}},
            "means something else",
        ),
        ({"listeners": [{"name": "out", "port": 9094, "type": "NodePort"}]}, "one has to be Internal"),
        ({"listeners": [{"name": "a", "port": 9091, "type": "Internal"}]}, "9091"),
        (
            {
                "listeners": [
                    {"name": "a", "port": 9092, "type": "Internal"},
                    {"name": "b", "port": 9092, "type": "Internal"},
                ]
            },
            "a port of its own",
        ),
        ({"metadata": {"etcd": {}, "external": {"endpoints": ["e:1"]}}}, "either etcd or external"),
        ({"metadata": {"etcd": {"members": 2}}}, "members"),
        ({"metadata": {"prefix": "ottla"}}, "prefix"),
        ({"topics": {"allowedNamespaces": "Selector"}}, "namespaceSelector belongs to"),
        ({"bokers": {}}, "bokers"),
    ],
)
def test_refused(spec: dict[str, Any], says: str) -> None:
    assert says in "\n".join(_objections(spec))


def test_a_name_that_is_too_long_is_refused() -> None:
    assert "at most 32 characters" in "\n".join(_objections({}, name="a" * 33))


def test_everything_that_is_made_of_a_cluster_is_valid() -> None:
    meta = {"namespace": "shop", "name": "orders", "uid": "u1", "generation": 1}
    cluster = parse_cluster({"metadata": meta, "spec": EVERYTHING}, Defaults("ottla:1", "etcd:1"))
    assert isinstance(cluster.metadata, Etcd)
    assert cluster.network_rules is not None
    made = [
        *(broker_pods.broker_set(cluster, pool, pool.replicas) for pool in cluster.pools),
        broker_pods.config_map(cluster),
        broker_pods.controller_set(cluster),
        disruption.brokers(cluster, evictable=True),
        disruption.controllers(cluster),
        disruption.etcd(cluster),
        etcd_pods.config_map(cluster, {"state": "new"}),
        etcd_pods.member_set(cluster, cluster.metadata, 3),
        etcd_pods.member_service(cluster),
        *external.external_services(cluster, {0: "orders-a-0"}),
        *network.policies(cluster, cluster.network_rules),
        services.bootstrap(cluster),
        services.brokers(cluster),
        services.client_config(cluster, {}),
        *snapshot_objects(cluster, cluster.metadata),
    ]
    assert objections(yaml.safe_dump_all(made)) == []
