"""The Topic resources in memory: how the watch's events and lists change them, and which of two versions is newer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.operator.kube import KubeError
from ottla.operator.objects import Ref
from ottla.operator.resources import LISTED_AGAIN_S
from ottla.operator.spec.topic import DeletionPolicy
from ottla.operator.spec.topic_rules import parse_topic_rules
from ottla.operator.topic_resources import TopicResources

MAIN = Ref("shop", "main")


def body(name: str, uid: str = "u-1", status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"namespace": "shop", "name": name, "uid": uid, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"metadata": metadata, "spec": {"cluster": {"name": "main"}, **spec}, "status": status or {}}


class Lists:
    """Answers a request for a list. The answer has the objects that were in `found` before the call of `meanwhile`,
    which may change `found`."""

    def __init__(self, *found: dict[str, Any]) -> None:
        self.found = list(found)
        self.asked: list[str] = []
        self.refusal: KubeError | None = None
        self.meanwhile = lambda: None

    async def list(self, kind: str, namespace: str = "", labels: str = "") -> list[dict[str, Any]]:
        self.asked.append(namespace)
        found = list(self.found)
        self.meanwhile()
        if self.refusal is not None:
            raise self.refusal
        return found


def names(resources: TopicResources) -> list[str]:
    return sorted(resource.ref.name for resource in resources.of(MAIN))


def test_listed_once_and_then_now_and_then() -> None:
    lists = Lists(body("a"))
    resources = TopicResources(lists)
    for now in (0.0, 10.0, LISTED_AGAIN_S, LISTED_AGAIN_S + 1):
        asyncio.run(resources.up_to_date(now))
    assert lists.asked == ["", ""]
    asyncio.run(resources.up_to_date(LISTED_AGAIN_S + 1, within_s=0.0))
    assert len(lists.asked) == 2, "a list that was made at the same time isn't made again"
    assert names(resources) == ["a"]


def test_versions_that_a_list_has_are_told() -> None:
    listed = body("a")
    listed["metadata"]["resourceVersion"] = "7"
    read: list[tuple[Ref, str]] = []
    resources = TopicResources(Lists(listed), read=lambda ref, version: read.append((ref, version)))
    asyncio.run(resources.up_to_date(0.0))
    assert read == [(Ref("shop", "a"), "7")]


def test_only_the_namespaces_that_are_watched_are_listed() -> None:
    lists = Lists()
    asyncio.run(TopicResources(lists, frozenset({"b", "a"})).up_to_date(0.0))
    assert lists.asked == ["a", "b"]


def test_what_the_watch_tells_meanwhile_is_newer_than_the_list() -> None:
    lists = Lists(body("deleted"), body("changed", partitions=1))
    resources = TopicResources(lists)

    def meanwhile() -> None:
        resources.seen("DELETED", body("deleted"))
        resources.seen("MODIFIED", body("changed", partitions=2))
        resources.seen("ADDED", body("new"))

    lists.meanwhile = meanwhile
    asyncio.run(resources.up_to_date(0.0))
    assert names(resources) == ["changed", "new"]
    assert {resource.partitions for resource in resources.of(MAIN)} == {2, None}


def test_no_such_kind_is_no_resources_and_other_trouble_is_trouble() -> None:
    lists = Lists()
    resources = TopicResources(lists)
    resources.seen("ADDED", body("a"))
    lists.refusal = KubeError(500, "listing", "no")
    with pytest.raises(KubeError):
        asyncio.run(resources.up_to_date(0.0))
    assert names(resources) == ["a"]
    lists.refusal = KubeError(404, "listing", "no such kind")
    asyncio.run(resources.up_to_date(0.0))
    assert names(resources) == []


def test_a_status_alone_asks_for_no_sweep() -> None:
    resources = TopicResources(Lists())
    assert resources.seen(None, body("a")) == MAIN
    assert resources.seen("MODIFIED", body("a", status={"message": "x"})) is None
    assert resources.seen("MODIFIED", body("a", partitions=2)) == MAIN
    assert resources.seen("DELETED", body("a", partitions=2, deletionPolicy="Retain")) == MAIN
    assert resources.vanished == {"u-1": DeletionPolicy.RETAIN}
    assert names(resources) == []


def test_the_end_of_one_that_was_made_anew_isnt_the_end_of_the_new_one() -> None:
    resources = TopicResources(Lists())
    resources.seen("ADDED", body("a", uid="u-2"))
    resources.seen("DELETED", body("a", uid="u-1"))
    assert names(resources) == ["a"]


def test_a_deletion_that_only_a_list_tells_is_one_too() -> None:
    """If a watch ends and is begun anew, it reports no deletions from the time in between."""
    lists = Lists(body("a", uid="u-2"))
    resources = TopicResources(lists)
    resources.seen("ADDED", body("a", uid="u-1", deletionPolicy="Retain"))
    resources.seen("ADDED", body("b", uid="u-3"))
    asyncio.run(resources.up_to_date(0.0))
    assert resources.vanished == {"u-1": DeletionPolicy.RETAIN, "u-3": DeletionPolicy.DELETE}
    resources.seen(None, body("a", uid="u-4"))
    assert resources.vanished["u-2"] is DeletionPolicy.DELETE


def test_what_another_operator_has_answered_is_known_by_the_first_sight() -> None:
    def told(reason: str) -> dict[str, Any]:
        return {"conditions": [{"type": "Ready", "status": "False", "reason": reason}]}

    listed = body("listed", uid="u-4", status=told("NotSupported"))
    resources = TopicResources(Lists(listed, body("new", uid="u-5")))
    resources.seen(None, body("a", uid="u-1", status=told("NotSupported")))
    resources.seen(None, body("b", uid="u-2", status=told("Replacing")))
    resources.seen("ADDED", body("c", uid="u-3"))
    resources.seen("MODIFIED", body("c", uid="u-3", status=told("InvalidSpec")))
    assert resources.answered == {"u-1"}
    resources.seen("DELETED", body("a", uid="u-1"))
    asyncio.run(resources.up_to_date(0.0))
    assert resources.answered == {"u-4"}


def test_what_a_cluster_says_of_its_topics() -> None:
    annotations = {"ottla.dev/confirm-topic-deletion": "abc"}
    meta = {"namespace": "shop", "name": "main", "uid": "c-1", "annotations": annotations}
    rules = parse_topic_rules({"metadata": meta, "spec": {}})
    assert rules.confirmed == "abc"
    assert [rules.namespaces.has(namespace, ()) for namespace in ("shop", "team")] == [True, False]
    spec = {
        "listeners": [{"name": "out", "port": 9094, "type": "NodePort"}, {"name": "in", "port": 9095}],
        "topics": {"allowedNamespaces": "Selector", "namespaceSelector": {"matchLabels": {"a": "b"}}},
        "scaling": {"throttleBytesPerSecond": 5000},
    }
    rules = parse_topic_rules({"metadata": meta, "spec": spec})
    assert [rules.namespaces.has(namespace, {"team"}) for namespace in ("team", "other")] == [True, False]
    assert rules.throttle_bytes_per_second == 5000
    everywhere = parse_topic_rules({"metadata": meta, "spec": {"topics": {"allowedNamespaces": "All"}}})
    assert everywhere.namespaces.has("anywhere", ())
