"""The API server's own code refuses mistakes in Clusters by the CRD's rules, and accepts all objects that the operator
makes."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from ottla.operator.plan import broker_pods, disruption, etcd_pods, external, names, network, services
from ottla.operator.plan.snapshots import snapshot_objects
from ottla.operator.spec.broker_config import is_of_the_cluster, is_reserved
from ottla.operator.spec.cluster import Defaults, Etcd, parse_cluster
from ottla.settings.catalogue import BROKER
from tests.peers.helm import objections
from tests.unit.operator.test_cluster_objects import EVERYTHING

BROKERS = {"replicas": 3, "storage": {"size": "1Gi"}}
NAMES = [name for name in BROKER if not is_reserved(name)]
INSIDE = {"name": "plain", "port": 9092, "type": "Internal"}
SHARED = {"name": "lb", "port": 9094, "type": "LoadBalancer", "brokerPorts": {"first": 9200}}
FITTING = {name: BROKER[name].default or "1" for name in NAMES}

# A fresh machine first builds the program that validates.
pytestmark = pytest.mark.timeout(2400)


def _resource(spec: dict[str, Any], name: str = "k") -> dict[str, Any]:
    return {
        "apiVersion": "ottla.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"brokers": BROKERS, **spec},
    }


def _objections(spec: dict[str, Any], name: str = "k") -> list[str]:
    return objections(json.dumps(_resource(spec, name)))


@pytest.mark.parametrize(
    "spec",
    [
        {},
        EVERYTHING,
        {"metadata": {"external": {"endpoints": ["etcd:2379"], "tlsSecret": "t"}, "prefix": "/ottla/x/"}},
        {"config": {"num.partitions": 3, "log.preallocate": "false", "listener.name.plain.max.connections": 9}},
        {"maintenanceWindows": [{"cron": "0 2 * * 6", "durationMinutes": 240}]},
        {"maintenanceWindows": [{"cron": "*/5,59 1-5/2 1,15  jan-mar Mon-7", "durationMinutes": 1}]},
        {"configOverrides": [{"broker": 7, "config": {"log.retention.ms": 3, "socket.listen.backlog.size": "64"}}]},
        {"scaling": {"rebalance": "Balance", "throttleBytesPerSecond": 1048576}},
        {"rolling": {"maxUnavailable": 1}},
        {"brokers": {**BROKERS, "rackKey": "zone"}, "rolling": {"maxUnavailable": "25%"}},
        {
            "brokers": {
                "storage": {"size": "1Gi"},
                "pools": [{"name": "a", "firstId": 0, "replicas": 1, "rack": "x"}],
            },
            "rolling": {"maxUnavailable": 3},
        },
        {"listeners": [INSIDE, SHARED]},
        {"brokers": {**BROKERS, "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "0.5"}}}},
        {"brokers": {**BROKERS, "resources": {"requests": {"a.example/card": 1}, "limits": {"a.example/card": "1"}}}},
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
        (
            {"brokers": {"storage": {"size": "1Gi"}, "pools": [{"name": "a", "firstId": 0, "replicas": 0}]}},
            "at least one pool needs replicas",
        ),
        ({"brokers": {**BROKERS, "replicas": 0}}, "replicas"),
        ({"brokers": {"replicas": 3, "storage": {"size": "much"}}}, "a quantity like 100Gi"),
        ({"brokers": {"replicas": 3, "storage": {"size": "1Gi", "volumes": [{"size": "1Gi"}]}}}, "either size"),
        (
            {
                "brokers": {
                    "storage": {"size": "1Gi"},
                    "pools": [{"name": "a", "firstId": 1, "replicas": 3}, {"name": "b", "firstId": 3, "replicas": 1}],
                }
            },
            "two pools have an id in common",
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
            "two pools have an id in common",
        ),
        (
            {"brokers": {"storage": {"size": "1Gi"}, "pools": [{"name": "etcd", "firstId": 0, "replicas": 1}]}},
            "this name is reserved",
        ),
        ({"brokers": {**BROKERS, "resources": {"requests": {"cpux": 1}}}}, "a device's name with its domain"),
        ({"brokers": {**BROKERS, "resources": {"limits": {"mem": "1Gi"}}}}, "a device's name with its domain"),
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
        (
            {"listeners": [INSIDE, {**SHARED, "type": "NodePort"}]},
            "brokerPorts belong to a listener of type LoadBalancer",
        ),
        ({"listeners": [INSIDE, {**SHARED, "brokerPorts": {"first": 9094}}]}, "has to be above the listener's port"),
        ({"listeners": [INSIDE, {**SHARED, "brokerPorts": {}}]}, "first"),
        ({"listeners": [INSIDE, {**SHARED, "externalTrafficPolicy": "Local"}]}, "has to be Cluster"),
        ({"listeners": [{"name": "a", "port": 9089, "type": "Internal"}]}, "brokers use 9089 and 9091 among"),
        ({"listeners": [{**INSIDE, "name": "replication-tls"}]}, "this name is reserved"),
        ({"listeners": [{**INSIDE, "authentication": {"type": "tls"}}]}, "needs tls: true"),
        ({"listeners": [{**INSIDE, "authentication": {"type": "plain"}}]}, "tls"),
        ({"listeners": [{**INSIDE, "certificate": {"secretName": "a"}}]}, "a certificate needs tls: true"),
        ({"authorization": {"type": "simple"}, "internalTls": False}, "authorization needs internalTls: true"),
        ({"authorization": {"type": "simple", "superUsers": ["admin"]}}, "superUsers"),
        ({"clusterCa": {"validityDays": 30}}, "renewalDays has to be below validityDays"),
        ({"clientsCa": {"renewalDays": 365}}, "renewalDays has to be below validityDays"),
        ({"metadata": {"etcd": {}, "external": {"endpoints": ["e:1"]}}}, "either etcd or external"),
        ({"metadata": {"etcd": {"members": 2}}}, "members"),
        ({"metadata": {"prefix": "ottla"}}, "prefix"),
        ({"topics": {"allowedNamespaces": "Selector"}}, "namespaceSelector has an effect only if"),
        ({"bokers": {}}, "bokers"),
        ({"controllers": {"replicas": 1}}, "no other one could replace a single controller"),
        (
            {"brokers": {**BROKERS, "template": {"annotations": {"ottla.dev/restart": "now"}}}},
            "annotate the Cluster with it",
        ),
        ({"controllers": {"template": {"annotations": {"ottla.dev/restart": ""}}}}, "annotate the Cluster with it"),
        ({"brokers": {**BROKERS, "resources": {"requests": {"cpu": "lots"}}}}, "should match"),
        ({"metadata": {"etcd": {"resources": {"limits": {"memory": "-1Gi"}}}}}, "should match"),
        (
            {"brokers": {**BROKERS, "template": {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}}},
            "Duplicate value",
        ),
        (
            {"brokers": {**BROKERS, "template": {"env": [{"name": "OTTLA_MIN_INSYNC_REPLICAS", "value": "9"}]}}},
            "give settings in spec.config",
        ),
        (
            {"brokers": {**BROKERS, "template": {"env": [{"name": "HOME", "value": "/"}]}}},
            "the operator gives POD_NAME",
        ),
        (
            {"config": {"min.insync.replicas": 3, "default.replication.factor": "2"}},
            "min.insync.replicas is greater than default.replication.factor",
        ),
        ({"config": {"min.insync.replicas": 4}}, "min.insync.replicas is greater than default.replication.factor"),
        (
            {"brokers": {**BROKERS, "replicas": 1}, "config": {"min.insync.replicas": "2"}},
            "min.insync.replicas is greater than default.replication.factor",
        ),
        (
            {
                "brokers": {
                    "storage": {"size": "1Gi"},
                    "pools": [{"name": "a", "firstId": 0, "replicas": 1}, {"name": "b", "firstId": 100, "replicas": 0}],
                },
                "config": {"min.insync.replicas": 2},
            },
            "min.insync.replicas is greater than default.replication.factor",
        ),
        ({"config": {"num.partitions": 3, "num.partitons": 3}}, "config: brokers have no setting num.partitons;"),
        ({"config": {"node.id": 3}}, "config: the operator sets node.id itself; take it out"),
        ({"config": {"ottla.metadata.store": "memory"}}, "config: the operator sets ottla.metadata.store itself"),
        ({"config": {"ottla.metadata.new": "x"}}, "config: the operator sets ottla.metadata.new itself"),
        ({"config": {"auto.create.topics.enable": False}}, "integer,string"),
        ({"config": {"num.partitions": "many"}}, "config: num.partitions must be a whole number, at least 1"),
        (
            {"configOverrides": [{"broker": 1, "config": {"log.rol.ms": 3}}]},
            "brokers have no setting log.rol.ms;",
        ),
        ({"configOverrides": [{"broker": 1, "config": {"node.id": 3}}]}, "the operator sets node.id itself"),
        (
            {"configOverrides": [{"broker": 1, "config": {"log.retention.ms": "many"}}]},
            "config: log.retention.ms must be a whole number",
        ),
        (
            {
                "configOverrides": [
                    {"broker": 1, "config": {"log.roll.ms": 9}},
                    {"broker": 1, "config": {"log.roll.ms": 9}},
                ]
            },
            "Duplicate value",
        ),
        ({"configOverrides": [{"broker": "0-2", "config": {"log.roll.ms": 9}}]}, "must be of type integer"),
        ({"configOverrides": [{"broker": -1, "config": {"log.roll.ms": 9}}]}, "greater than or equal to 0"),
        ({"configOverrides": [{"broker": 1, "config": {}}]}, "at least 1 propert"),
        ({"configOverrides": [{"broker": 1}]}, "config"),
        ({"rolling": {"maxUnavailable": 2}}, "only brokers of one rack are restarted at once"),
        (
            {
                "brokers": {"storage": {"size": "1Gi"}, "pools": [{"name": "a", "firstId": 0, "replicas": 1}]},
                "rolling": {"maxUnavailable": "50%"},
            },
            "only brokers of one rack are restarted at once",
        ),
        ({"brokers": {**BROKERS, "rack": "x"}, "rolling": {"maxUnavailable": 0}}, "greater than or equal to 1"),
        ({"brokers": {**BROKERS, "rack": "x"}, "rolling": {"maxUnavailable": "0%"}}, "should match"),
        ({"brokers": {**BROKERS, "rack": "x"}, "rolling": {"maxUnavailable": "2"}}, "should match"),
        ({"maintenanceWindows": [{"cron": "0 2 * *", "durationMinutes": 5}]}, "should match"),
        ({"maintenanceWindows": [{"cron": "60 2 * * *", "durationMinutes": 5}]}, "field 1 is no minute (0-59)"),
        ({"maintenanceWindows": [{"cron": "0 24 * * *", "durationMinutes": 5}]}, "field 2 is no hour (0-23)"),
        ({"maintenanceWindows": [{"cron": "0 2 0 * *", "durationMinutes": 5}]}, "field 3 is no day of month (1-31)"),
        ({"maintenanceWindows": [{"cron": "0 2 * 1-13 *", "durationMinutes": 5}]}, "field 4 is no month (1-12)"),
        ({"metadata": {"etcd": {"snapshots": {"schedule": "0 2 * * 8"}}}}, "field 5 is no day of week (0-7)"),
    ],
)
def test_refused(spec: dict[str, Any], says: str) -> None:
    assert says in "\n".join(_objections(spec))


@pytest.mark.parametrize("first", range(0, len(NAMES), 128))
def test_every_setting_that_is_not_the_operators_is_known(first: int) -> None:
    assert _objections({"config": dict(list(FITTING.items())[first : first + 128])}) == []


def test_as_many_settings_as_can_be_are_judged_in_time() -> None:
    """The API server counts the cost of the rules, and gives up if the cost is too high."""
    assert _objections({"config": dict(list(FITTING.items())[:256])}) == []


def test_as_many_overrides_as_can_be_are_judged_in_time() -> None:
    names = [name for name in NAMES if not is_of_the_cluster(name)]
    config = {name: FITTING[name] for name in names[:64]}
    assert _objections({"configOverrides": [{"broker": id, "config": config} for id in range(100)]}) == []


def test_every_setting_that_brokers_can_not_differ_in_is_refused_of_one() -> None:
    """The API server refuses the same settings as the operator. Each is in a Cluster of its own, because a refusal
    names one setting."""
    overrides = {name: [{"broker": 1, "config": {name: FITTING[name]}}] for name in NAMES}
    said = objections("\n---\n".join(json.dumps(_resource({"configOverrides": each})) for each in overrides.values()))
    told = "\n".join(said)
    refused = {name for name in NAMES if f"config: brokers can't differ in {name};" in told}
    assert refused == {name for name in NAMES if is_of_the_cluster(name)}
    assert len(said) == len(refused)


def test_every_setting_that_is_the_operators_is_refused() -> None:
    """Each setting is in a Cluster of its own, because a refusal names one setting."""
    names = sorted(BROKER.keys() - set(NAMES))
    said = "\n".join(objections(yaml.safe_dump_all(_resource({"config": {name: "1"}}) for name in names)))
    assert not [name for name in names if f"config: the operator sets {name} itself" not in said]
    assert "have no setting" not in said


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
        *external.external_services(cluster, {0: "orders-a-0"}, {}),
        *network.policies(cluster, cluster.network_rules),
        services.bootstrap(cluster),
        services.brokers(cluster),
        services.client_config(cluster, {}, b""),
        names.secret(cluster, names.cluster_ca("orders"), "broker", {"tls.crt": "eA=="}),
        *snapshot_objects(cluster, cluster.metadata),
    ]
    assert objections(yaml.safe_dump_all(made)) == []
