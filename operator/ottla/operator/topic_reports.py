"""The Events of Topics about the steps that a sweep has made."""

from __future__ import annotations

from ottla.operator.plan.topic import Configure, Create, Grow, Move, Step, TopicPlan
from ottla.operator.reports import News
from ottla.operator.spec.topic import TopicResource
from ottla.wording import counted


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
