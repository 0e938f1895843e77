"""A User as the operator reads it, and what its Cluster says about its users."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from ottla.operator.kube import KubeError
from ottla.operator.namespaces import selected_namespaces
from ottla.operator.objects import Object, Ref
from ottla.operator.spec.namespaces import AllowedNamespaces
from ottla.operator.spec.user import Login, PasswordSource, UserResource, parse_user
from ottla.operator.spec.user_rules import UserRules, parse_user_rules
from ottla.protocol.acls import AclBinding, PatternType, Permission
from ottla.protocol.rights import AclOperation, ResourceType

META = {"namespace": "shop", "name": "a", "uid": "u-1", "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 3}


def user(resource: str = "a", annotations: dict[str, str] | None = None, **spec: Any) -> UserResource:
    whole = {"cluster": {"name": "main"}, "authentication": {"type": "scram-sha-512"}, **spec}
    return parse_user({"metadata": {**META, "name": resource, "annotations": annotations or {}}, "spec": whole})


def acl(kind: str, *operations: str, **more: Any) -> dict[str, Any]:
    resource = {"type": kind, "name": "orders", **more.pop("resource", {})}
    return {"resource": resource, "operations": list(operations), **more}


def refusal(*acls: dict[str, Any]) -> str:
    return user(authorization={"type": "simple", "acls": list(acls)}).refusal


def test_a_whole_user() -> None:
    found = user(
        annotations={"ottla.dev/force-renew": "7"},
        authentication={
            "type": "scram-sha-512",
            "password": {"valueFrom": {"secretKeyRef": {"name": "vault", "key": "k"}}},
        },
        authorization={"type": "simple", "acls": [acl("topic", "Read", "Describe"), acl("cluster", "Create")]},
        quotas={"producerByteRate": 5, "controllerMutationRate": 0.5},
    )
    assert (found.ref, found.cluster, found.generation) == (Ref("shop", "a"), Ref("shop", "main"), 3)
    assert (found.login, found.name, found.certified_name, found.renew) == (Login.SCRAM, "a", "CN=a", "7")
    assert found.password == PasswordSource("vault", "k")
    assert found.quotas == {"producer_byte_rate": 5.0, "controller_mutation_rate": 0.5}
    topic = (ResourceType.TOPIC, PatternType.LITERAL, "orders", "User:a", "*")
    cluster = (ResourceType.CLUSTER, PatternType.LITERAL, "kafka-cluster", "User:a", "*")
    assert {rule.of("User:a") for rule in found.rules} == {
        AclBinding(*topic, AclOperation.READ, Permission.ALLOW),
        AclBinding(*topic, AclOperation.DESCRIBE, Permission.ALLOW),
        AclBinding(*cluster, AclOperation.CREATE, Permission.ALLOW),
    }
    assert found.refusal == ""


def test_defaults() -> None:
    found = user(authentication={"type": "tls"})
    assert (found.validity_days, found.renewal_days, found.rules, found.quotas) == (365, 30, frozenset(), {})


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"authentication": {"type": "plain"}}, "say one of tls, tls-external, scram-sha-512, external"),
        ({"authentication": {}}, "authentication.type is None"),
        ({"name": "CN=a"}, "can't be the user's name"),
        ({"name": "x" * 65}, "can't be the user's name"),
        ({"name": "*", "authentication": {"type": "external"}}, "stands for all users"),
        ({"name": "a\nb", "authentication": {"type": "external"}}, "control characters"),
        ({"authentication": {"type": "tls", "validityDays": 30}}, "less than validityDays"),
    ],
)
def test_what_an_older_definition_may_have_accepted_is_refused(spec: dict[str, Any], says: str) -> None:
    assert says in user(**spec).refusal


def test_rules_that_brokers_would_refuse_or_never_apply_are_refused() -> None:
    assert "say one of All" in refusal(acl("topic", "read"))
    assert "has no ClusterAction" in refusal(acl("topic", "ClusterAction"))
    assert "has no name" in refusal(acl("group", "Read", resource={"name": ""}))
    assert "is no IP address" in refusal(acl("topic", "Read", host="10.0.0.0/8"))
    assert "say one of literal, prefix" in refusal(acl("topic", "Read", resource={"patternType": "match"}))
    assert "say one of topic" in refusal({"resource": {}, "operations": ["Read"]})
    assert "say one of allow, deny" in refusal(acl("topic", "Read", type="maybe"))
    assert refusal(acl("topic", "All", host="fe80::1", type="deny", resource={"patternType": "prefix"})) == ""


def rules(**spec: Any) -> UserRules:
    status = spec.pop("status", {})
    meta = {"namespace": "shop", "name": "main", "uid": "c-1"}
    return parse_user_rules({"metadata": meta, "spec": spec, "status": status})


def test_users_get_the_internal_listener_with_their_authentication() -> None:
    found = rules(
        listeners=[
            {"name": "plain", "type": "Internal", "port": 9092},
            {"name": "out", "type": "NodePort", "port": 9094, "tls": True, "authentication": {"type": "tls"}},
            {"name": "in", "type": "Internal", "port": 9093, "tls": True, "authentication": {"type": "tls"}},
            {"name": "words", "type": "LoadBalancer", "port": 9095, "authentication": {"type": "scram-sha-512"}},
        ],
        status={"listeners": [{"name": "out", "bootstrap": "node:30000"}]},
    )
    by_certificate = found.listener_for(Login.TLS)
    assert by_certificate is not None
    assert (by_certificate.bootstrap, by_certificate.protocol) == ("main-bootstrap.shop.svc:9093", "SSL")
    assert found.listener_for(Login.TLS_EXTERNAL) == by_certificate
    by_password = found.listener_for(Login.SCRAM)
    assert by_password is not None
    assert (by_password.bootstrap, by_password.protocol) == ("", "SASL_PLAINTEXT")
    assert rules().listener_for(Login.TLS) is None


def test_a_name_is_what_the_listeners_rules_make_of_the_certificates() -> None:
    listeners = [{"name": "Out", "type": "NodePort", "port": 9094, "tls": True, "authentication": {"type": "tls"}}]
    mapping = "ssl.principal.mapping.rules"
    certified, spoken = user(authentication={"type": "tls"}), user()
    assert rules(listeners=listeners).name_of(certified) == "CN=a"
    of_all = rules(listeners=listeners, config={mapping: "RULE:^CN=(.*)$/$1/U"})
    assert (of_all.name_of(certified), of_all.name_of(spoken)) == ("A", "a")
    own = {f"listener.name.out.{mapping}": "RULE:^CN=b$/b/", mapping: "DEFAULT"}
    assert rules(listeners=listeners, config=own).name_of(certified) is None
    assert rules(listeners=listeners, config={mapping: "RULE:"}).name_of(certified) == "CN=a"


def test_super_users_are_for_the_clusters_own_namespace() -> None:
    found = rules(config={"super.users": "User:root; User:CN=x"}, authorization={"superUsers": ["admin", "User:ops"]})

    def is_reserved(name: str, namespace: str = "team", found: UserRules = found) -> bool:
        return found.is_reserved(replace(user(authentication={"type": "external"}, name=name), ref=Ref(namespace, "a")))

    assert [is_reserved(name) for name in ("root", "CN=x", "admin", "ops", "x")] == [True] * 4 + [False]
    assert not is_reserved("root", "shop")
    assert is_reserved("CN=main-operator,O=ottla.dev", found=rules()), "the operator's own name"


def test_a_certificate_is_reserved_if_any_listener_takes_it_for_a_super_users() -> None:
    listeners = [
        {"name": "a", "type": "Internal", "port": 9093, "tls": True, "authentication": {"type": "tls"}},
        {"name": "b", "type": "NodePort", "port": 9094, "tls": True, "authentication": {"type": "tls"}},
        {"name": "c", "type": "NodePort", "port": 9095, "tls": True, "authentication": {"type": "scram-sha-512"}},
    ]
    mapped = {"listener.name.b.ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/"}
    found = rules(listeners=listeners, config=mapped, authorization={"superUsers": ["User:admin"]})
    theirs = replace(user("admin", authentication={"type": "tls"}), ref=Ref("team", "admin"))
    assert (found.name_of(theirs), found.names_of(theirs)) == ("CN=admin", frozenset({"CN=admin", "admin"}))
    assert found.is_reserved(theirs)
    assert not found.is_reserved(replace(theirs, name="other"))
    at_c = {"listener.name.c.ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/"}
    assert rules(listeners=listeners, config=at_c).names_of(theirs) == {"CN=admin"}, "its name there is SASL's"


def in_force(generation: int = 3, **conditions: tuple[str, str]) -> bool:
    """Whether brokers run with generation 3, by a status with these conditions (status and reason)."""
    told = {"Rolling": ("False", "UpToDate"), "Ready": ("True", "BrokersServe"), **conditions}
    listed = [{"type": kind, "status": status, "reason": reason} for kind, (status, reason) in told.items()]
    meta = {"namespace": "shop", "name": "main", "uid": "c-1", "generation": 3}
    status = {"observedGeneration": generation, "conditions": listed}
    return parse_user_rules({"metadata": meta, "spec": {}, "status": status}).in_force


def test_rules_are_in_force_once_every_broker_was_started_with_the_present_spec() -> None:
    assert in_force()
    assert in_force(Ready=("False", "BrokersStarting"))
    assert not in_force(generation=2)
    assert not in_force(Rolling=("True", "Rolling"))
    assert not in_force(Rolling=("Unknown", "NotAsked"))
    assert not in_force(Ready=("False", "InvalidSpec"))
    assert not in_force(Progressing=("False", "InvalidSpec"))
    assert not rules().in_force, "a Cluster without a status"


def test_only_a_user_of_a_namespace_that_the_cluster_allows_keeps_a_name() -> None:
    own, broken = user(), user(authentication={"type": "plain"})
    theirs, theirs_broken = (replace(each, ref=Ref("team", "a")) for each in (own, broken))
    strict = rules(users={})
    assert strict.claims_of(own, ()) == {"a"}
    assert strict.claims_of(broken, ()) == {"a", "CN=a"}
    assert strict.claims_of(theirs, {"team"}) == strict.claims_of(theirs_broken, {"team"}) == frozenset()
    by_labels = rules(users={"allowedNamespaces": "Selector", "namespaceSelector": {"matchLabels": {"a": "b"}}})
    assert by_labels.claims_of(theirs, {"team"}) == {"a"}
    assert by_labels.claims_of(theirs, {"other"}) == frozenset()


def test_a_user_with_an_invalid_spec_keeps_the_mapped_name_of_its_certificate_and_no_super_users() -> None:
    broken = user(authentication={"type": "plain"})
    mapped = {"ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/U"}
    listener = {"name": "in", "type": "Internal", "port": 9093, "tls": True, "authentication": {"type": "tls"}}
    found = rules(listeners=[listener], users={"allowedNamespaces": "All"}, config=mapped | {"super.users": "User:a"})
    assert found.claims_of(broken, ()) == {"a", "CN=a", "A"}
    assert found.claims_of(replace(broken, ref=Ref("team", "a")), ()) == {"CN=a", "A"}


def test_namespaces_that_cant_be_listed_are_unknown_and_not_none() -> None:
    class Refusing:
        async def list(self, kind: str, namespace: str = "", labels: str = "") -> list[Object]:
            raise KubeError(403, "list", "forbidden")

    assert asyncio.run(selected_namespaces(Refusing(), AllowedNamespaces("shop", labels={"a": "b"}))) is None
    assert asyncio.run(selected_namespaces(Refusing(), AllowedNamespaces("shop"))) == frozenset()
