"""The Kubernetes objects of a Cluster: names, security, files, Services."""

from dataclasses import replace
from typing import Any

import pytest

from ottla.operator.objects import Object
from ottla.operator.plan import broker_pods, disruption, etcd_pods, network, services
from ottla.operator.plan.broker_file import server_properties
from ottla.operator.plan.snapshots import snapshot_objects
from ottla.operator.spec.cluster import Cluster, Defaults, Etcd, parse_cluster
from ottla.settings.config import BrokerConfig

EVERYTHING: dict[str, Any] = {
    "imagePullPolicy": "IfNotPresent",
    "imagePullSecrets": [{"name": "registry"}],
    "brokers": {
        "storage": {"size": "1Gi"},
        "template": {
            "labels": {"team": "data", "app.kubernetes.io/component": "mine"},
            "annotations": {"note": "x"},
            "nodeSelector": {"disk": "fast"},
            "tolerations": [{"key": "k", "operator": "Exists"}],
            "priorityClassName": "high",
            "terminationGracePeriodSeconds": 300,
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
            ],
            "env": [{"name": "TZ", "value": "UTC"}],
        },
        "pools": [
            {"name": "a", "firstId": 0, "replicas": 2, "rack": "z1"},
            {
                "name": "b", "firstId": 100, "replicas": 1,
                "storage": {"volumes": [{"size": "1Gi"}, {"size": "2Gi", "className": "fast"}], "onDelete": "Delete"},
            },
        ],
    },
    "rolling": {"maxUnavailable": "25%"},
    "controllers": {"replicas": 2},
    "metadata": {"etcd": {"members": 3, "tls": True, "snapshots": {"schedule": "0 * * * *", "keep": 3}}},
    "listeners": [
        {"name": "plain", "port": 9092, "type": "Internal"},
        {"name": "outside", "port": 9094, "type": "NodePort"},
        {
            "name": "secure", "port": 9095, "type": "Internal", "tls": True,
            "authentication": {"type": "tls"}, "certificate": {"secretName": "own"},
        },
        {"name": "users", "port": 9096, "type": "Internal", "authentication": {"type": "scram-sha-512"}},
    ],
    "internalTls": True,
    "authorization": {"type": "simple", "superUsers": ["User:CN=admin"]},
    "clusterCa": {"validityDays": 100, "renewalDays": 10},
    "clientsCa": {"generateCertificateAuthority": False},
    "config": {"num.partitions": 6, "log.retention.ms": 1000},
    "configOverrides": [
        {"broker": 100, "config": {"log.retention.ms": 2000, "socket.listen.backlog.size": 64}},
        {"broker": 7, "config": {"log.retention.ms": 3000}},
    ],
    "networkPolicy": {"enabled": True, "monitoring": [{"namespaceSelector": {}}]},
}  # fmt: skip


def _cluster(**changes: Any) -> Cluster:
    meta = {"namespace": "shop", "name": "orders", "uid": "u1", "generation": 1}
    return parse_cluster({"metadata": meta, "spec": {**EVERYTHING, **changes}}, Defaults("ottla:1", "etcd:1"))


def _pods(cluster: Cluster) -> dict[str, Object]:
    """Every pod template that a Cluster can have."""
    assert isinstance(cluster.metadata, Etcd)
    sets = [broker_pods.broker_set(cluster, pool, pool.replicas) for pool in cluster.pools]
    sets += [broker_pods.controller_set(cluster), etcd_pods.member_set(cluster, cluster.metadata, 3)]
    templates = {item["metadata"]["name"]: item["spec"]["template"] for item in sets}
    _, job = snapshot_objects(cluster, cluster.metadata)
    return templates | {"snapshots": job["spec"]["jobTemplate"]["spec"]["template"]}


