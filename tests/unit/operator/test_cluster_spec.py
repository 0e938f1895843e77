"""The operator's reading of a Cluster resource, and the specs that it refuses."""

from typing import Any

import pytest

from ottla.operator.spec.cluster import Defaults, Etcd, parse_cluster
from ottla.operator.spec.spec_error import SpecError

DEFAULTS = Defaults("ottla:1", "etcd:1")


def _resource(**spec: Any) -> dict[str, Any]:
    spec.setdefault("brokers", {"replicas": 3, "storage": {"size": "10Gi"}})
    return {"metadata": {"namespace": "shop", "name": "orders", "uid": "u", "generation": 4}, "spec": spec}


OVER = {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}  # no pod can have these resources
IN_RACK = {"replicas": 3, "rackKey": "zone", "storage": {"size": "1Gi"}}


def test_little_is_enough() -> None:
    cluster = parse_cluster(_resource(), DEFAULTS)
    assert cluster.broker_ids == {0, 1, 2}
    assert cluster.prefix == "/ottla/shop/orders/"
    assert cluster.image == "ottla:1"
    assert [(listener.name, listener.port) for listener in cluster.listeners] == [("plain", 9092)]
    assert isinstance(cluster.metadata, Etcd)
    assert (cluster.metadata.members, cluster.metadata.volume.size) == (3, "2Gi")
    assert cluster.pools[0].keep_volumes
    assert cluster.rebalance == "New"


def test_pools_take_what_they_do_not_say_from_all() -> None:
    brokers = {
        "storage": {"size": "1Gi"},
        "rack": "y",
        "resources": {"requests": {"cpu": 1}},
        "pools": [
            {"name": "a", "firstId": 0, "replicas": 1, "rack": "x"},
            {
                "name": "b",
                "firstId": 200,
                "replicas": 2,
                "rackKey": "zone",
                "storage": {"volumes": [{"size": "5Gi"}, {"size": "6Gi", "className": "fast"}], "onDelete": "Delete"},
            },
        ],
    }
    first, second = parse_cluster(_resource(brokers=brokers), DEFAULTS).pools
    assert (list(first.ids), first.rack, first.resources) == ([0], "x", {"requests": {"cpu": 1}})
    assert list(second.ids) == [200, 201]
    assert [(volume.size, volume.class_name) for volume in second.volumes] == [("5Gi", None), ("6Gi", "fast")]
    assert not second.keep_volumes
    assert (second.rack, second.rack_key) == (None, "zone")


@pytest.mark.parametrize(
    ("given", "of_all", "limit"),
    [(None, 9, 1), (1, 9, 1), (3, 9, 3), ("25%", 9, 3), ("1%", 9, 1), ("100%", 9, 9), ("34%", 3, 2), ("50%", 1, 1)],
)
def test_how_many_may_be_away_at_once(given: int | str | None, of_all: int, limit: int) -> None:
    rolling = {} if given is None else {"maxUnavailable": given}
    assert parse_cluster(_resource(brokers=IN_RACK, rolling=rolling), DEFAULTS).rolling.limit(of_all) == limit


def test_settings_are_parted_by_whether_a_restart_is_needed() -> None:
    config = {"num.partitions": 6, "log.retention.ms": "1000", "auto.create.topics.enable": False}
    config["log.retention.bytes"] = 1e12
    cluster = parse_cluster(_resource(config=config), DEFAULTS)
    assert cluster.static_config == {"num.partitions": "6", "auto.create.topics.enable": "false"}
    assert cluster.dynamic_config == {"log.retention.bytes": "1000000000000", "log.retention.ms": "1000"}


INSIDE = {"name": "in", "port": 9092, "type": "Internal"}

OVER = {"requests": {"cpu": 2}, "limits": {"cpu": "1500m"}}  # no pod can have these resources


