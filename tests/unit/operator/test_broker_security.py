"""What the spec says about security, and the brokers' files, mounts and names in certificates that follow from it."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ottla.net.names import parse_bootstrap
from ottla.operator.objects import Object
from ottla.operator.plan import broker_pods, broker_tls, network, services
from ottla.operator.plan.broker_file import server_properties
from ottla.operator.spec.cluster import Cluster, Defaults, NetworkRules, parse_cluster
from ottla.operator.spec.security import Authentication, Links
from ottla.operator.spec.spec_error import SpecError
from ottla.security.listener_logins import logins_of
from ottla.security.listener_tls import listener_settings
from ottla.settings.config import BrokerConfig

LISTENERS = [
    {"name": "plain", "port": 9092, "type": "Internal"},
    {"name": "tls", "port": 9093, "type": "Internal", "tls": True},
    {"name": "mtls", "port": 9094, "type": "NodePort", "tls": True, "authentication": {"type": "tls"}},
    {"name": "users", "port": 9095, "type": "Internal", "tls": True, "authentication": {"type": "scram-sha-512"}},
    {"name": "trusted", "port": 9096, "type": "Internal", "authentication": {"type": "scram-sha-512"}},
]


def cluster(links: Links = Links.ENCRYPTED, **spec: Any) -> Cluster:
    meta = {"namespace": "shop", "name": "k", "uid": "u1", "generation": 1}
    spec = {"brokers": {"replicas": 3, "storage": {"size": "1Gi"}}, "listeners": LISTENERS, **spec}
    return replace(parse_cluster({"metadata": meta, "spec": spec}, Defaults("ottla:1", "etcd:1")), links=links)


def config(of: Cluster) -> BrokerConfig:
    (process,) = broker_pods.broker_set(of, of.pools[0], 3)["spec"]["template"]["spec"]["containers"]
    given = {each["name"]: each.get("value", "") for each in process["env"]}
    told = given["OTTLA_ADVERTISED_LISTENERS"].replace("$(POD_NAME)", "k-broker-0")
    environment = {"OTTLA_NODE_ID": "0", "OTTLA_LOG_DIRS": "/data/0/log", "OTTLA_ADVERTISED_LISTENERS": told}
    return BrokerConfig.from_sources(server_properties(of), {}, environment)


def test_each_listener_has_the_protocol_that_its_fields_say() -> None:
    found = config(cluster())
    assert found.warnings == ()
    assert {each.listener: each.protocol for each in found.listeners.opened} == {
        "REPLICATION-TLS": "SSL",
        "PLAIN": "PLAINTEXT",
        "TLS": "SSL",
        "MTLS": "SSL",
        "USERS": "SASL_SSL",
        "TRUSTED": "SASL_PLAINTEXT",
    }
    logins = logins_of(found)
    assert {name: list(each.session_ms_max) for name, each in logins.items()} == {
        "USERS": ["SCRAM-SHA-512"],
        "TRUSTED": ["SCRAM-SHA-512"],
    }


def test_only_listeners_with_certificates_of_clients_trust_the_clients_authority() -> None:
    found = config(cluster())
    tls = {name: listener_settings(found, name, serves=True) for name in ("REPLICATION-TLS", "TLS", "MTLS", "USERS")}
    assert {name: each.client_auth for name, each in tls.items()} == {
        "REPLICATION-TLS": "required",
        "TLS": "none",
        "MTLS": "required",
        "USERS": "none",
    }
    assert tls["MTLS"].tls.truststore_location == "/etc/ottla-tls/clients-ca.crt"
    assert tls["REPLICATION-TLS"].tls.truststore_location == "/etc/ottla-tls/cluster-ca.crt"
    assert tls["TLS"].tls.truststore_location is None
    assert [each.tls.keystore_location for each in tls.values()] == [
        f"/etc/ottla-tls/{name}.pem" for name in ("replication-tls", "tls", "mtls", "users")
    ]


@pytest.mark.parametrize(
    ("links", "opened", "by"),
    [
        (Links.PLAIN, ["REPLICATION"], "REPLICATION"),
        (Links.OPENED, ["REPLICATION", "REPLICATION-TLS"], "REPLICATION"),
        (Links.SWITCHED, ["REPLICATION", "REPLICATION-TLS"], "REPLICATION-TLS"),
        (Links.ENCRYPTED, ["REPLICATION-TLS"], "REPLICATION-TLS"),
    ],
)
def test_the_stage_says_which_listeners_between_brokers_are_open(links: Links, opened: list[str], by: str) -> None:
    of = cluster(links, listeners=LISTENERS[:1])
    found = config(of)
    assert [each.listener for each in found.listeners.advertised] == [*opened, "PLAIN"]
    assert found.listeners.inter_broker == by
    template = broker_pods.broker_set(of, of.pools[0], 3)["spec"]["template"]
    assert ("tls" in [each["name"] for each in template["spec"]["volumes"]]) is (links is not Links.PLAIN)
    ports = {each["name"] for each in services.brokers(of)["spec"]["ports"]}
    assert ports == {*(name.lower() for name in opened), "http", "plain"}
    (policy,) = network.policies(replace(of, metadata=_external()), NetworkRules())
    reached = {each["port"] for each in policy["spec"]["ingress"][0]["ports"]}
    assert {9091, 9089} & reached == {9091 if name == "REPLICATION" else 9089 for name in opened}


def _external() -> Any:
    return cluster(metadata={"external": {"endpoints": ["e:2379"]}}).metadata


def test_a_plain_cluster_is_made_as_before() -> None:
    of = cluster(Links.PLAIN, listeners=LISTENERS[:1])
    text = server_properties(of)
    assert "ssl" not in text
    assert "authorizer" not in text
    annotations = broker_pods.broker_set(of, of.pools[0], 3)["spec"]["template"]["metadata"]["annotations"]
    assert annotations.keys() == {"ottla.dev/config-checksum"}


def test_the_authorizer_comes_with_the_last_stage_alone() -> None:
    """Before it, some brokers still connect without a name, and others would refuse them."""
    authorization = {"type": "simple", "superUsers": ["User:CN=admin", "User:ANONYMOUS"]}
    for links in (Links.PLAIN, Links.OPENED, Links.SWITCHED):
        assert not config(cluster(links, authorization=authorization))["authorizer.class.name"]
    found = config(cluster(authorization=authorization))
    assert found["authorizer.class.name"] == "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    assert found["super.users"] == (
        "User:CN=k-brokers,O=ottla.dev;User:CN=k-operator,O=ottla.dev;User:CN=admin;User:ANONYMOUS"
    )


def test_rights_bring_encrypted_links() -> None:
    assert cluster(authorization={"type": "simple"}).internal_tls is True
    assert cluster().internal_tls is None


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"listeners": [{**LISTENERS[0], "authentication": {"type": "tls"}}]}, "needs tls: true"),
        ({"listeners": [{**LISTENERS[0], "certificate": {"secretName": "c"}}]}, "a certificate needs tls: true"),
        ({"authorization": {"type": "simple"}, "internalTls": False}, "it needs internalTls: true"),
        ({"authorization": {"type": "simple", "superUsers": ["admin"]}}, "'admin' isn't a principal"),
        ({"authorization": {"type": "simple"}, "config": {"super.users": "User:a"}}, "the operator sets super.users"),
        (
            {"config": {"listener.name.replication-tls.ssl.client.auth": "none"}},
            "config: the operator sets listener.name.replication-tls.ssl.client.auth itself; take it out",
        ),
        ({"clusterCa": {"validityDays": 30}}, "clusterCa: renewalDays (30) has to be below validityDays (30)"),
    ],
)
def test_what_contradicts_itself_is_refused_with_what_to_change(spec: Object, words: str) -> None:
    with pytest.raises(SpecError) as refused:
        cluster(**spec)
    assert words in str(refused.value)


def test_a_certificate_is_for_every_way_to_a_listener() -> None:
    of = cluster(listeners=[LISTENERS[0], {**LISTENERS[2], "hostTemplate": "b{id}.example.com"}])
    addresses = ["192.0.2.7:31001,[2001:db8::1]:31002", "lb.example.com:9094", ""]
    hosts = broker_tls.hosts_of(of, of.listeners[1], [0, 2], addresses)
    for host in (
        "k-bootstrap.shop.svc",
        "k-bootstrap-mtls.shop.svc.cluster.local",
        "k-bootstrap",
        "*.k-brokers.shop.svc",
        "b0.example.com",
        "b2.example.com",
        "bbootstrap.example.com",
        "192.0.2.7",
        parse_bootstrap("[2001:db8::1]:31002")[0].host,
        "lb.example.com",
    ):
        assert host in hosts
    assert len(hosts) == len(set(hosts))


def test_the_clients_file_says_how_to_connect_and_whom_to_trust() -> None:
    of = cluster(listeners=[LISTENERS[3]])
    trust = b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
    data = services.client_config(of, {}, trust)["data"]
    assert data["client.properties"] == (
        "bootstrap.servers=k-bootstrap.shop.svc:9095\n"
        "security.protocol=SASL_SSL\n"
        "sasl.mechanism=SCRAM-SHA-512\n"
        "ssl.truststore.type=PEM\n"
        "ssl.truststore.certificates=-----BEGIN CERTIFICATE-----\\nMIIB\\n-----END CERTIFICATE-----\n"
    )
    assert data["users.security.protocol"] == "SASL_SSL"
    assert of.internal.authentication is Authentication.SCRAM


def test_a_shell_that_waits_for_keys_says_for_which_and_ends_at_once(tmp_path: Path) -> None:
    of = cluster(listeners=LISTENERS[:1])
    (process,) = broker_pods.broker_set(of, of.pools[0], 3)["spec"]["template"]["spec"]["containers"]
    *shell, script = process["command"]
    with subprocess.Popen([*shell, script.replace("/etc/ottla-tls", str(tmp_path))], stdout=subprocess.PIPE) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline().decode() == f"waiting for the file {tmp_path}/replication-tls.pem\n"
        waiting.terminate()
        assert waiting.wait(5) == 143
        assert waiting.stdout.read() == b""


def test_the_key_files_of_a_broker_are_those_that_its_settings_name() -> None:
    named = broker_tls.named_key_files(server_properties(cluster()))
    assert named == {"replication-tls.pem", "tls.pem", "mtls.pem", "users.pem"} == {*broker_tls.key_files(cluster())}