@pytest.mark.parametrize("name", list(_pods(_cluster())))
def test_every_pod_is_restricted_and_writes_only_to_its_volumes(name: str) -> None:
    template = _pods(_cluster())[name]
    spec = template["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] > 0
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    for container in [*spec["containers"], *spec.get("initContainers", ())]:
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["readOnlyRootFilesystem"] is True
        assert container["resources"]["requests"]
        assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"]
        assert container["imagePullPolicy"] == "IfNotPresent"
    allowed = {"name", "configMap", "emptyDir", "persistentVolumeClaim", "secret"}
    assert all(volume.keys() <= allowed for volume in spec["volumes"])
    assert spec["imagePullSecrets"] == [{"name": "registry"}]


@pytest.mark.parametrize("kept", [(True, True), (True, False), (False, True), (False, False)])
def test_etcds_volumes_and_snapshots_stay_as_long_as_any_pools(kept: tuple[bool, bool]) -> None:
    """Before the fix, if the volumes of one of two pools were to be deleted with the Cluster, etcd's volumes were
    deleted as well. Without etcd's volumes, the volumes of the other pool are worthless."""
    cluster = _cluster()
    pools = tuple(replace(pool, keep_volumes=keep) for pool, keep in zip(cluster.pools, kept, strict=True))
    cluster = replace(cluster, pools=pools)
    assert isinstance(cluster.metadata, Etcd)
    members = etcd_pods.member_set(cluster, cluster.metadata, 3)
    policy = members["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"]
    assert policy == ("Retain" if any(kept) else "Delete")
    claim, _ = snapshot_objects(cluster, cluster.metadata)
    assert ("ownerReferences" in claim["metadata"]) is not any(kept)


def test_a_pool_is_a_set_whose_ordinals_are_ids() -> None:
    cluster = _cluster()
    first, second = (broker_pods.broker_set(cluster, pool, pool.replicas) for pool in cluster.pools)
    assert first["metadata"]["name"] == "orders-a"
    assert "ordinals" not in first["spec"]
    assert second["spec"]["ordinals"] == {"start": 100}
    assert first["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert first["spec"]["podManagementPolicy"] == "Parallel"
    assert first["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Retain"
    assert second["spec"]["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Delete"
    for each in (first, second):  # so that a broker that comes back finds its volume
        assert each["spec"]["persistentVolumeClaimRetentionPolicy"]["whenScaled"] == "Retain"
    assert [claim["metadata"]["name"] for claim in second["spec"]["volumeClaimTemplates"]] == ["data-0", "data-1"]
    assert second["spec"]["volumeClaimTemplates"][1]["spec"]["storageClassName"] == "fast"
    selector = first["spec"]["selector"]["matchLabels"]
    assert selector != second["spec"]["selector"]["matchLabels"]
    assert selector.items() <= first["spec"]["template"]["metadata"]["labels"].items()


def test_a_broker_pod_says_who_and_where_it_is() -> None:
    cluster = _cluster()
    template = broker_pods.broker_set(cluster, cluster.pools[1], 1)["spec"]["template"]
    (process,) = template["spec"]["containers"]
    given = {each["name"]: each.get("value") for each in process["env"]}
    assert given["OTTLA_LOG_DIRS"] == "/data/0/log,/data/1/log"
    assert given["OTTLA_ADVERTISED_LISTENERS"] == (
        "REPLICATION-TLS://$(POD_NAME).orders-brokers.shop.svc:9089,"
        "PLAIN://$(POD_NAME).orders-brokers.shop.svc:9092,"
        "SECURE://$(POD_NAME).orders-brokers.shop.svc:9095,"
        "USERS://$(POD_NAME).orders-brokers.shop.svc:9096"
    )
    names = [each["name"] for each in process["env"]]
    assert names.index("POD_NAME") < names.index("OTTLA_ADVERTISED_LISTENERS")
    assert given["TZ"] == "UTC"
    first = broker_pods.broker_set(cluster, cluster.pools[0], 2)["spec"]["template"]["spec"]["containers"][0]
    assert {"name": "OTTLA_BROKER_RACK", "value": "z1"} in first["env"]


def test_the_template_adds_and_never_replaces_what_the_operator_finds_pods_by() -> None:
    cluster = _cluster()
    template = broker_pods.broker_set(cluster, cluster.pools[0], 2)["spec"]["template"]
    assert template["metadata"]["labels"]["team"] == "data"
    assert template["metadata"]["labels"]["app.kubernetes.io/component"] == "broker"
    spec = template["spec"]
    assert spec["terminationGracePeriodSeconds"] == 300
    assert spec["priorityClassName"] == "high"
    assert (
        spec["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"]["app.kubernetes.io/instance"] == "orders"
    )


def test_the_file_is_one_that_a_broker_starts_with_and_holds_no_dynamic_setting() -> None:
    cluster = _cluster()
    text = server_properties(cluster)
    environment = {
        "OTTLA_NODE_ID": "100",
        "OTTLA_LOG_DIRS": "/data/0/log",
        "OTTLA_ADVERTISED_LISTENERS": "REPLICATION-TLS://p.s.n.svc:9089,PLAIN://p.s.n.svc:9092",
    }
    config = BrokerConfig.from_sources(text, {}, environment)
    assert config.warnings == ()
    assert config.node_id == 100
    assert config.get_int("num.partitions") == 6
    assert config.roles == {"broker"}
    assert config.listeners.inter_broker == "REPLICATION-TLS"
    opened = ["REPLICATION-TLS", "PLAIN", "OUTSIDE", "SECURE", "USERS"]
    assert [each.listener for each in config.listeners.opened] == opened
    assert [each.listener for each in config.listeners.advertised] == ["REPLICATION-TLS", "PLAIN"]
    assert (
        config["super.users"] == "User:CN=orders-brokers,O=ottla.dev;User:CN=orders-operator,O=ottla.dev;User:CN=admin"
    )
    assert (cluster.cluster_ca.validity_days, cluster.cluster_ca.renewal_days) == (100, 10)
    assert cluster.clients_ca.generated is False
    assert cluster.listeners[2].certificate_secret == "own"
    assert "log.retention.ms" not in text
    assert server_properties(_cluster(config={"num.partitions": 6})) == text
    assert server_properties(_cluster(config={"num.partitions": 7})) != text


def test_names_of_services_fit_with_the_longest_cluster_and_pool() -> None:
    meta = {"namespace": "shop", "name": "c" * 32, "uid": "u", "generation": 1}
    brokers = {"storage": {"size": "1"}, "pools": [{"name": "p" * 15, "firstId": 9900, "replicas": 1}]}
    cluster = parse_cluster({"metadata": meta, "spec": {"brokers": brokers}}, Defaults("i", "e"))
    stateful_set = broker_pods.broker_set(cluster, cluster.pools[0], 1)["metadata"]["name"]
    assert len(f"{stateful_set}-0123456789") <= 63  # the label with the revision's name has room for it
    assert len(f"{stateful_set}-9900") <= 63
    assert len(services.bootstrap(cluster)["metadata"]["name"]) <= 63


def test_addresses_of_brokers_that_start_are_known_and_clients_begin_at_those_that_serve() -> None:
    cluster = _cluster()
    assert services.brokers(cluster)["spec"]["publishNotReadyAddresses"] is True
    assert "publishNotReadyAddresses" not in services.bootstrap(cluster)["spec"]
    data = services.client_config(cluster, {"outside": "1.2.3.4:31000"}, b"")["data"]
    assert data["bootstrap.servers"] == "orders-bootstrap.shop.svc:9092"
    assert data["outside.bootstrap.servers"] == "1.2.3.4:31000"


def test_everything_goes_with_the_cluster_but_kept_snapshots() -> None:
    cluster = _cluster()
    assert isinstance(cluster.metadata, Etcd)
    assert cluster.network_rules is not None
    made = [
        services.brokers(cluster),
        services.bootstrap(cluster),
        broker_pods.config_map(cluster),
        broker_pods.controller_set(cluster),
        disruption.brokers(cluster, evictable=True),
        disruption.etcd(cluster),
        etcd_pods.member_service(cluster),
        *network.policies(cluster, cluster.network_rules),
        *snapshot_objects(cluster, cluster.metadata),
    ]
    owned = {item["metadata"]["name"]: item["metadata"].get("ownerReferences", [{}])[0].get("uid") for item in made}
    assert set(owned.values()) == {"u1"}  # the only pool's volumes are deleted with the Cluster: no object outlives it
    for item in made:
        assert "blockOwnerDeletion" not in str(item)


@pytest.mark.parametrize("evictable", [True, False])
def test_a_budget_lets_one_go_or_none_and_whoever_is_not_healthy(evictable: bool) -> None:
    spec = disruption.brokers(_cluster(), evictable=evictable)["spec"]
    assert spec["maxUnavailable"] == int(evictable)
    assert spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_a_budget_counts_no_pod_that_somebody_made_with_the_labels() -> None:
    """Before the fix, with such a pod the PodDisruptionBudget allowed two evictions at the same time, and topics fell
    below their minimal ISR.
    """
    cluster = _cluster()
    for budget in (
        disruption.brokers(cluster, evictable=True),
        disruption.controllers(cluster),
        disruption.etcd(cluster),
    ):
        assert budget["spec"]["selector"]["matchExpressions"] == [
            {"key": "statefulset.kubernetes.io/pod-name", "operator": "Exists"}
        ]
