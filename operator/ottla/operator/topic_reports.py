"""The statuses and Events of Topics: by the outcomes of a sweep, and by the steps that it made."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from ottla.operator.plan.topic import Configure, Create, Grow, Move, Step, TopicPlan
from ottla.operator.plan.topic_status import Outcome, topic_status
from ottla.operator.reports import News, Report
from ottla.operator.spec.topic import TopicResource
from ottla.wording import counted


def reports_of(outcomes: Mapping[TopicResource, Outcome], now: datetime) -> list[Report]:
    """The statuses of Topics, with an Event for each Topic that isn't ready and won't be by itself."""
    return [
        Report(
            resource,
            topic_status(resource, outcome, now),
            News(resource, outcome.reason, outcome.message)
            if outcome.ready is False and not outcome.expected
            else None,
        )
        for resource, outcome in outcomes.items()
    ]


def news_of(resource: TopicResource, step: Step, plan: TopicPlan) -> News:
    """The Event that reports a step of a topic's plan after the step was carried out."""
    topic = resource.topic
    if isinstance(step, Create):
        return News(resource, "TopicCreated", f"topic '{topic}' was created")
    if isinstance(step, Configure):
        names = ", ".join([*step.given, *(f"{name} (reset)" for name in step.reset)])
        reason = "TopicAdopted" if plan.adopted else "SettingsChanged"
        return News(resource, reason, f"topic '{topic}': {names}")
    if isinstance(step, Grow):
        return News(resource, "PartitionsAdded", f"topic '{topic}' has {step.partitions} partitions")
    if isinstance(step, Move):
        cancelled = sum(target is None for target in step.targets.values())
        begun = len(step.targets) - cancelled
        return News(
            resource, "ReplicasMoved", f"topic '{topic}': {counted(begun, 'move')} begun, {cancelled} cancelled"
        )
    return News(resource, "TopicDeleted", f"topic '{topic}' was deleted")
