"""The connections that the NetworkPolicies of a Cluster and of the operator's chart allow, by cyclonus' evaluator.

Each pod has the labels that the operator or a chart gives it. Beside these pods there are others that no policy may
admit: an application with the Cluster's labels, another Cluster, a client from outside. A table names the pods that may
connect, port by port. Each planted mistake in a policy has to change the result; otherwise the table would prove
nothing.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

import pytest
import yaml

from ottla.operator.objects import Object
from ottla.operator.plan import broker_pods, etcd_pods, network
from ottla.operator.plan.snapshots import snapshot_objects
from ottla.operator.spec.cluster import Cluster, Defaults, Etcd, parse_cluster
from tests.peers.helm import Helm
from tests.peers.tools import ROOT, go_program

CLIENTS = [{"podSelector": {"matchLabels": {"app": "shop"}}}]
PROMETHEUS = {"app.kubernetes.io/name": "prometheus"}
MONITORING = [
    {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
        "podSelector": {"matchLabels": PROMETHEUS},
    }
]
SPEC: Object = {
    "brokers": {"replicas": 3, "storage": {"size": "1Gi"}},
    "controllers": {"replicas": 2},
    "metadata": {"etcd": {"members": 3, "snapshots": {"schedule": "0 * * * *"}}},
    "listeners": [
        {"name": "plain", "port": 9092, "type": "Internal"},
        {"name": "outside", "port": 9094, "type": "NodePort"},
    ],
    "networkPolicy": {"enabled": True, "clients": CLIENTS, "monitoring": MONITORING},
}
PORTS = {"broker": (9091, 9092, 9094, 9100), "controller": (9100,), "etcd": (2379, 2380, 2381)}

Admitted = dict[tuple[str, int], set[str]]
LISTENERS = {"broker", "controller", "operator", "shop", "chart's test"}
WANTED: Admitted = {
    ("broker", 9091): {"broker", "controller", "operator"},
    ("broker", 9092): LISTENERS,
    ("broker", 9094): LISTENERS,
    ("broker", 9100): {"broker", "controller", "operator", "prometheus"},
    ("controller", 9100): {"operator", "prometheus"},
    ("etcd", 2379): {"broker", "controller", "etcd", "snapshots", "operator"},
    ("etcd", 2380): {"etcd"},
    ("etcd", 2381): {"prometheus"},
}


def parsed(name: str = "orders", **changes: Any) -> Cluster:
    meta = {"namespace": "data", "name": name, "uid": "u1", "generation": 1}
    return parse_cluster({"metadata": meta, "spec": {**SPEC, **changes}}, Defaults("ottla:1", "etcd:1"))


def policies(cluster: Cluster) -> list[Object]:
    assert cluster.network_rules is not None
    return network.policies(cluster, cluster.network_rules)


def pod(namespace: str, labels: dict[str, str]) -> Object:
    names = {"kubernetes.io/metadata.name": namespace}
    return {"namespace": namespace, "namespaceLabels": names, "labels": labels, "ip": "10.0.0.1"}


def of_cluster(cluster: Cluster) -> dict[str, Object]:
    """A Cluster's pods by their roles."""
    assert isinstance(cluster.metadata, Etcd)
    templates = {
        "broker": broker_pods.broker_set(cluster, cluster.pools[0], 3)["spec"]["template"],
        "controller": broker_pods.controller_set(cluster)["spec"]["template"],
        "etcd": etcd_pods.member_set(cluster, cluster.metadata, 3)["spec"]["template"],
    }
    (job,) = [item for item in snapshot_objects(cluster, cluster.metadata) if item["kind"] == "CronJob"]
    templates["snapshots"] = job["spec"]["jobTemplate"]["spec"]["template"]
    return {kind: pod(cluster.namespace, each["metadata"]["labels"]) for kind, each in templates.items()}


