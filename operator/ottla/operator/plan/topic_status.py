"""The status of a Topic resource, by the outcome of a reconcile. Pure; the time is an input.

The status is written only if it differs from the present one, so a resource without changes costs no request.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ottla.operator.plan.topic import KafkaTopic, Moving
from ottla.operator.spec.topic import TopicResource
from ottla.operator.status import Condition, conditions, ready_or_before
from ottla.wording import abridged

MESSAGE_LENGTH_MAX = 1024
REPLACING = "Replacing"  # the reason of a Topic that isn't ready until its predecessor's topic is deleted

Status = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a reconcile of one Topic. If `ready` is None, the condition Ready stays as it was."""

    ready: bool | None
    reason: str
    message: str = ""
    topic: KafkaTopic | None = None
    moving: Moving | None = None
    paused: bool = False
    expected: bool = False  # no Event is made for it, because it passes by itself


def topic_status(resource: TopicResource, outcome: Outcome, now: datetime) -> Status:
    """The whole status; `now`, in UTC, becomes the time of conditions that have flipped."""
    message = abridged(outcome.message, MESSAGE_LENGTH_MAX)
    status: Status = {
        "observedGeneration": resource.generation,
        "message": message or (str(outcome.moving) if outcome.moving else ""),
        "topicName": resource.topic,
    }
    topic, before = outcome.topic, resource.status
    if topic is not None:
        status["topicId"] = str(topic.id)
        status["partitions"] = len(topic.partitions)
        status["replicationFactor"] = topic.replication_factor
    else:
        status |= {name: before[name] for name in ("topicId", "partitions", "replicationFactor") if name in before}
    if outcome.moving:
        status["reassignment"] = {
            "replicationFactor": outcome.moving.factor,
            "partitions": outcome.moving.total,
            "done": outcome.moving.done,
        }
    known = {condition["type"]: condition for condition in before.get("conditions", ())}
    found = [ready_or_before(outcome.ready, outcome.reason, message, known.values())]
    if outcome.moving:
        found.append(Condition("Reassigning", True, "ReplicationFactor", str(outcome.moving)))
    elif "Reassigning" in known:
        found.append(Condition("Reassigning", False, "Done"))
    if outcome.paused:
        found.append(Condition("Paused", True, outcome.reason, message))
    elif "Paused" in known:
        found.append(Condition("Paused", False, "Resumed"))
    status["conditions"] = conditions(known.values(), found, resource.generation, now)
    return status
