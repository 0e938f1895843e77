"""A Topic's status: its content and its times; it is written only if it differs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from ottla.operator.objects import Ref, merge_patch
from ottla.operator.plan.topic import KafkaPartition, KafkaTopic, Moving
from ottla.operator.plan.topic_status import Outcome, topic_status
from ottla.operator.spec.topic import TopicResource

RESOURCE = TopicResource(Ref("shop", "orders"), "u-1", "2026-01-01T00:00:00Z", 3, Ref("shop", "main"), "orders.v1")
TOPIC = KafkaTopic("orders.v1", UUID(int=5), {0: KafkaPartition((0, 1), frozenset({0, 1}))})
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
LATER = datetime(2026, 5, 1, 13, tzinfo=UTC)
READY = Outcome(True, "Ready", "", TOPIC)


def condition(status: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(found for found in status["conditions"] if found["type"] == kind)


def test_what_it_tells() -> None:
    status = topic_status(RESOURCE, READY, NOON)
    assert {name: value for name, value in status.items() if name != "conditions"} == {
        "observedGeneration": 3,
        "message": "",
        "topicName": "orders.v1",
        "topicId": str(UUID(int=5)),
        "partitions": 1,
        "replicationFactor": 2,
    }
    assert condition(status, "Ready") == {
        "type": "Ready",
        "status": "True",
        "observedGeneration": 3,
        "lastTransitionTime": "2026-05-01T12:00:00Z",
        "reason": "Ready",
        "message": "",
    }


def test_nothing_is_written_where_nothing_differs() -> None:
    status = topic_status(RESOURCE, READY, NOON)
    again = replace(RESOURCE, status=status)
    assert merge_patch(status, topic_status(again, READY, LATER)) == {}


def test_since_when_moves_only_when_it_flips() -> None:
    first = topic_status(RESOURCE, Outcome(False, "InvalidSpec", "change it"), NOON)
    other = topic_status(replace(RESOURCE, status=first), Outcome(False, "NotSupported", "or that"), LATER)
    assert condition(other, "Ready")["lastTransitionTime"] == "2026-05-01T12:00:00Z"
    flipped = topic_status(replace(RESOURCE, status=other), READY, LATER)
    assert condition(flipped, "Ready")["lastTransitionTime"] == "2026-05-01T13:00:00Z"


def test_what_was_known_of_the_topic_stays_while_nobody_can_be_asked() -> None:
    status = topic_status(RESOURCE, READY, NOON)
    away = topic_status(replace(RESOURCE, status=status), Outcome(False, "ClusterUnreachable", "away"), LATER)
    assert (away["topicId"], away["partitions"]) == (status["topicId"], 1)


def test_progress_comes_and_goes() -> None:
    moving = topic_status(RESOURCE, replace(READY, moving=Moving(2, 5, 3)), NOON)
    assert moving["message"] == "replication factor 3: 2 of 5 partitions done"
    assert moving["reassignment"] == {"replicationFactor": 3, "partitions": 5, "done": 2}
    assert condition(moving, "Reassigning")["status"] == "True"
    done = topic_status(replace(RESOURCE, status=moving), READY, LATER)
    patch = merge_patch(moving, done)
    assert patch["reassignment"] is None
    assert condition(done, "Reassigning")["status"] == "False"


def test_a_pause_leaves_ready_as_it_was() -> None:
    paused = Outcome(None, "Paused", "paused", TOPIC, paused=True)
    assert condition(topic_status(RESOURCE, paused, NOON), "Ready")["status"] == "Unknown"
    ready = topic_status(RESOURCE, READY, NOON)
    status = topic_status(replace(RESOURCE, status=ready), paused, LATER)
    assert (condition(status, "Ready")["status"], condition(status, "Paused")["status"]) == ("True", "True")
    resumed = topic_status(replace(RESOURCE, status=status), READY, LATER)
    assert condition(resumed, "Paused")["status"] == "False"
