"""Requests of the topic and cluster APIs, and Apache Kafka's recorded answers, so that tests need no Java.

`python -m tests.peers.topic_exchanges` starts Apache Kafka and records the answers anew. The requests build on each
other. A string "id of NAME" in a request stands for that topic's id. In the answers, topic ids are replaced by such
strings, and addresses and the cluster's id by the names of their fields.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.peers.apache_kafka import ApacheKafka
from tests.peers.wire import Wire

RECORDED = Path(__file__).resolve().parents[1] / "unit/broker/api/topics_of_apache_kafka_4_3_1.json"
METADATA, CREATE, DELETE, GROW, ELECT, REASSIGN, REASSIGNMENTS, CLUSTER, UNREGISTER, DESCRIBE = (
    3, 19, 20, 37, 43, 45, 46, 60, 64, 75
)  # fmt: skip
SETTLE_SECONDS = 0.3  # a change has reached the broker's metadata after this time
NOBODYS = "id of nobody's"
UNSET = UUID(int=0)

Exchange = tuple[int, int, dict[str, Any]]
"""API key, version, request."""


def _new(
    name: str,
    count: int = 1,
    factor: int = 1,
    assignments: tuple[tuple[int, list[int]], ...] = (),
    **configs: str | None,
) -> dict[str, Any]:
    return {
        "name": name,
        "num_partitions": count,
        "replication_factor": factor,
        "assignments": [{"partition_index": index, "broker_ids": brokers} for index, brokers in assignments],
        "configs": [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()],
    }


def _create(*topics: dict[str, Any], version: int = 7, validate_only: bool = False, timeout: int = 10_000) -> Exchange:
    return CREATE, version, {"topics": list(topics), "timeout": timeout, "validate_only": validate_only}


def _delete(*topics: tuple[str | None, str | None]) -> Exchange:
    asked = [{"name": name, "topic_id": topic_id or UNSET} for name, topic_id in topics]
    return DELETE, 6, {"topics": asked, "timeout": 10_000}


def _delete_names(version: int, *names: str) -> Exchange:
    return DELETE, version, {"topic_names": list(names), "timeout": 10_000}


def _grow(*topics: tuple[str, int, list[list[int]] | None], validate_only: bool = False, version: int = 3) -> Exchange:
    asked = [
        {
            "name": name,
            "count": count,
            "assignments": None if replicas is None else [{"broker_ids": b} for b in replicas],
        }
        for name, count, replicas in topics
    ]
    return GROW, version, {"topics": asked, "timeout": 10_000, "validate_only": validate_only}


def _elect(kind: int, *topics: tuple[str, list[int]], version: int = 2) -> Exchange:
    asked = [{"topic": name, "partitions": indexes} for name, indexes in topics]
    return ELECT, version, {"election_type": kind, "topic_partitions": asked or None, "timeout": 10_000}


def _metadata(
    version: int, *names: str | None, everything: bool = False, create: bool = False, **more: Any
) -> Exchange:
    topics = [{"name": name, "topic_id": UNSET} for name in names]
    asked = None if everything and version else topics
    return METADATA, version, {"topics": asked, "allow_auto_topic_creation": create, **more}


def _by_id(version: int, *topics: tuple[str | None, str]) -> Exchange:
    asked = [{"name": name, "topic_id": topic_id} for name, topic_id in topics]
    return METADATA, version, {"topics": asked, "allow_auto_topic_creation": False}


def _reassign(
    *topics: tuple[str, dict[int, list[int] | None]], version: int = 1, allow_another_factor: bool = True
) -> Exchange:
    asked = [
        {
            "name": name,
            "partitions": [{"partition_index": index, "replicas": wanted} for index, wanted in replicas.items()],
        }
        for name, replicas in topics
    ]
    request = {"timeout": 10_000, "allow_replication_factor_change": allow_another_factor, "topics": asked}
    return REASSIGN, version, request


def _describe(*names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> Exchange:
    place = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    topics = [{"name": name} for name in names]
    return DESCRIBE, 0, {"topics": topics, "response_partition_limit": limit, "cursor": place}


EXCHANGES: tuple[Exchange, ...] = (
    # Creation.
    _create(_new("a", 2)),
    _create(_new("a", 2)),
    _create(_new("a", 0)),
    _create(_new("a", 2), validate_only=True),
    _create(_new("twice"), _new("twice"), _new("once")),
    _create(_new("twice"), _new("twice"), validate_only=True),
    _create(_new("defaults7", -1, -1)),
    _create(_new("defaults3", -1, -1), version=3),
    _create(_new("described", 3, retention_ms="77", cleanup_policy="compact"), version=5),
    _create(_new("x", 0)),
    _create(_new("x", -2)),
    _create(_new("x", 1, 0)),
    _create(_new("x", 1, -2)),
    _create(_new("x", 1, 3)),
    _create(_new("x", 0, 0)),
    _create(_new("")),
    _create(_new("."), _new("..")),
    _create(_new("a b"), _new("ä"), _new("a/b")),
    _create(_new("y" * 249), _new("y" * 250)),
    _create(_new("c.d")),
    _create(_new("c_d")),
    _create(_new("c_d", 0)),
    _create(_new("assigned", -1, -1, ((1, [0]), (0, [0])))),
    _create(_new("x", 2, -1, ((0, [0]), (1, [0])))),
    _create(_new("x", 0, -1, ((0, [0]),))),
    _create(_new("x", -1, 1, ((0, [0]),))),
    _create(_new("x", -1, -1, ((0, [0]), (2, [0])))),
    _create(_new("x", -1, -1, ((1, [0]),))),
    _create(_new("x", -1, -1, ((0, [0]), (0, [0])))),
    _create(_new("x", -1, -1, ((0, [0, 0]),))),
    _create(_new("x", -1, -1, ((0, [99]),))),
    _create(_new("x", -1, -1, ((0, []),))),
    _create(_new("x", -1, -1, ((0, [0]), (1, [])))),
    _create(_new("x", -1, -1, ((0, [-1]),))),
    _create(_new("x", no_such="1")),
    _create(_new("x", 0, no_such="1")),
    _create(_new("a", no_such="1")),
    _create(_new("x", retention_ms=None)),
    _create(_new("x", min_insync_replicas="0")),
    _create(_new("checked", 3), validate_only=True),
    _create(_new("checked", -1, -1), validate_only=True),
    _create(),
    _create(_new("old", 1), version=2),
    _create(_new("__cluster_metadata")),
    _create(_new("__transaction_state")),
    _create(_new("x", 10_001), validate_only=True),
    _create(_new("x"), timeout=0),
    _create(_new("x"), timeout=-1),
    _metadata(12, everything=True),
    # More partitions.
    _create(_new("g", 2)),
    _grow(("g", 3, None)),
    _grow(("g", 3, None)),
    _grow(("g", 1, None)),
    _grow(("g", -1, None)),
    _grow(("g", 0, None)),
    _grow(("missing", 3, None)),
    _grow(("", 3, None)),
    _grow(("g", 5, None), ("g", 6, None), ("a", 3, None)),
    _grow(("g", 4, [[0]])),
    _grow(("g", 5, [[0], [0]])),
    _grow(("g", 7, [[0]])),
    _grow(("g", 6, [])),
    _grow(("g", 5, [[77]])),
    _grow(("g", 5, [[0, 77]])),
    _grow(("g", 5, [[0, 0]])),
    _grow(("g", 5, [[]])),
    _grow(("g", 9, None), validate_only=True),
    _grow(("g", 5, None), version=0),
    _grow(),
    # Descriptions.
    *(_metadata(version, everything=True) for version in range(14)),
    *(_metadata(version) for version in range(1, 14)),
    *(_metadata(version, "a") for version in range(14)),
    _metadata(9, "a", include_cluster_authorized_operations=True, include_topic_authorized_operations=True),
    _metadata(13, "a", include_topic_authorized_operations=True),
    _metadata(13, "missing", include_topic_authorized_operations=True),
    _metadata(12, "a", "a"),
    _metadata(12, "missing2", "g", "missing1", "a"),
    _metadata(12, "a b", "", "."),
    _metadata(12, "a b", "", ".", create=True),
    _metadata(12, "c_d", create=True),
    _metadata(12, "__consumer_offsets"),
    _metadata(12, "__cluster_metadata", create=True),
    _metadata(12, None),
    _by_id(12, (None, "id of a")),
    _by_id(12, (None, NOBODYS)),
    _by_id(12, ("other", "id of a")),
    _by_id(12, (None, "id of a"), (None, "id of a"), (None, "id of g")),
    _by_id(10, ("a", "id of a")),
    _by_id(11, ("a", "id of a")),
    *((CLUSTER, v, {"include_cluster_authorized_operations": bool(flag)}) for v in range(3) for flag in range(2)),
    (CLUSTER, 1, {"endpoint_type": 2}),
    (CLUSTER, 1, {"endpoint_type": 3}),
    (CLUSTER, 2, {"include_fenced_brokers": True}),
    _describe("g"),
    _describe("g", "a", "g"),
    _describe("g", limit=2),
    _describe("g", limit=0),
    _describe("g", limit=-4),
    _describe("missing"),
    _describe("g", "a", limit=2, cursor=("g", 1)),
    _describe("g", "a", limit=4, cursor=("a", 1)),
    _describe("g", "a", limit=2, cursor=("g", 7)),
    _describe("g", "a", limit=2, cursor=("f", 1)),
    _describe("g", "a", limit=2, cursor=("g", -1)),
    _describe(),
    _describe(limit=4),
    _describe(limit=4, cursor=("c", 5)),
    _elect(0, ("g", [0, 1])),
    _elect(1, ("g", [0])),
    _elect(2, ("g", [0])),
    _elect(0, ("g", [99]), ("missing", [0])),
    _elect(0),
    _elect(0, ("g", [0, 0])),
    _elect(0, ("g", [0]), version=0),
    _elect(0, ("g", [0]), version=1),
    (REASSIGNMENTS, 0, {"topics": None, "timeout": 10_000}),
    (REASSIGNMENTS, 0, {"topics": [{"name": "g", "partition_indexes": [0, 99]}], "timeout": 10_000}),
    (REASSIGNMENTS, 0, {"topics": [{"name": "missing", "partition_indexes": [0]}], "timeout": 10_000}),
    _reassign(("g", {0: [0]})),
    _reassign(("g", {0: [0], 1: [99]}), ("missing", {0: [0]}), ("a", {7: [0]})),
    _reassign(("g", {0: [0, 0], 1: []})),
    _reassign(("g", {0: [0, 99]})),
    _reassign(("g", {0: [-1]})),
    _reassign(("g", {0: None, 99: None}), ("missing", {0: None})),
    _reassign(("g", {0: [0]}), allow_another_factor=False),
    _reassign(("g", {0: []}), allow_another_factor=False),
    _reassign(("g", {0: [0, 99]}), allow_another_factor=False),
    _reassign(("g", {0: None}), allow_another_factor=False),
    _reassign(("g", {0: [0]}), ("g", {0: [0, 0]})),
    _reassign(("g", {0: [0], 1: [98]}), version=0),
    _reassign(),
    (REASSIGNMENTS, 0, {"topics": None, "timeout": 10_000}),
    (UNREGISTER, 0, {"broker_id": 99}),
    (UNREGISTER, 0, {"broker_id": -1}),
    # Deletion.
    *(_create(_new(f"d{number}", 2)) for number in range(9)),
    _delete(("d0", None)),
    _delete((None, "id of d1")),
    _delete(("d2", "id of d2")),
    _delete((None, None)),
    _delete(("missing", None), (None, NOBODYS)),
    _delete(("d2", None), ("d2", None)),
    _delete(("d2", None), (None, "id of d2")),
    _delete((None, "id of d3"), (None, "id of d3")),
    _delete(),
    _delete_names(1, "d4", "missing"),
    _delete_names(3, "d5", "missing"),
    _delete_names(5, "d6", "missing", "", "a b"),
    _delete_names(5, "d7", "d7"),
    _metadata(12, everything=True),
    _create(_new("d0", 1)),
    _metadata(12, "d0"),
)

Ask = Callable[[int, int, dict[str, Any]], Awaitable[Any]]
"""Asks a broker: (API key, version, request) → kio's object of the answer."""


