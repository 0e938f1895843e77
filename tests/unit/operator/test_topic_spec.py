"""A Topic resource as the operator reads it: defaults for omitted fields, and specs that are refused in one
sentence."""

from __future__ import annotations

from typing import Any

import pytest

from ottla.operator.objects import Ref
from ottla.operator.spec.topic import DeletionPolicy, parse_topic


def topic(name: str = "orders", status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"namespace": "shop", "name": name, "uid": "u-1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": metadata, "spec": {"cluster": {"name": "main"}, **spec}, "status": status or {}}


def test_what_is_left_out() -> None:
    parsed = parse_topic(topic())
    assert (parsed.topic, parsed.cluster, parsed.partitions, parsed.replication_factor) == (
        "orders",
        Ref("shop", "main"),
        None,
        None,
    )
    assert parsed.deletion_policy is DeletionPolicy.DELETE
    assert (parsed.paused, parsed.deleting, parsed.ready, parsed.refusal) == (False, False, False, "")


def test_what_is_said() -> None:
    parsed = parse_topic(
        topic(
            topicName="Orders.v1",
            cluster={"name": "main", "namespace": "kafka"},
            partitions=6,
            replicationFactor=3,
            config={"retention.ms": 1000, "retention.bytes": 1e12, "preallocate": False, "cleanup.policy": "compact"},
            deletionPolicy="Retain",
            paused=True,
            status={"conditions": [{"type": "Ready", "status": "True"}]},
        )
    )
    assert parsed.topic == "Orders.v1"
    assert parsed.cluster == Ref("kafka", "main")
    assert parsed.config == {
        "retention.ms": "1000",
        "retention.bytes": "1000000000000",
        "preallocate": "false",
        "cleanup.policy": "compact",
    }
    assert parsed.deletion_policy is DeletionPolicy.RETAIN
    assert (parsed.paused, parsed.ready, parsed.refusal) == (True, True, "")


REFUSED = [
    ({"config": {"retention.msec": "1"}}, "retention.ms"),
    ({"config": {"retention.ms": "soon"}}, "must be a whole number"),
    ({"config": {"cleanup.policy": "shred"}}, "must be among"),
    ({"config": {"ottla.owner": "a/b/c/d"}}, "take it out"),
    ({"config": {"min.insync.replicas": "3"}, "replicationFactor": 2}, "lower the one or raise the other"),
    ({"topicName": "__consumer_offsets"}, "choose another topicName"),
    ({"topicName": "a b"}, "say a topicName"),
    ({"topicName": "x" * 250}, "say a topicName"),
    ({"partitions": 0}, "say a number"),
    ({"replicationFactor": "three"}, "say a number"),
]


@pytest.mark.parametrize(("spec", "says"), REFUSED)
def test_what_is_refused(spec: dict[str, Any], says: str) -> None:
    refusal = parse_topic(topic(**spec)).refusal
    assert says in refusal
    assert "\n" not in refusal
