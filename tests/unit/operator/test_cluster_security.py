"""Authorities, certificates, encrypted links and rights of a Cluster, in a Kubernetes in memory."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import pkcs12

from ottla.operator import certificates
from ottla.operator.certificates import CLIENT, SERVER, decoded, encoded
from ottla.operator.cluster import QUIET_S, SOON_S
from ottla.operator.kube import KubeError
from ottla.operator.objects import annotation
from ottla.operator.plan.roll import Report
from ottla.security.principal_mapping import MappingRules
from tests.unit.operator.kubernetes_world import Object
from tests.unit.operator.test_cluster import NODE, OUTSIDE, Scene, running

MTLS = {"name": "mtls", "port": 9094, "type": "Internal", "tls": True, "authentication": {"type": "tls"}}
PLAIN = {"name": "plain", "port": 9092, "type": "Internal"}
RENEW, REPLACE = "ottla.dev/force-renew", "ottla.dev/force-replace"


def secret(scene: Scene, name: str) -> dict[str, bytes]:
    return decoded(scene.world.objects.get(("Secret", "shop", name)))


def links(scene: Scene) -> list[str]:
    return [annotation(scene.world.objects["Pod", "shop", name], "ottla.dev/links") for name in scene.pods()]


def restarts(scene: Scene) -> list[str]:
    return [message.split()[0] for reason, message in scene.world.events if reason == "RollingRestart"]


def asked(scene: Scene, name: str, annotations: dict[str, str]) -> None:
    scene.world.objects["Secret", "shop", name]["metadata"].setdefault("annotations", {}).update(annotations)


def common_name(pem: bytes) -> str:
    return x509.load_pem_x509_certificate(pem).subject.rfc4514_string()


def test_a_new_cluster_has_encrypted_links_and_an_etcd_with_tls() -> None:
    scene = running()
    assert links(scene) == ["ENCRYPTED"] * 3
    assert scene.status["encryptedLinks"] is True
    assert secret(scene, "k-cluster-ca").keys() == {"tls.crt", "tls.key"}
    assert not secret(scene, "k-clients-ca"), "no listener asks for certificates"
    mounted = secret(scene, "k-brokers-tls")
    assert mounted.keys() == {"cluster-ca.crt", "pages-ca.crt", "replication-tls.pem"}
    pair = certificates.pair_in(mounted["replication-tls.pem"])
    assert common_name(pair.certificate) == "CN=k-brokers,O=ottla.dev"
    assert certificates.usable(
        secret(scene, "k-cluster-ca"), pair, scene.now, hosts=certificates.hosts_of(pair.certificate)
    )
    operator = secret(scene, "k-operator-tls")
    assert common_name(operator["tls.crt"]) == "CN=k-operator,O=ottla.dev"
    assert operator["ca.crt"] == mounted["cluster-ca.crt"]
    assert secret(scene, "k-etcd-authority"), "etcd has TLS, too"
    claim = scene.world.objects["StatefulSet", "shop", "k-etcd"]["spec"]["volumeClaimTemplates"][0]
    assert claim["metadata"]["labels"]["ottla.dev/etcd-tls"] == "true"
    scene.world.writes.clear()
    scene.rounds(4)
    assert scene.world.writes == []


def test_the_trust_of_clients_has_no_key_and_opens_with_its_password() -> None:
    scene = running()
    trust = secret(scene, "k-cluster-ca-cert")
    assert trust.keys() == {"ca.crt", "ca.p12", "ca.password"}
    assert trust["ca.crt"] == secret(scene, "k-cluster-ca")["tls.crt"]
    store = pkcs12.load_pkcs12(trust["ca.p12"], trust["ca.password"])
    assert store.key is None
    assert len(store.additional_certs) == 1


def test_a_plain_cluster_stays_plain_without_a_word() -> None:
    scene = running(internalTls=False)
    assert "encryptedLinks" not in scene.status
    assert not secret(scene, "k-cluster-ca")
    scene.world.edit("Cluster", "k", lambda spec: spec.pop("internalTls"))
    scene.rounds(3)
    assert links(scene) == [""] * 3
    assert restarts(scene) == []
    assert not secret(scene, "k-etcd-authority")


def test_links_become_encrypted_in_three_rolls_and_plain_again() -> None:
    scene = running(internalTls=False, controllers={"replicas": 2})
    seen: list[set[str]] = []
    told: set[str] = set()

    def through(rounds: int) -> None:
        for _ in range(rounds):
            scene.reconcile()
            present = {each or "PLAIN" for each in links(scene)}
            if not seen or seen[-1] != present:
                seen.append(present)
            told.update(each["message"] for each in scene.status["conditions"] if each["type"] == "LinksChanging")
            scene.world.settle()

    scene.world.edit("Cluster", "k", lambda spec: spec.update(internalTls=True))
    through(40)
    assert links(scene) == ["ENCRYPTED"] * 5
    assert [each for each in seen if len(each) == 1] == [{"PLAIN"}, {"OPENED"}, {"SWITCHED"}, {"ENCRYPTED"}]
    assert all(len(each) <= 2 for each in seen)
    assert len(restarts(scene)) == 15
    assert len(told) == 3
    assert scene.condition("Ready") == ("True", "BrokersServe")
    assert "LinksChanging" not in [each["type"] for each in scene.status["conditions"]]
    assert scene.status["encryptedLinks"] is True
    assert not secret(scene, "k-etcd-authority"), "etcd's TLS never changes"
    seen.clear()
    scene.world.edit("Cluster", "k", lambda spec: spec.update(internalTls=False))
    through(40)
    assert [each for each in seen if len(each) == 1] == [{"ENCRYPTED"}, {"SWITCHED"}, {"OPENED"}, {"PLAIN"}]
    assert "encryptedLinks" not in scene.status


def test_the_authorizer_comes_after_the_links_and_stays_out_of_a_paused_cluster() -> None:
    scene = running(internalTls=False)
    scene.world.edit(
        "Cluster", "k", lambda spec: (spec.pop("internalTls"), spec.update(authorization={"type": "simple"}))
    )

    def authorized() -> bool:
        return (
            "authorizer.class.name" in scene.world.objects["ConfigMap", "shop", "k-config"]["data"]["server.properties"]
        )

    while links(scene) != ["ENCRYPTED"] * 3:
        assert authorized() is ("ENCRYPTED" in _template(scene))
        scene.rounds(1)
    assert authorized()


def test_pages_are_encrypted_with_the_last_stage_and_the_operator_reads_those_of_all_pods_meanwhile() -> None:
    scene = running(internalTls=False)
    assert scene.pages.encrypted == dict.fromkeys(range(3), False)
    scene.world.edit("Cluster", "k", lambda spec: spec.update(internalTls=True, listeners=[PLAIN, MTLS]))
    seen = set()
    while links(scene) != ["ENCRYPTED"] * 3:
        before = {number: scene.world.objects["Pod", "shop", f"k-broker-{number}"] for number in range(3)}
        served = {
            number: container["readinessProbe"]["httpGet"].get("scheme") == "HTTPS"
            for number, pod in before.items()
            for container in pod["spec"]["containers"]
        }
        scene.reconcile()
        assert scene.pages.encrypted.items() <= served.items()
        seen.add(len({*scene.pages.encrypted.values()}))
        scene.world.settle()
    assert seen == {1, 2}
    scene.rounds(2)
    assert scene.pages.encrypted == dict.fromkeys(range(3), True)
    (container,) = scene.world.objects["Pod", "shop", "k-broker-0"]["spec"]["containers"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["scheme"] == "HTTPS"
    assert {"name": "OTTLA_HTTP_SECURITY_PROTOCOL", "value": "SSL"} in container["env"]
    both = [secret(scene, name)["ca.crt"] for name in ("k-cluster-ca-cert", "k-clients-ca-cert")]
    assert secret(scene, "k-brokers-tls")["pages-ca.crt"] == certificates.joined(both), "Users read the pages, too"


def test_the_operator_reads_the_pages_of_a_paused_cluster() -> None:
    scene = running()
    scene.world.edit("Cluster", "k", lambda spec: spec.update(paused=True))
    scene.restart()
    scene.pages.encrypted = {}
    scene.rounds(1)
    assert scene.pages.encrypted == dict.fromkeys(range(3), True)


def test_the_operators_principal_is_the_same_at_the_pages_whatever_the_mapping_rules() -> None:
    scene = running(config={"ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/"})
    file = scene.world.objects["ConfigMap", "shop", "k-config"]["data"]["server.properties"]
    (line,) = [each for each in file.splitlines() if each.startswith("listener.name.http.ssl.principal.mapping.rules")]
    rules = MappingRules(line.partition("=")[2])
    assert rules.user_name("CN=k-operator,O=ottla.dev") == "CN=k-operator,O=ottla.dev"
    assert rules.user_name("CN=shop") == "shop"


def _template(scene: Scene) -> str:
    template = scene.world.objects["StatefulSet", "shop", "k-broker"]["spec"]["template"]
    return annotation(template, "ottla.dev/links")


def test_a_listener_with_tls_gets_a_certificate_for_its_addresses_and_renews_it_without_a_restart() -> None:
    scene = running(listeners=[PLAIN, {**OUTSIDE[1], "tls": True, "authentication": {"type": "tls"}}])
    scene.world.objects["Node", "", "n"] = {"kind": "Node", "metadata": {"name": "n"}, "status": {}}
    scene.rounds(3)
    pair = certificates.pair_in(secret(scene, "k-brokers-tls")["node.pem"])
    before = certificates.hosts_of(pair.certificate)
    assert "k-bootstrap-node.shop.svc" in before
    scene.now += timedelta(days=250)
    scene.rounds(2)
    renewed = certificates.pair_in(secret(scene, "k-brokers-tls")["node.pem"])
    assert renewed.certificate != pair.certificate
    assert set(before) <= set(certificates.hosts_of(renewed.certificate))
    assert restarts(scene) == []
    assert secret(scene, "k-brokers-tls")["clients-ca.crt"] == secret(scene, "k-clients-ca-cert")["ca.crt"]


def test_a_persons_certificate_is_taken_over_whenever_it_changes() -> None:
    scene = Scene(listeners=[PLAIN, {"name": "own", "port": 9095, "type": "Internal", "tls": True,
                                     "certificate": {"secretName": "mine"}}])  # fmt: skip
    scene.rounds(3)
    assert scene.condition("BrokerCertificatesReconciled") == ("False", "Refused")
    assert scene.condition_message("BrokerCertificatesReconciled") == (
        "listeners: own: the Secret mine doesn't exist: create it with tls.crt and tls.key"
    )
    authority = certificates.authority("elsewhere", scene.now)

    def bring(host: str) -> certificates.Issued:
        pair = certificates.issued(authority, host, scene.now, hosts=[host], purposes=(CLIENT, SERVER))
        data = encoded({"tls.crt": pair.certificate, "tls.key": pair.key})
        scene.world.objects["Secret", "shop", "mine"] = {"kind": "Secret", "metadata": {"name": "mine"}, "data": data}
        return pair

    first = bring("a.example")
    scene.rounds(6)
    assert certificates.pair_in(secret(scene, "k-brokers-tls")["own.pem"]).certificate == first.certificate
    second = bring("b.example")
    scene.rounds(2)
    assert certificates.pair_in(secret(scene, "k-brokers-tls")["own.pem"]).certificate == second.certificate
    assert restarts(scene) == []
    wrong = encoded({"tls.crt": first.certificate, "tls.key": second.key})
    scene.world.objects["Secret", "shop", "mine"]["data"] = wrong
    scene.rounds(1)
    assert "tls.key isn't the key" in scene.condition_message("ListenerCertificatesReconciled")
    assert certificates.pair_in(secret(scene, "k-brokers-tls")["own.pem"]).certificate == second.certificate


def test_a_bad_certificate_of_one_listener_keeps_nothing_else_from_being_done() -> None:
    own = {"name": "own", "port": 9095, "type": "Internal", "tls": True, "certificate": {"secretName": "mine"}}
    scene = Scene(listeners=[PLAIN, own, MTLS])
    scene.rounds(2)
    assert secret(scene, "k-brokers-tls").keys() == {
        "cluster-ca.crt", "clients-ca.crt", "pages-ca.crt", "replication-tls.pem", "mtls.pem",
    }  # fmt: skip
    assert scene.pods() == [], "brokers can't start without the file of the listener own"
    pair = certificates.issued(certificates.authority("elsewhere", scene.now), "a", scene.now, purposes=(SERVER,))
    data = encoded({"tls.crt": pair.certificate, "tls.key": pair.key})
    scene.world.objects["Secret", "shop", "mine"] = {"kind": "Secret", "metadata": {"name": "mine"}, "data": data}
    scene.rounds(8)
    mounted = secret(scene, "k-brokers-tls")
    scene.world.objects["Secret", "shop", "mine"]["data"] = {}
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=4))
    scene.now += timedelta(days=250)
    scene.rounds(3)
    renewed = secret(scene, "k-brokers-tls")
    assert renewed["own.pem"] == mounted["own.pem"]
    assert renewed["mtls.pem"] != mounted["mtls.pem"]
    assert renewed["replication-tls.pem"] != mounted["replication-tls.pem"]
    assert scene.condition_message("ListenerCertificatesReconciled") == (
        "listeners: own: the Secret mine has no tls.crt: add it"
    )
    assert len(scene.pods()) == 4


def test_an_authority_that_nears_its_end_gets_a_successor_that_signs_when_brokers_and_clients_know_it() -> None:
    scene = running()
    first = secret(scene, "k-cluster-ca")
    scene.now += timedelta(days=336)
    scene.probe.accepts = False
    scene.rounds(1)
    both = secret(scene, "k-cluster-ca")
    assert both["tls.key"] == first["tls.key"]
    for name, part in (
        ("k-cluster-ca-cert", "ca.crt"),
        ("k-brokers-tls", "cluster-ca.crt"),
        ("k-operator-tls", "ca.crt"),
    ):
        assert secret(scene, name)[part].count(b"BEGIN") == 2
    scene.now += timedelta(days=16)
    scene.rounds(2)
    assert secret(scene, "k-cluster-ca") == both, "a broker hasn't read it"
    assert ("accepted", 3, 9089) in scene.probe.asked
    scene.probe.accepts = True
    scene.rounds(1)
    second = secret(scene, "k-cluster-ca")
    assert second == {"tls.crt": both["next.crt"], "tls.key": both["next.key"], "before.crt": first["tls.crt"]}
    pair = certificates.pair_in(secret(scene, "k-brokers-tls")["replication-tls.pem"])
    x509.load_pem_x509_certificate(pair.certificate).verify_directly_issued_by(
        x509.load_pem_x509_certificate(second["tls.crt"])
    )
    scene.now += timedelta(days=14)
    scene.rounds(2)
    assert secret(scene, "k-cluster-ca").keys() == {"tls.crt", "tls.key"}, "the predecessor's time is over"
    assert secret(scene, "k-brokers-tls")["cluster-ca.crt"] == second["tls.crt"]
    assert restarts(scene) == []


def test_a_successor_waits_for_clients_though_brokers_accept_it() -> None:
    scene = running()
    scene.now += timedelta(days=336)
    scene.rounds(3)
    assert "next.crt" in secret(scene, "k-cluster-ca")
    assert scene.probe.asked == []


def test_a_person_replaces_an_authority_at_once_and_the_former_one_is_forgotten() -> None:
    scene = running(listeners=[PLAIN, MTLS])
    first = {name: secret(scene, name) for name in ("k-cluster-ca", "k-clients-ca")}
    scene.probe.shows = False
    for name in first:
        asked(scene, name, {REPLACE: "true"})
    scene.rounds(3)
    for name, before in first.items():
        found = secret(scene, name)
        assert found["before.crt"] == before["tls.crt"]
        assert found["tls.key"] != before["tls.key"]
        assert annotation(scene.world.objects["Secret", "shop", name], REPLACE) == "begun"
    assert ("accepted", 3, 9094) in scene.probe.asked
    scene.probe.shows = True
    scene.rounds(2)
    assert "before.crt" not in secret(scene, "k-cluster-ca")
    assert annotation(scene.world.objects["Secret", "shop", "k-cluster-ca"], REPLACE) == ""
    assert "before.crt" in secret(scene, "k-clients-ca"), "clients have a day to get other certificates"
    scene.now += timedelta(days=1)
    scene.rounds(2)
    assert "before.crt" not in secret(scene, "k-clients-ca")
    assert restarts(scene) == []
    scene.world.writes.clear()
    scene.rounds(3)
    assert scene.world.writes == []


def test_a_person_asks_for_a_renewal_and_it_takes_the_usual_steps() -> None:
    scene = running()
    asked(scene, "k-cluster-ca", {RENEW: "yes"})
    scene.rounds(3)
    assert "next.crt" in secret(scene, "k-cluster-ca")
    assert annotation(scene.world.objects["Secret", "shop", "k-cluster-ca"], RENEW) == ""
    scene.now += timedelta(days=15)
    scene.rounds(2)
    assert "before.crt" in secret(scene, "k-cluster-ca")


def test_an_operator_that_ends_before_it_notes_a_renewal_does_not_renew_a_second_time() -> None:
    scene = running()
    asked(scene, "k-cluster-ca", {RENEW: "yes"})
    scene.rounds(1)
    asked(scene, "k-cluster-ca", {RENEW: "yes"})  # the Secret is as it was when the operator ended after the first step
    scene.now += timedelta(days=15)
    scene.rounds(3)
    found = secret(scene, "k-cluster-ca")
    assert found.keys() == {"tls.crt", "tls.key", "before.crt"}
    assert annotation(scene.world.objects["Secret", "shop", "k-cluster-ca"], RENEW) == ""


def test_controllers_that_can_not_be_asked_have_five_minutes() -> None:
    scene = running(controllers={"replicas": 2})
    asked(scene, "k-cluster-ca", {REPLACE: "true"})
    scene.rounds(3)
    assert "next.crt" in secret(scene, "k-cluster-ca")
    scene.now += timedelta(minutes=5)
    scene.rounds(1)
    assert "before.crt" in secret(scene, "k-cluster-ca")
    scene.rounds(3)
    assert "before.crt" in secret(scene, "k-cluster-ca"), "controllers may show certificates of the former authority"
    scene.now += timedelta(days=1)
    scene.rounds(2)
    assert secret(scene, "k-cluster-ca").keys() == {"tls.crt", "tls.key"}


def test_an_operator_that_comes_back_after_the_end_of_an_authority_makes_another_one_at_once() -> None:
    """Nothing is lost by that: nobody accepts the certificates any more."""
    scene = running(listeners=[PLAIN, MTLS])
    first = {name: secret(scene, name) for name in ("k-cluster-ca", "k-clients-ca")}
    scene.now += timedelta(days=400)
    scene.restart()
    scene.rounds(2)
    for name, before in first.items():
        found = secret(scene, name)
        assert found.keys() == {"tls.crt", "tls.key"}
        assert found["tls.key"] != before["tls.key"]
    pair = certificates.pair_in(secret(scene, "k-brokers-tls")["mtls.pem"])
    hosts = certificates.hosts_of(pair.certificate)
    assert certificates.usable(secret(scene, "k-cluster-ca"), pair, scene.now, hosts=hosts)
    assert restarts(scene) == []


def test_an_authority_from_elsewhere_is_used_and_never_changed() -> None:
    scene = Scene(clusterCa={"generateCertificateAuthority": False})
    scene.rounds(2)
    assert "the Secret k-cluster-ca has no authority" in scene.condition_message("BrokerCertificatesReconciled")
    assert scene.pods() == []
    own = certificates.authority("elsewhere", scene.now, 100)
    meta = {"name": "k-cluster-ca", "namespace": "shop", "uid": "s", "resourceVersion": "1"}
    scene.world.objects["Secret", "shop", "k-cluster-ca"] = {"kind": "Secret", "metadata": meta, "data": encoded(own)}
    scene.rounds(6)
    assert len(scene.pods()) == 3
    assert secret(scene, "k-cluster-ca") == own
    assert secret(scene, "k-cluster-ca-cert")["ca.crt"] == own["tls.crt"]
    scene.now += timedelta(days=99)
    scene.rounds(1)
    assert secret(scene, "k-cluster-ca") == own


def own_authority(scene: Scene, name: str, **given: Any) -> dict[str, bytes]:
    """Puts an authority from elsewhere into a Secret of a Cluster, as cert-manager does it."""
    own = certificates.authority("elsewhere", scene.now, 100) | given
    meta = {"name": name, "namespace": "shop", "uid": "s", "resourceVersion": "1"}
    scene.world.objects["Secret", "shop", name] = {"kind": "Secret", "metadata": meta, "data": encoded(own)}
    return own


BOTH_FROM_ELSEWHERE = {name: {"generateCertificateAuthority": False} for name in ("clusterCa", "clientsCa")}


def running_with_own_authorities() -> tuple[Scene, dict[str, dict[str, bytes]]]:
    scene = Scene(listeners=[PLAIN, MTLS], **BOTH_FROM_ELSEWHERE)
    first = {name: own_authority(scene, name) for name in ("k-cluster-ca", "k-clients-ca")}
    scene.rounds(8)
    assert len(scene.pods()) == 3
    return scene, first


def test_an_authority_from_elsewhere_that_is_replaced_in_place_signs_once_brokers_accept_it() -> None:
    scene, first = running_with_own_authorities()
    mounted = secret(scene, "k-brokers-tls")
    scene.probe.accepts = False
    scene.now += timedelta(days=70)
    second = {name: own_authority(scene, name) for name in first}
    scene.rounds(3)
    waiting = secret(scene, "k-brokers-tls")
    for name, file in (("k-cluster-ca", "cluster-ca.crt"), ("k-clients-ca", "clients-ca.crt")):
        assert secret(scene, name) == second[name]
        both = certificates.joined([first[name]["tls.crt"], second[name]["tls.crt"]])
        assert waiting[file] == secret(scene, f"{name}-cert")["ca.crt"] == both
    for file in ("replication-tls.pem", "mtls.pem"):
        assert waiting[file] == mounted[file], "brokers don't trust the new authority yet"
    scene.probe.accepts = True
    scene.rounds(2)
    signed = secret(scene, "k-brokers-tls")
    for file in ("replication-tls.pem", "mtls.pem"):
        pair = certificates.pair_in(signed[file])
        hosts = certificates.hosts_of(pair.certificate)
        assert certificates.usable(second["k-cluster-ca"], pair, scene.now, hosts=hosts)
    scene.probe.accepts = False  # a broker that is down doesn't take the word back
    scene.world.writes.clear()
    scene.rounds(3)
    assert scene.world.writes == []
    scene.now += timedelta(days=31)
    scene.rounds(2)
    assert secret(scene, "k-brokers-tls")["cluster-ca.crt"] == second["k-cluster-ca"]["tls.crt"], "the first is over"
    assert restarts(scene) == []


def test_annotations_without_effect_on_an_authority_from_elsewhere_are_told_and_taken_away() -> None:
    scene, _ = running_with_own_authorities()
    for name in (RENEW, REPLACE):
        asked(scene, "k-cluster-ca", {name: "true"})
        scene.rounds(2)
        assert annotation(scene.world.objects["Secret", "shop", "k-cluster-ca"], name) == ""
        told = [message for reason, message in scene.world.events if reason == "RenewalIgnored"]
        assert [message for message in told if message.startswith(f"{name} of the Secret k-cluster-ca has no effect")]


def test_a_replacement_makes_no_haste_while_there_is_nothing_to_do_but_to_wait() -> None:
    scene = running(listeners=[PLAIN, MTLS])
    scene.probe.accepts = scene.probe.shows = False
    asked(scene, "k-cluster-ca", {REPLACE: "true"})
    scene.rounds(2)
    assert scene.reconcile().requeue_after == SOON_S, "brokers are about to read the new authority"
    scene.now += timedelta(minutes=6)
    assert scene.reconcile().requeue_after == QUIET_S
    scene.probe.accepts = True
    scene.rounds(3)
    assert annotation(scene.world.objects["Secret", "shop", "k-cluster-ca"], REPLACE) == "begun"
    assert scene.reconcile().requeue_after == QUIET_S, "brokers show certificates of the former authority"


def test_the_predecessor_of_an_authority_from_elsewhere_is_forgotten_when_a_person_says_so() -> None:
    scene, first = running_with_own_authorities()
    second = own_authority(scene, "k-cluster-ca")
    asked(scene, "k-cluster-ca", {REPLACE: "true"})
    scene.probe.shows = False
    scene.rounds(3)
    assert first["k-cluster-ca"]["tls.crt"] in secret(scene, "k-cluster-ca-cert")["ca.crt"]
    scene.probe.shows = True
    scene.rounds(2)
    assert secret(scene, "k-cluster-ca-cert")["ca.crt"] == second["tls.crt"]
    assert secret(scene, "k-brokers-tls")["cluster-ca.crt"] == second["tls.crt"]
    assert annotation(scene.world.objects["Secret", "shop", "k-cluster-ca"], REPLACE) == ""


@pytest.mark.parametrize("lost", ["k-cluster-ca-cert", "k-brokers-tls"])
@pytest.mark.parametrize("damage", [{}, {"tls.crt": b"not a certificate"}, None])
def test_an_authority_that_is_damaged_or_lost_with_another_secret_is_replaced_in_steps(
    damage: dict[str, bytes] | None, lost: str
) -> None:
    scene = running()
    first = secret(scene, "k-cluster-ca")["tls.crt"]
    scene.probe.accepts = False
    if damage is None:
        del scene.world.objects["Secret", "shop", "k-cluster-ca"]
    else:
        scene.world.objects["Secret", "shop", "k-cluster-ca"]["data"] = encoded(damage)
    del scene.world.objects["Secret", "shop", lost]
    scene.rounds(2)
    trust = secret(scene, "k-brokers-tls")["cluster-ca.crt"]
    assert first in trust
    assert trust.count(b"BEGIN") == 2
    assert secret(scene, "k-cluster-ca").keys() == {"before.crt", "next.crt", "next.key"}
    scene.probe.accepts = True
    scene.rounds(3)
    pair = certificates.pair_in(secret(scene, "k-brokers-tls")["replication-tls.pem"])
    hosts = certificates.hosts_of(pair.certificate)
    assert certificates.usable(secret(scene, "k-cluster-ca"), pair, scene.now, hosts=hosts)


def test_a_lost_authority_is_followed_without_a_question_once_its_time_is_over() -> None:
    for days_between, kept in ((100, True), (0, False)):
        scene = running()
        scene.probe.accepts = False
        scene.now += timedelta(days=days_between)
        del scene.world.objects["Secret", "shop", "k-cluster-ca"]
        scene.rounds(2)
        waiting = secret(scene, "k-cluster-ca")
        assert "tls.key" not in waiting
        scene.now += timedelta(days=366 - days_between)
        scene.rounds(2)
        found = secret(scene, "k-cluster-ca")
        assert found.keys() == {"tls.crt", "tls.key"}
        assert (found["tls.key"] == waiting["next.key"]) is kept, "the successor may be over, too"


def test_an_authority_from_elsewhere_that_can_not_sign_is_refused_in_words() -> None:
    scene, first = running_with_own_authorities()
    mounted = secret(scene, "k-brokers-tls")
    leaf = certificates.issued(first["k-cluster-ca"], "leaf", scene.now)
    ended = certificates.authority("k", scene.now - timedelta(days=9), 3)
    later = certificates.authority("k", scene.now + timedelta(days=9), 3)
    for pair, words in (
        ({"tls.crt": leaf.certificate, "tls.key": leaf.key}, "isn't that of an authority"),
        (ended, "the authority has expired on 2026-04-25"),
        (later, "the authority isn't valid before 2026-05-10"),
        (_authority_with_an_ed25519_key(scene), "its key has to be of the type EC or RSA"),
    ):
        own_authority(scene, "k-cluster-ca", **pair)
        scene.rounds(1)
        assert words in scene.condition_message("BrokerCertificatesReconciled")
        assert secret(scene, "k-brokers-tls") == mounted


def _authority_with_an_ed25519_key(scene: Scene) -> dict[str, bytes]:
    key = ed25519.Ed25519PrivateKey.generate()
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "k")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(scene.now)
        .not_valid_after(scene.now + timedelta(days=9))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, None)
    )
    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return {
        "tls.crt": certificate.public_bytes(pem),
        "tls.key": key.private_bytes(pem, pkcs8, serialization.NoEncryption()),
    }


@pytest.mark.parametrize("said", [None, True])
def test_an_etcd_that_was_formed_plain_stays_so_whatever_is_said(said: bool | None) -> None:
    scene = running(metadata={"etcd": {"members": 1, "tls": False}})

    def say(spec: Object) -> None:
        spec["metadata"] = {"etcd": {"members": 1, **({} if said is None else {"tls": said})}}

    scene.world.edit("Cluster", "k", say)
    scene.rounds(3)
    assert not secret(scene, "k-etcd-authority")
    assert len(scene.pods()) == 3
    if said:
        assert (
            scene.status["message"] == "metadata.etcd.tls can't change: this etcd was formed without TLS, and stays so"
        )
    else:
        assert scene.condition("Ready") == ("True", "BrokersServe")


@pytest.mark.parametrize("marked", [True, False])
def test_an_etcd_that_comes_back_on_its_volumes_is_as_it_was(marked: bool) -> None:
    scene = Scene()
    labels = {
        "app.kubernetes.io/instance": "k",
        "app.kubernetes.io/component": "etcd",
        "app.kubernetes.io/managed-by": "ottla-operator",
        **({"ottla.dev/etcd-tls": "true"} if marked else {}),
    }
    claim: dict[str, Any] = {
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": "data-k-etcd-0",
            "namespace": "shop",
            "uid": "c",
            "labels": labels,
            "resourceVersion": "1",
        },
        "spec": {"resources": {"requests": {"storage": "2Gi"}}},
    }
    scene.world.objects["PersistentVolumeClaim", "shop", "data-k-etcd-0"] = claim
    scene.rounds(6)
    assert bool(secret(scene, "k-etcd-authority")) is marked
    assert links(scene) == ["ENCRYPTED"] * 3


def test_files_of_a_removed_listener_stay_until_no_pod_names_them() -> None:
    scene = running(listeners=[PLAIN, MTLS])
    scene.world.edit("Cluster", "k", lambda spec: spec.update(listeners=[PLAIN]))
    scene.rounds(1)
    assert "mtls.pem" in secret(scene, "k-brokers-tls")
    scene.rounds(12)
    assert secret(scene, "k-brokers-tls").keys() == {"cluster-ca.crt", "pages-ca.crt", "replication-tls.pem"}
    assert len(restarts(scene)) == 3


def test_pods_are_told_of_changed_files_so_that_kubelets_look_at_once() -> None:
    scene = running(listeners=[PLAIN, {**OUTSIDE[1], "tls": True}])

    def told() -> list[str]:
        return [
            annotation(scene.world.objects["Pod", "shop", name], "ottla.dev/files-checksum") for name in scene.pods()
        ]

    scene.world.create({"kind": "Node", "metadata": {"name": "n"}, "status": {"addresses": [NODE]}})
    for number, name in enumerate(scene.pods()):
        scene.world.objects["Pod", "shop", name]["spec"]["nodeName"] = "n"
        service = scene.world.objects["Service", "shop", f"{name}-node"]["spec"]
        service["ports"] = [{**service["ports"][0], "nodePort": 31000 + number}]
    scene.rounds(3)
    first = told()
    assert len({*first} - {""}) == 1, "the brokers' addresses are known once they have nodes"
    scene.world.writes.clear()
    scene.rounds(2)
    assert scene.world.writes == []
    scene.world.objects["Node", "", "n"]["status"] = {"addresses": [{"type": "ExternalIP", "address": "192.0.2.7"}]}
    scene.reconcile()
    pair = certificates.pair_in(secret(scene, "k-brokers-tls")["node.pem"])
    assert "192.0.2.7" in certificates.hosts_of(pair.certificate)
    assert not {*told()} & {*first}
    assert len({*told()}) == 1
    scene.world.remove("Pod", "shop", "k-broker-1")
    scene.now += timedelta(seconds=5)
    scene.rounds(2)
    assert told()[1] == "", "a new pod has the present files anyway"


def test_a_pod_that_refuses_the_annotation_keeps_nothing_else_from_being_done() -> None:
    scene = running(listeners=[PLAIN, MTLS])
    scene.world.refusals["merge Pod k-broker-1"] = KubeError(403, "merging", "a webhook says no")
    scene.now += timedelta(days=250)
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=4))
    scene.rounds(1)
    assert scene.condition("CertificatesToldReconciled") == ("False", "Refused")
    files = annotation(scene.world.objects["Secret", "shop", "k-brokers-tls"], "ottla.dev/files-checksum")
    assert [each == files for each in _told(scene)] == [True, False, True, False], "the last one is new"
    scene.world.refusals.clear()
    scene.now += timedelta(seconds=5)
    scene.restart()
    scene.rounds(1)
    assert _told(scene)[1] == files
    scene.world.writes.clear()
    scene.rounds(3)
    assert scene.world.writes == []


def test_pods_are_told_of_changed_files_by_another_process_if_the_first_one_ends_after_the_change() -> None:
    scene = running()
    scene.now += timedelta(days=250)
    names = scene.pods()
    for name in names:
        scene.world.refusals[f"merge Pod {name}"] = KubeError(0, "merging", "the process ends here")
    scene.rounds(1)
    scene.world.refusals.clear()
    scene.now += timedelta(seconds=5)
    scene.restart()
    scene.rounds(1)
    files = annotation(scene.world.objects["Secret", "shop", "k-brokers-tls"], "ottla.dev/files-checksum")
    assert _told(scene) == [files] * 3


def _told(scene: Scene) -> list[str]:
    return [annotation(scene.world.objects["Pod", "shop", name], "ottla.dev/files-checksum") for name in scene.pods()]


def test_keys_that_are_lost_with_the_authority_come_when_brokers_trust_another_one() -> None:
    scene = running()
    for name in ("k-cluster-ca", "k-brokers-tls"):
        del scene.world.objects["Secret", "shop", name]
    scene.probe.accepts = False
    scene.world.edit("Cluster", "k", lambda spec: spec.update(image="ottla:2"))
    scene.rounds(3)
    assert secret(scene, "k-brokers-tls").keys() == {"cluster-ca.crt", "pages-ca.crt"}
    assert restarts(scene) == [], "a broker that starts now would have to wait for its key"
    assert scene.budget() == 0
    for name in scene.pods():
        assert annotation(scene.world.objects["Pod", "shop", name], "ottla.dev/files-checksum")
    scene.probe.accepts = True
    scene.rounds(1)
    assert "replication-tls.pem" in secret(scene, "k-brokers-tls")
    scene.rounds(12)
    assert len(restarts(scene)) == 3


def test_a_broker_that_waits_for_its_key_is_not_asked_for_longer_than_kubelets_need() -> None:
    scene = running()
    scene.world.silent_images.add("ottla:1")
    for name in ("k-cluster-ca", "k-brokers-tls"):
        del scene.world.objects["Secret", "shop", name]
    scene.probe.accepts = False
    scene.world.settle()
    scene.probe.asked.clear()
    scene.rounds(3)
    assert ("accepted", 3, 9089) in scene.probe.asked
    assert "replication-tls.pem" not in secret(scene, "k-brokers-tls")
    scene.now += timedelta(minutes=5)
    scene.probe.accepts = True  # of nobody
    scene.probe.asked.clear()
    scene.rounds(1)
    assert scene.probe.asked == [("accepted", 0, 9089)]
    assert "replication-tls.pem" in secret(scene, "k-brokers-tls")


OWN = {"name": "own", "port": 9095, "type": "Internal", "tls": True, "certificate": {"secretName": "mine"}}


def test_a_listener_whose_certificate_does_not_exist_yet_changes_nothing_of_a_healthy_cluster() -> None:
    scene = running()
    scene.world.edit("Cluster", "k", lambda spec: spec.update(listeners=[PLAIN, OWN]))
    scene.rounds(3)
    assert scene.condition("BrokerCertificatesReconciled") == ("False", "Refused")
    assert scene.condition("BrokerConfigReconciled") == ("False", "Waiting")
    assert "own.pem" not in scene.world.objects["ConfigMap", "shop", "k-config"]["data"]["server.properties"]
    assert restarts(scene) == []
    assert scene.budget() == 1, "a broker that is evicted starts with the settings and files of before"


def test_keys_that_a_person_has_to_bring_are_told_apart_from_lost_ones() -> None:
    scene = Scene(listeners=[PLAIN, OWN])
    pair = certificates.issued(certificates.authority("elsewhere", scene.now), "own", scene.now)
    data = encoded({"tls.crt": pair.certificate, "tls.key": pair.key})
    scene.world.objects["Secret", "shop", "mine"] = {"kind": "Secret", "metadata": {"name": "mine"}, "data": data}
    scene.rounds(6)
    for name in ("mine", "k-brokers-tls"):
        del scene.world.objects["Secret", "shop", name]
    scene.world.objects["Pod", "shop", "k-broker-0"]["metadata"]["annotations"]["ottla.dev/restart"] = "now"
    scene.rounds(3)
    assert restarts(scene) == []
    assert scene.budget() == 0
    assert "the Secret mine with the certificate of the listener own" in scene.condition_message("Rolling")


def test_a_listener_without_its_certificate_spares_no_broker_the_question_about_another_authority() -> None:
    scene = running()
    asked(scene, "k-cluster-ca", {REPLACE: "true"})
    scene.probe.accepts = False
    scene.world.edit("Cluster", "k", lambda spec: spec.update(listeners=[PLAIN, OWN]))
    scene.rounds(2)
    scene.world.silent_images.add("ottla:1")  # the brokers run, but aren't ready
    scene.world.settle()
    scene.now += timedelta(minutes=20)
    scene.probe.asked.clear()
    scene.rounds(3)
    assert {*scene.probe.asked} == {("accepted", 3, 9089)}
    assert "next.key" in secret(scene, "k-cluster-ca"), "a running broker doesn't trust it"


def test_brokers_have_the_time_of_kubelets_from_when_the_operator_writes_what_they_are_to_trust() -> None:
    scene, _ = running_with_own_authorities()
    scene.probe.accepts = False
    scene.world.silent_images.add("ottla:1")
    scene.world.settle()
    own_authority(scene, "k-cluster-ca", **certificates.authority("elsewhere", scene.now - timedelta(days=9), 100))
    scene.world.remove("Secret", "shop", "k-brokers-tls")
    scene.probe.asked.clear()
    scene.rounds(2)
    assert ("accepted", 3, 9089) in scene.probe.asked, "the authority is old, but brokers had no time to read it"
    assert "replication-tls.pem" not in secret(scene, "k-brokers-tls")
    scene.now += timedelta(minutes=5)
    scene.rounds(1)
    assert "replication-tls.pem" in secret(scene, "k-brokers-tls")


def test_brokers_that_never_accept_another_authority_are_restarted_one_at_a_time_after_a_while() -> None:
    scene = running()
    for name in ("k-cluster-ca", "k-brokers-tls"):
        del scene.world.objects["Secret", "shop", name]
    scene.probe.accepts = False
    scene.rounds(2)
    assert scene.condition("KeysLost") == ("True", "KeysAwaited")
    assert scene.condition_message("KeysLost").endswith("at the latest at 12:15 UTC")
    assert [reason for reason, _ in scene.world.warnings].count("KeysAwaited") == 1
    scene.now += timedelta(minutes=14)
    scene.rounds(2)
    assert "replication-tls.pem" not in secret(scene, "k-brokers-tls")
    scene.now += timedelta(minutes=1)
    scene.rounds(1)
    assert "replication-tls.pem" in secret(scene, "k-brokers-tls")
    scene.probe.refusing = {f"ip-{name}" for name in scene.pods()}
    scene.probe.accepts = True
    scene.pages.said = {number: Report(risks={"offline": ("orders-0",)}) for number in range(3)}
    for name in scene.pods():
        scene.reconcile()
        assert scene.condition("KeysLost") == ("True", "BrokersCutOff")
        assert name in scene.condition_message("KeysLost")
        assert restarts(scene)[-1] == name
        scene.reconcile()
        assert restarts(scene)[-1] == name, "one at a time"
        scene.probe.refusing.discard(f"ip-{name}")
        scene.world.settle()
    scene.rounds(2)
    assert len(restarts(scene)) == 3
    assert "KeysLost" not in [each["type"] for each in scene.status["conditions"]]
    scene.world.writes.clear()
    scene.probe.asked.clear()
    scene.rounds(3)
    assert scene.world.writes == []
    assert scene.probe.asked == []


def test_no_pod_is_restarted_while_it_is_not_known_whether_brokers_have_their_keys() -> None:
    scene = running()
    scene.world.refusals["get Secret k-brokers-tls"] = KubeError(403, "reading", "no right")
    for name in scene.pods():
        scene.world.objects["Pod", "shop", name]["metadata"]["annotations"]["ottla.dev/restart"] = "now"
    scene.rounds(2)
    assert restarts(scene) == []
    assert scene.budget() == 0
    scene.world.refusals.clear()
    scene.rounds(6)
    assert len(restarts(scene)) == 3


def test_users_of_a_cluster_with_rights_read_the_pages_though_no_listener_asks_for_certificates() -> None:
    scene = running(authorization={"type": "simple"})
    both = [secret(scene, name)["ca.crt"] for name in ("k-cluster-ca-cert", "k-clients-ca-cert")]
    assert secret(scene, "k-brokers-tls")["pages-ca.crt"] == certificates.joined(both)


def test_pages_become_plain_alone_if_the_cluster_says_so() -> None:
    scene = running(authorization={"type": "simple"})
    scene.cluster["metadata"]["annotations"] = {"ottla.dev/plain-pages": "true"}
    scene.rounds(12)
    assert scene.pages.encrypted == dict.fromkeys(range(3), False)
    assert links(scene) == ["ENCRYPTED"] * 3
    assert len(restarts(scene)) == 3


def test_the_operators_own_secret_says_whom_brokers_trust_if_all_others_are_lost() -> None:
    scene = running()
    first = secret(scene, "k-cluster-ca")["tls.crt"]
    scene.probe.accepts = False
    for name in ("k-cluster-ca", "k-brokers-tls", "k-cluster-ca-cert"):
        del scene.world.objects["Secret", "shop", name]
    scene.rounds(2)
    assert first in secret(scene, "k-brokers-tls")["cluster-ca.crt"]
    assert secret(scene, "k-cluster-ca").keys() == {"before.crt", "next.crt", "next.key"}


def test_an_authority_that_somebody_deletes_is_replaced_in_steps_and_nobody_restarts() -> None:
    scene = running(listeners=[PLAIN, MTLS])
    mounted = secret(scene, "k-brokers-tls")
    scene.probe.accepts = False
    for name in ("k-cluster-ca", "k-clients-ca"):
        del scene.world.objects["Secret", "shop", name]
    scene.rounds(2)
    now = secret(scene, "k-brokers-tls")
    assert now["replication-tls.pem"] == mounted["replication-tls.pem"], "brokers don't trust the new authority yet"
    assert now["cluster-ca.crt"].count(b"BEGIN") == now["clients-ca.crt"].count(b"BEGIN") == 2
    assert now["cluster-ca.crt"].replace(mounted["cluster-ca.crt"], b"").count(b"BEGIN") == 1
    scene.probe.accepts = True
    scene.rounds(2)
    for name in ("k-cluster-ca", "k-clients-ca"):
        assert secret(scene, name).keys() == {"tls.crt", "tls.key", "before.crt"}
    pair = certificates.pair_in(secret(scene, "k-brokers-tls")["replication-tls.pem"])
    assert certificates.usable(
        secret(scene, "k-cluster-ca"), pair, scene.now, hosts=certificates.hosts_of(pair.certificate)
    )
    assert restarts(scene) == []
    scene.world.writes.clear()
    scene.rounds(3)
    assert scene.world.writes == []


def test_the_secrets_of_a_cluster_before_are_waited_for_and_never_used() -> None:
    scene = running()
    before = secret(scene, "k-cluster-ca")
    for (kind, _, name), item in list(scene.world.objects.items()):
        if kind != "Cluster" and kind != "Secret":
            del scene.world.objects[kind, "shop", name]
        elif kind == "Secret":
            item["metadata"]["ownerReferences"][0]["uid"] = "former"
    scene.rounds(1)
    assert scene.condition("BrokerCertificatesReconciled") == ("False", "Waiting")
    for key in [key for key in scene.world.objects if key[0] == "Secret"]:
        del scene.world.objects[key]
    scene.rounds(6)
    assert len(scene.pods()) == 3
    assert secret(scene, "k-cluster-ca")["tls.crt"] != before["tls.crt"]