async def play(ask: Ask, settle: Callable[[], Awaitable[None]]) -> list[Any]:
    """A broker's answers to all requests, in their order. Values that differ from run to run are replaced."""
    names: dict[UUID, str] = {}
    answers = []
    for key, version, request in EXCHANGES:
        answer = await ask(key, version, _resolved(request, names))
        if key in (CREATE, DELETE, GROW):
            await settle()
            everything = await ask(METADATA, 12, {"topics": None, "allow_auto_topic_creation": False})
            names |= {topic.topic_id: topic.name for topic in everything.topics}
        answers.append(_plain(asdict(answer), names))
    return answers


def _resolved(value: Any, names: dict[UUID, str]) -> Any:
    """The request, with topic ids in place of texts like "id of orders". If several topics had the same name, the
    latest one's id is taken."""
    if isinstance(value, dict):
        return {key: _resolved(inner, names) for key, inner in value.items()}
    if isinstance(value, list):
        return [_resolved(inner, names) for inner in value]
    if isinstance(value, str) and value.startswith("id of "):
        ids = {name: topic_id for topic_id, name in names.items()}
        return ids.get(value.removeprefix("id of "), UUID(int=99))
    return value


def _plain(value: Any, names: dict[UUID, str], name: str = "") -> Any:
    """An answer as JSON data, with sorted lists of structs."""
    if isinstance(value, dict):
        return {key: _plain(inner, names, key) for key, inner in value.items() if key != "throttle_time"}
    if isinstance(value, UUID):
        return f"id of {names.get(value, 'a topic that is not there')}"
    if name in ("cluster_id", "port", "host") and value:
        return name
    if isinstance(value, list | tuple):
        items = [_plain(inner, names) for inner in value]
        structs = bool(items) and isinstance(items[0], dict)
        return sorted(items, key=lambda item: json.dumps(item, sort_keys=True)) if structs else items
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def main() -> None:
    """Records Apache Kafka's answers."""
    import asyncio

    async def settle() -> None:
        time.sleep(SETTLE_SECONDS)  # noqa: ASYNC251  (nothing else runs on this loop)

    with tempfile.TemporaryDirectory() as folder:
        kafka = ApacheKafka(Path(folder) / "kafka")
        try:
            with Wire(kafka.bootstrap) as wire:

                async def ask(key: int, version: int, request: dict[str, Any]) -> Any:
                    return wire.call(key, version, request)

                answers = asyncio.run(play(ask, settle))
        finally:
            kafka.stop()
    RECORDED.write_text("[\n" + ",\n".join(json.dumps(answer) for answer in answers) + "\n]\n")


if __name__ == "__main__":
    main()