@pytest.fixture(scope="module")
def charts(tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    """The objects of both charts; the operator's chart has its NetworkPolicy switched on."""
    helm = Helm(4, tmp_path_factory.mktemp("helm"))
    made = helm.template("ottla-operator", "--set", "networkPolicy.create=true", namespace="ottla-system")
    made += "\n---\n" + helm.template("ottla-cluster", release="orders")
    return [item for item in yaml.safe_load_all(made) if item]


@pytest.fixture(scope="module")
def world(charts: list[Object]) -> dict[str, Object]:
    """All pods and addresses that try to connect, by name."""
    (operator,) = [item for item in charts if item["kind"] == "Deployment"]
    (test,) = [item for item in charts if item["kind"] == "Pod" and item["metadata"]["name"] == "orders-test"]
    other = of_cluster(parsed("payments"))
    return {
        **of_cluster(parsed()),
        "operator": pod("ottla-system", operator["spec"]["template"]["metadata"]["labels"]),
        "chart's test": pod("data", test["metadata"]["labels"]),
        "shop": pod("data", {"app": "shop"}),
        "shop elsewhere": pod("web", {"app": "shop"}),
        "labelled as the Cluster": pod("data", {"app.kubernetes.io/instance": "orders"}),
        "broker's labels elsewhere": pod("web", of_cluster(parsed())["broker"]["labels"]),
        "another Cluster's broker": other["broker"],
        "another Cluster's etcd": other["etcd"],
        "prometheus": pod("monitoring", PROMETHEUS),
        "prometheus elsewhere": pod("web", PROMETHEUS),
        "anybody in monitoring": pod("monitoring", {"app": "x"}),
        "outside": {"ip": "203.0.113.7"},
    }


def judged(rules: list[Object], connections: Iterable[Object]) -> list[bool]:
    program = go_program(ROOT / "tests/peers/network_policies")
    asked = json.dumps({"policies": rules, "connections": list(connections)})
    done = subprocess.run([program], input=asked, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    answers: list[bool] = json.loads(done.stdout)
    return answers


def admitted(rules: list[Object], world: dict[str, Object]) -> Admitted:
    """The names in `world` that may connect to each port of the Cluster's pods."""
    tried = [(source, to, port) for to, ports in PORTS.items() for port in ports for source in world]
    answers = judged(rules, [{"from": world[source], "to": world[to], "port": port} for source, to, port in tried])
    found: Admitted = {(to, port): set() for to, ports in PORTS.items() for port in ports}
    for (source, to, port), allowed in zip(tried, answers, strict=True):
        if allowed:
            found[to, port].add(source)
    return found


def test_whoever_has_business_gets_there_and_nobody_else(world: dict[str, Object]) -> None:
    assert admitted(policies(parsed()), world) == WANTED


def test_without_clients_listeners_are_for_everybody_and_without_monitoring_nobody_reads_metrics(
    world: dict[str, Object],
) -> None:
    wanted = {at: who - {"prometheus"} for at, who in WANTED.items()}
    wanted |= {("broker", 9092): set(world), ("broker", 9094): set(world)}
    assert admitted(policies(parsed(networkPolicy={"enabled": True})), world) == wanted


def test_a_listener_says_itself_who_may_reach_it(world: dict[str, Object]) -> None:
    listeners = deepcopy(SPEC["listeners"])
    listeners[1]["networkPolicyPeers"] = [{"ipBlock": {"cidr": "203.0.113.0/24", "except": ["203.0.113.128/25"]}}]
    wanted = {**WANTED, ("broker", 9094): LISTENERS - {"shop"} | {"outside"}}
    far = {**world, "far away": {"ip": "203.0.113.200"}}
    assert admitted(policies(parsed(listeners=listeners)), far) == wanted


def test_without_policies_everybody_gets_everywhere(world: dict[str, Object]) -> None:
    assert parsed(networkPolicy={}).network_rules is None
    assert all(who == set(world) for who in admitted([], world).values())


def test_a_policy_is_of_its_own_namespace_and_cluster(world: dict[str, Object]) -> None:
    """A Cluster's policies select no pods of another Cluster, and no pods with the same labels in another namespace."""
    tried = [{"from": world["outside"], "to": world[to], "port": 9091} for to in ("another Cluster's broker", "shop")]
    tried.append({"from": world["outside"], "to": world["broker's labels elsewhere"], "port": 9091})
    assert judged(policies(parsed()), tried) == [True, True, True]


def test_nobody_reaches_the_operator_but_its_page(charts: list[Object], world: dict[str, Object]) -> None:
    rules = [item for item in charts if item["kind"] == "NetworkPolicy"]
    sources = ("prometheus", "shop", "outside")
    page = [{"from": world[one], "to": world["operator"], "port": 9100, "name": "http"} for one in sources]
    rest = [{"from": world[one], "to": world["operator"], "port": 8443} for one in sources]
    assert judged(rules, [*page, *rest]) == [True] * 3 + [False] * 3


# ---- mistakes, each in a copy of the operator's policies


def peers_in(rules: list[Object]) -> list[list[Object]]:
    return [rule["from"] for policy in rules for rule in policy["spec"]["ingress"] if "from" in rule]


def no_policy_for_etcd(rules: list[Object]) -> None:
    rules.pop()


def anybody_labelled_as_the_cluster(rules: list[Object]) -> None:
    for peers in peers_in(rules):
        peers.append({"podSelector": {"matchLabels": {"app.kubernetes.io/instance": "orders"}}})


def two_peers_of_one(rules: list[Object]) -> None:
    """One dash too many in the YAML splits a peer (these pods of that namespace) into two: any pod of that namespace,
    and any pod with these labels in the policy's own namespace."""
    for peers in peers_in(rules):
        split = [{name: part} for peer in peers if len(peer) == 2 for name, part in peer.items()]
        peers[:] = [peer for peer in peers if len(peer) == 1] + split


def a_rule_without_ports(rules: list[Object]) -> None:
    del rules[0]["spec"]["ingress"][1]["ports"]


def a_rule_without_peers(rules: list[Object]) -> None:
    del rules[-1]["spec"]["ingress"][1]["from"]


def nobody_is_selected(rules: list[Object]) -> None:
    rules[0]["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] = "brokers"


def the_way_out_is_closed_instead(rules: list[Object]) -> None:
    for policy in rules:
        policy["spec"] |= {"policyTypes": ["Egress"], "egress": []}
        del policy["spec"]["ingress"]


def the_peers_port_is_the_clients(rules: list[Object]) -> None:
    rules[-1]["spec"]["ingress"][1]["ports"][0]["port"] = 2379


def the_operator_is_forgotten(rules: list[Object]) -> None:
    for peers in peers_in(rules):
        peers[:] = [peer for peer in peers if peer != network.OPERATOR]


def udp(rules: list[Object]) -> None:
    rules[0]["spec"]["ingress"][0]["ports"][0]["protocol"] = "UDP"


MISTAKES = (
    no_policy_for_etcd,
    anybody_labelled_as_the_cluster,
    two_peers_of_one,
    a_rule_without_ports,
    a_rule_without_peers,
    nobody_is_selected,
    the_way_out_is_closed_instead,
    the_peers_port_is_the_clients,
    the_operator_is_forgotten,
    udp,
)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_a_mistake_in_a_policy_is_seen(mistake: Callable[[list[Object]], None], world: dict[str, Object]) -> None:
    rules = deepcopy(policies(parsed()))
    mistake(rules)
    assert admitted(rules, world) != WANTED
