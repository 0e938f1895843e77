"""Mistakes in Topics are refused at apply by the API server's own code, each in one sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.peers.helm import objections

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("orders", {}, "spec.cluster: Required"),
    ("x" * 252, {"cluster": {"name": "main"}}, "at most 249"),
    ("orders", {"topicName": "a b"}, "topicName"),
    ("orders", {"topicName": ".."}, "can't be names"),
    ("orders", {"topicName": "__consumer_offsets"}, "the brokers' own"),
    ("orders", {"partitions": 0}, "greater than or equal to 1"),
    ("orders", {"partitions": 10_001}, "less than or equal to 10000"),
    ("orders", {"partition": 3}, "unknown field spec.partition"),
    ("orders", {"replicationFactor": 0}, "greater than or equal to 1"),
    ("orders", {"config": {"retention.mss": "1"}}, "topics have no setting retention.mss"),
    ("orders", {"config": {"ottla.owner": "me"}}, "topics have no setting ottla.owner"),
    ("orders", {"config": {"preallocate": True}}, "integer,string"),
    (
        "orders",
        {"config": {"min.insync.replicas": 3}, "replicationFactor": 2},
        "no record can have more copies than replicas",
    ),
    (
        "orders",
        {"config": {"min.insync.replicas": "3"}, "replicationFactor": 2},
        "no record can have more copies than replicas",
    ),
    ("orders", {"config": {"min.insync.replicas": "two"}}, "must be a whole number, at least 1"),
    ("orders", {"deletionPolicy": "Keep"}, "deletionPolicy"),
]
TAKEN: list[dict[str, Any]] = [
    {},
    {"topicName": "Orders.v1_x-y", "partitions": 10_000, "replicationFactor": 3, "paused": True},
    {"config": {"retention.ms": 1, "cleanup.policy": "compact", "preallocate": "true"}, "deletionPolicy": "Retain"},
    {"config": {"min.insync.replicas": "2"}, "replicationFactor": 2},
]


def said(name: str, spec: dict[str, Any]) -> str:
    document = {
        "apiVersion": "ottla.dev/v1alpha1",
        "kind": "Topic",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": spec,
    }
    return "\n".join(objections(json.dumps(document)))


@pytest.mark.parametrize(("name", "spec", "says"), REFUSED, ids=[row[2] for row in REFUSED])
def test_refused(name: str, spec: dict[str, Any], says: str) -> None:
    cluster = {"cluster": {"name": "main"}} if spec else {}
    assert says in said(name, cluster | spec)


@pytest.mark.parametrize("spec", TAKEN, ids=lambda spec: ",".join(spec))
def test_taken(spec: dict[str, Any]) -> None:
    assert said("orders", {"cluster": {"name": "main"}} | spec) == ""