def _at_node_ports(bootstrap: int, first: int) -> dict[str, Any]:
    ports = {"bootstrap": bootstrap, "first": first}
    return {"name": "out", "port": 9094, "type": "NodePort", "nodePorts": ports}


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"config": {"num.partitons": 3}}, "there is no setting num.partitons, maybe num.partitions is meant"),
        ({"config": {"num.partitions": "three"}}, "num.partitions=three"),
        ({"config": {"num.partitions": {"a": 1}}}, "num.partitions needs a text, a number"),
        ({"config": {"node.id": 3}}, "the operator sets node.id itself"),
        ({"config": {"ottla.metadata.store": "embedded"}}, "the operator sets ottla.metadata.store itself"),
        ({"config": {"log.retention.ms": "1\nnode.id=7"}}, "holds a line break"),
        ({"brokers": {"pools": []}}, "say how many"),
        (
            {"brokers": {"storage": {"size": "1"}, "pools": [{"name": "a", "firstId": 0, "replicas": 0}]}},
            "at least one pool needs replicas",
        ),
        ({"brokers": {"replicas": 3}}, "has no storage"),
        (
            {"brokers": {"replicas": 3, "storage": {"volumes": [{"size": "1Gi", "id": 1}, {"size": "1Gi"}]}}},
            "either each volume has an id",
        ),
        ({"brokers": {"replicas": 3, "storage": {"volumes": [{"size": "1Gi", "id": 1}] * 2}}}, "an id of its own"),
        ({"listeners": [{"name": "out", "port": 9094, "type": "NodePort"}]}, "one has to be Internal"),
        (
            {
                "listeners": [
                    {"name": "in", "port": 9092, "type": "Internal"},
                    {"name": "out", "port": 9094, "type": "LoadBalancer", "brokerPorts": {"first": 65534}},
                ]
            },
            "out: broker 2 would have port 65536 of the load balancer",
        ),
        (
            {"listeners": [INSIDE, _at_node_ports(30000, 30100), _at_node_ports(30005, 30102) | {"name": "far"}]},
            "broker 2 of the listener out and broker 0 of the listener far would both have the node port 30102",
        ),
        ({"listeners": [INSIDE, _at_node_ports(30001, 30000)]}, "bootstrap of the listener out and broker 1 of"),
        (
            {"listeners": [INSIDE, _at_node_ports(1, 65534)]},
            "broker 2 of the listener out would have the node port 65536",
        ),
        (
            {
                "brokers": {
                    "storage": {"size": "1Gi"},
                    "pools": [{"name": "a", "firstId": 1, "replicas": 3}, {"name": "b", "firstId": 3, "replicas": 1}],
                }
            },
            "the pools a and b have the id 3 in common",
        ),
        (
            {"brokers": {"replicas": 3, "storage": {"size": "1Gi"}, "resources": OVER}},
            r"brokers\.resources: the request",
        ),
        (
            {
                "brokers": {
                    "storage": {"size": "1Gi"},
                    "pools": [{"name": "a", "firstId": 1, "replicas": 3, "resources": OVER}],
                }
            },
            r"brokers\.pools\[a\]\.resources: the request of cpu, 2, is larger than its limit, 1500m",
        ),
        ({"controllers": {"replicas": 3, "resources": OVER}}, r"controllers\.resources: the request"),
        ({"metadata": {"etcd": {"resources": OVER}}}, r"metadata\.etcd\.resources: the request"),
        ({"metadata": {"etcd": {"snapshots": {"schedule": "61 * * * *"}}}}, "snapshots.schedule: '61' is no minute"),
        ({"metadata": {"etcd": {"snapshots": {"schedule": "0 0 * * 5-7"}}}}, "CronJobs have no day of week 7"),
        ({"metadata": {"etcd": {"snapshots": {"schedule": "0 0 * * */2,7"}}}}, "CronJobs have no day of week 7"),
        ({"rolling": {"maxUnavailable": 2}}, "only brokers of one rack are restarted at once"),
        ({"brokers": IN_RACK, "rolling": {"maxUnavailable": 0}}, "a number of at least 1, or a part like 25%"),
        ({"brokers": IN_RACK, "rolling": {"maxUnavailable": "0%"}}, "a number of at least 1, or a part like 25%"),
        ({"brokers": IN_RACK, "rolling": {"maxUnavailable": "2"}}, "a number of at least 1, or a part like 25%"),
        ({"brokers": IN_RACK, "rolling": {"maxUnavailable": "-5%"}}, "a number of at least 1, or a part like 25%"),
        ({"maintenanceWindows": [{"cron": "0 25 * * *", "durationMinutes": 60}]}, "is no hour"),
    ],
)
def test_refused_in_one_sentence(spec: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says) as refused:
        parse_cluster(_resource(**spec), DEFAULTS)
    assert "\n" not in str(refused.value)


def test_an_operator_without_an_image_says_so() -> None:
    with pytest.raises(SpecError, match="image: say which image"):
        parse_cluster(_resource(), Defaults("", ""))


@pytest.mark.parametrize("taken", [{"name": "replication-tls", "port": 9094}, {"name": "old", "port": 9089}])
def test_a_listener_from_before_encrypted_links_is_refused_only_where_links_are_to_be_encrypted(
    taken: dict[str, Any],
) -> None:
    listeners = [{**taken, "type": "Internal"}]
    assert parse_cluster(_resource(listeners=listeners), DEFAULTS).listeners[0].port == taken["port"]
    for wish in ({"internalTls": True}, {"authorization": {"type": "Simple"}}):
        with pytest.raises(SpecError, match="because their links are to be encrypted"):
            parse_cluster(_resource(listeners=listeners, **wish), DEFAULTS)
