"""Changes of Clusters, Topics and Users that can't be followed are refused at apply, by the API server's own code."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.peers.helm import objections

# A fresh machine first builds the program that validates.
pytestmark = pytest.mark.timeout(2400)

USER: dict[str, Any] = {"cluster": {"name": "main"}, "authentication": {"type": "tls"}}
TOPIC: dict[str, Any] = {"cluster": {"name": "main"}, "topicName": "orders", "partitions": 3}
STORAGE: dict[str, Any] = {"size": "10Gi"}
POOL: dict[str, Any] = {"name": "a", "firstId": 100, "replicas": 2}
OTHER_POOL: dict[str, Any] = {"name": "b", "firstId": 200, "replicas": 1}
REPLICAS: dict[str, Any] = {"brokers": {"replicas": 3, "storage": STORAGE}}
POOLS: dict[str, Any] = {"brokers": {"storage": STORAGE, "pools": [POOL]}}
EXTERNAL: dict[str, Any] = {**REPLICAS, "metadata": {"external": {"endpoints": ["etcd:2379"]}}}


def said(kind: str, *specs: dict[str, Any]) -> str:
    """The API server's messages when a resource is applied with each of these specs, one after the other."""
    documents = [
        {"apiVersion": "ottla.dev/v1alpha1", "kind": kind, "metadata": {"name": "one"}, "spec": spec} for spec in specs
    ]
    return "\n".join(objections("\n---\n".join(map(json.dumps, documents))))


def with_storage(**fields: Any) -> dict[str, Any]:
    return {"brokers": {"replicas": 3, "storage": fields}}


def with_etcd(**fields: Any) -> dict[str, Any]:
    return {**REPLICAS, "metadata": {"etcd": fields}}


def with_listener(**fields: Any) -> dict[str, Any]:
    return {**REPLICAS, "listeners": [{"name": "a", "port": 9092, "type": "Internal", **fields}]}


VOLUMES = with_storage(volumes=[{"size": "10Gi"}, {"size": "20Gi"}])


@pytest.mark.parametrize(
    ("kind", "before", "after", "says"),
    [
        ("Topic", TOPIC, {**TOPIC, "partitions": 2}, "can't become fewer"),
        ("Topic", TOPIC, {**TOPIC, "cluster": {"name": "other"}}, "can't move to another cluster"),
        ("Topic", TOPIC, {**TOPIC, "cluster": {"name": "main", "namespace": "b"}}, "can't move to another cluster"),
        ("Topic", TOPIC, {**TOPIC, "topicName": "other"}, "can't be renamed"),
        ("Topic", TOPIC, {"cluster": {"name": "main"}, "partitions": 3}, "can't be renamed"),
        ("User", USER, {**USER, "cluster": {"name": "other"}}, "cluster can't change"),
        ("User", USER, {**USER, "cluster": {"name": "main", "namespace": "b"}}, "cluster can't change"),
        ("Cluster", REPLICAS, with_storage(size="5Gi"), "can't shrink"),
        ("Cluster", REPLICAS, with_storage(size="10Gi", className="fast"), "class of a volume can't"),
        ("Cluster", REPLICAS, with_storage(volumes=[{"size": "9Gi"}, {"size": "9Gi"}]), "can't shrink"),
        ("Cluster", REPLICAS, with_storage(volumes=[{"size": "10Gi", "className": "fast"}]), "class of a volume can't"),
        ("Cluster", VOLUMES, with_storage(size="9Gi"), "can't shrink"),
        ("Cluster", VOLUMES, with_storage(size="10Gi", className="fast"), "class of a volume can't"),
        ("Cluster", VOLUMES, with_storage(volumes=[{"id": 1, "size": "19Gi"}]), "can't shrink"),
        ("Cluster", VOLUMES, with_storage(volumes=[{"id": 4, "size": "1Gi"}, {"size": "1Gi"}]), "either each volume"),
        ("Cluster", VOLUMES, with_storage(volumes=[{"id": 4, "size": "1Gi"}] * 2), "an id of its own"),
        ("Cluster", VOLUMES, with_storage(volumes=[{"size": "10Gi"}, {"size": "10Gi"}]), "can't shrink"),
        (
            "Cluster",
            VOLUMES,
            with_storage(volumes=[{"size": "10Gi", "className": "fast"}, {"size": "20Gi"}]),
            "class of a volume can't change",
        ),
        ("Cluster", REPLICAS, POOLS, "name one pool broker"),
        ("Cluster", REPLICAS, EXTERNAL, "can't change from metadata.etcd to metadata.external"),
        ("Cluster", REPLICAS, {**REPLICAS, "metadata": {"prefix": "/x/"}}, "prefix can't change"),
        ("Cluster", with_etcd(tls=False), with_etcd(tls=True), "metadata.etcd.tls can't change"),
        ("Cluster", with_listener(), with_listener(tls=True), "tls can't change"),
        (
            "Cluster",
            with_listener(),
            with_listener(authentication={"type": "scram-sha-512"}),
            "authentication can't change to or from scram-sha-512",
        ),
        ("Cluster", EXTERNAL, REPLICAS, "can't change from metadata.etcd to metadata.external"),
        ("Cluster", POOLS, {"brokers": {"storage": STORAGE, "pools": [{**POOL, "firstId": 200}]}}, "firstId can't"),
    ],
)
def test_refused(kind: str, before: dict[str, Any], after: dict[str, Any], says: str) -> None:
    assert said(kind, before) == ""
    assert says in said(kind, before, after)


@pytest.mark.parametrize(
    ("kind", "before", "after"),
    [
        ("Topic", TOPIC, {**TOPIC, "partitions": 5, "paused": True}),
        ("Topic", TOPIC, {"cluster": {"name": "main"}, "topicName": "orders"}),
        ("Cluster", REPLICAS, with_storage(size="10240Mi")),
        ("Cluster", REPLICAS, with_storage(size="1Ti")),
        ("Cluster", VOLUMES, with_storage(volumes=[{"size": "11Gi"}, {"size": "20Gi"}, {"size": "1Gi"}])),
        ("Cluster", VOLUMES, with_storage(volumes=[{"size": "10Gi"}])),
        ("Cluster", VOLUMES, with_storage(volumes=[{"id": 1, "size": "20Gi"}])),
        ("Cluster", VOLUMES, with_storage(volumes=[{"id": 1, "size": "20Gi"}, {"id": 0, "size": "10Gi"}])),
        ("Cluster", VOLUMES, with_storage(size="10Gi")),
        ("Cluster", REPLICAS, with_storage(volumes=[{"size": "10Gi"}, {"size": "1Gi", "className": "fast"}])),
        ("Cluster", REPLICAS, with_storage(volumes=[{"id": 1, "size": "1Gi", "className": "fast"}])),
        ("Cluster", POOLS, {"brokers": {"storage": STORAGE, "pools": [{**POOL, "replicas": 0}, OTHER_POOL]}}),
        ("Cluster", with_etcd(), with_etcd(tls=True)),
        ("Cluster", with_etcd(tls=True), with_etcd()),
        ("Cluster", REPLICAS, {**REPLICAS, "internalTls": False}),
        ("Cluster", {**REPLICAS, "internalTls": False}, {**REPLICAS, "authorization": {"type": "simple"}}),
        ("Cluster", with_listener(tls=True), with_listener(tls=True, authentication={"type": "tls"})),
        ("Cluster", with_listener(tls=True), with_listener(tls=True, certificate={"secretName": "a"})),
    ],
)
def test_taken(kind: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    assert said(kind, before, after) == ""
