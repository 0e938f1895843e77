"""Clients outside connect to every broker by TLS: with certificates of their own, and by a certificate that a person
brings and changes. A client without a certificate stays outside."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from ottla.operator.certificates import CLIENT, SERVER, authority, encoded, issued
from tests.e2e.installed import Operator
from tests.e2e.kubectl import wait
from tests.e2e.numbered import settings_of
from tests.e2e.scene import Scene, cluster, namespace
from tests.e2e.test_secure_rollout import OUTSIDE, PLAIN

OWN = {"name": "own", "port": 9096, "type": "NodePort", "tls": True, "certificate": {"secretName": "mine"}}


def test_tls_listener(operator: Operator) -> None:
    with namespace(operator, "tls-listener") as scene:
        elsewhere = authority("elsewhere", datetime.now(UTC))
        bring(scene, elsewhere, ["kafka.example.com"])
        scene.kube.apply(cluster(listeners=[PLAIN, OUTSIDE, OWN]))
        scene.settled()
        settings = settings_of(scene, "outside", "app")
        # librdkafka compares the addresses of brokers with the names in their certificates.
        brokers = AdminClient({**settings}).list_topics(timeout=60).brokers
        assert len(brokers) == 3
        assert len({(broker.host, broker.port) for broker in brokers.values()}) == 3
        with pytest.raises(KafkaException):
            AdminClient({**settings_of(scene, "outside")}).list_topics(timeout=10)

        own = settings_of(scene, "own") | {"ssl.ca.pem": elsewhere["tls.crt"].decode()}
        servers = own["bootstrap.servers"].split(",")
        before = scene.births()
        shown = {server: certificate_at(server) for server in servers}
        bring(scene, elsewhere, [server.rpartition(":")[0] for server in servers])
        wait(
            "every broker shows the new certificate",
            lambda: all(certificate_at(server) != old for server, old in shown.items()),
            240,
            2.0,
        )
        assert len(AdminClient({**own}).list_topics(timeout=60).brokers) == 3
        assert scene.births() == before, "a broker was restarted"


def bring(scene: Scene, by: dict[str, bytes], hosts: list[str]) -> None:
    """Makes or replaces the Secret with a certificate for these hosts."""
    pair = issued(by, "kafka", datetime.now(UTC), hosts=hosts, purposes=(CLIENT, SERVER), days=30)
    data = encoded({"tls.crt": pair.certificate, "tls.key": pair.key})
    scene.kube.apply(
        {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": {"name": "mine"}, "data": data}
    )


def certificate_at(server: str) -> str:
    """The certificate (PEM) that a broker shows at an address, host:port."""
    host, _, port = server.rpartition(":")
    return ssl.get_server_certificate((host, int(port)), timeout=10)
