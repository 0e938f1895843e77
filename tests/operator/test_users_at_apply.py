"""Mistakes in Users are refused at apply by the API server's own code, each in one sentence."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from ottla.operator.certificates import encoded
from ottla.operator.objects import Ref
from ottla.operator.plan.user_secret import user_secret
from ottla.operator.plan.user_status import Outcome, user_status
from ottla.operator.spec.user import Login, UserResource
from tests.peers.helm import objections

USER = UserResource(Ref("shop", "shop"), "u-1", "2026-01-01T00:00:00Z", 1, Ref("shop", "main"), "shop", Login.TLS)
TLS: dict[str, Any] = {"type": "tls"}
SCRAM: dict[str, Any] = {"type": "scram-sha-512"}
SOURCE = {"valueFrom": {"secretKeyRef": {"name": "vault", "key": "shop"}}}


def rules(*acls: dict[str, Any]) -> dict[str, Any]:
    return {"type": "simple", "acls": list(acls)}


def rule(kind: str, *operations: str, **resource: Any) -> dict[str, Any]:
    named = {} if kind == "cluster" else {"name": "orders"}
    return {"resource": {"type": kind, **named, **resource}, "operations": list(operations)}


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("shop", {"authentication": None}, "spec.authentication: Required"),
    ("shop", {"authentication": {}}, "spec.authentication.type: Required"),
    ("shop", {"authentication": {"type": "plain"}}, "Unsupported value"),
    ("x" * 65, {}, "say a shorter spec.name"),
    ("shop", {"name": "a,b"}, "only with authentication external"),
    ("shop", {"name": "x" * 65}, "only with authentication external"),
    ("shop", {"authentication": {"type": "tls-external"}, "name": "CN=shop"}, "only with authentication external"),
    ("shop", {"authentication": {"type": "external"}, "name": "*"}, "stands for all users"),
    ("shop", {"authentication": SCRAM | {"validityDays": 5}}, "only for certificates that the operator makes"),
    ("shop", {"authentication": TLS | {"validityDays": 20}}, "renewalDays (default: 30) has to be less"),
    ("shop", {"authentication": TLS | {"renewalDays": 365}}, "renewalDays (default: 30) has to be less"),
    ("shop", {"authentication": TLS | {"password": SOURCE}}, "password is only for the type scram-sha-512"),
    ("shop", {"authentication": SCRAM | {"password": {"value": "secret"}}}, "unknown field"),
    ("shop", {"authorization": {"type": "opa", "acls": []}}, "Unsupported value"),
    ("shop", {"authorization": rules(rule("topic"))}, "should have at least 1 items"),
    ("shop", {"authorization": rules(rule("topic", "read"))}, "Unsupported value"),
    ("shop", {"authorization": rules(rule("topic", "ClusterAction"))}, "operations: a topic has All, Read"),
    ("shop", {"authorization": rules(rule("group", "Write"))}, "operations: a group has All, Read"),
    ("shop", {"authorization": rules(rule("cluster", "Read"))}, "operations: the cluster has All, Create"),
    ("shop", {"authorization": rules(rule("transactionalId", "Read"))}, "operations: a transactional id has"),
    ("shop", {"authorization": rules(rule("delegationToken", "Read"))}, "operations: a delegation token has"),
    ("shop", {"authorization": rules(rule("user", "Read"))}, "operations: a user has All, CreateTokens"),
    (
        "shop",
        {"authorization": rules(rule("cluster", "Alter", name="kafka-cluster"))},
        "except cluster, which has none",
    ),
    (
        "shop",
        {"authorization": rules({"resource": {"type": "topic"}, "operations": ["Read"]})},
        "each type needs a name",
    ),
    ("shop", {"authorization": rules(rule("cluster", "Alter", patternType="prefix"))}, "the cluster has no prefix"),
    ("shop", {"authorization": rules(rule("topic", "Read") | {"host": "example.com"})}, "host"),
    ("shop", {"authorization": rules(rule("topic", "Read") | {"host": "10.0.0.0/8"})}, "host"),
    ("shop", {"quotas": {"producerByteRate": 0}}, "greater than or equal to 1"),
    ("shop", {"quotas": {"connectionCreationRate": 1}}, "unknown field"),
]
TAKEN: list[dict[str, Any]] = [
    {},
    {"name": "Shop.v1_x-y@example.com/a", "authentication": TLS | {"validityDays": 20, "renewalDays": 5}},
    {"name": "CN=shop,O=Example GmbH", "authentication": {"type": "external"}},
    {"authentication": SCRAM | {"password": SOURCE}},
    {
        "authorization": rules(
            rule("topic", "All", name="*"),
            rule("topic", "Read", "Describe", patternType="prefix") | {"host": "10.0.0.1", "type": "deny"},
            rule("group", "Read") | {"host": "fe80::1"},
            rule("cluster", "Create", "IdempotentWrite"),
            rule("transactionalId", "Write"),
            rule("delegationToken", "Describe"),
            rule("user", "CreateTokens", name="User:alice"),
        )
    },
    {
        "quotas": {
            "producerByteRate": 1 << 40,
            "consumerByteRate": 1,
            "requestPercentage": 250,
            "controllerMutationRate": 0.5,
        }
    },
]


def said(name: str, spec: dict[str, Any], **more: Any) -> str:
    whole = {"cluster": {"name": "main"}, "authentication": TLS} | spec
    document = {
        "apiVersion": "ottla.dev/v1alpha1",
        "kind": "User",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {field: value for field, value in whole.items() if value is not None},
        **more,
    }
    return "\n".join(objections(json.dumps(document)))


@pytest.mark.parametrize(("name", "spec", "says"), REFUSED, ids=[f"{row[2]}-{at}" for at, row in enumerate(REFUSED)])
def test_refused(name: str, spec: dict[str, Any], says: str) -> None:
    assert says in said(name, spec)


@pytest.mark.parametrize("spec", TAKEN, ids=lambda spec: ",".join(spec))
def test_taken(spec: dict[str, Any]) -> None:
    assert said("shop", spec) == ""


def test_every_field_of_a_status_is_known() -> None:
    now = datetime(2026, 5, 1, 12, tzinfo=UTC)
    outcome = Outcome(False, "NoAuthority", "wait", "CN=shop", "shop", now)
    assert said("shop", {}, status=user_status(USER, outcome, now)) == ""
    assert "unknown field" in said("shop", {}, status={"user": "shop"})


def test_an_api_server_takes_a_users_secret() -> None:
    data = encoded({"user.crt": b"c", "sasl.jaas.config": b"j", "spark-options.json": b"{}"})
    assert objections(json.dumps(user_secret(replace(USER, renew="2026-05-01 12:00"), data, "mark"))) == []
