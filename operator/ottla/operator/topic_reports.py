"""Writes the new status of each Topic whose status changes, and an Event for each change that was made or refused.

Statuses are merge patches with the resource's uid: a resource that was deleted and created again under the same name
must not get the status of its predecessor. At most `AT_A_TIME` writes run concurrently, because a reconcile of a
Cluster's Topics may need thousands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from ottla.operator.kafka import slices
from ottla.operator.kube import KubeError
from ottla.operator.objects import API_VERSION, Object
from ottla.operator.plan.topic import Configure, Create, Grow, Move, Step, TopicPlan
from ottla.operator.plan.topic_status import Outcome, Status, status_patch, topic_status
from ottla.operator.refusals import Refusals
from ottla.operator.spec.topic import TopicResource
from ottla.operator.topic_resources import TopicResources
from ottla.wording import counted

AT_A_TIME = 16


class Writer(Protocol):
    """The part of `ottla.operator.kube.Kube` that writes statuses and Events."""

    async def merge(self, kind: str, namespace: str, name: str, patch: Object, subresource: str = "") -> Object:
        """Changes an object or its subresource by a JSON merge patch (RFC 7396), and returns the object."""

    async def event(self, about: Object, reason: str, message: str, now: datetime, *, warning: bool = False) -> None:
        """Writes an Event about a resource. If Kubernetes refuses the Event, the refusal is logged, and no error is
        raised."""


class News(NamedTuple):
    """An Event of a Topic."""

    resource: TopicResource
    reason: str
    message: str


class TopicReports:
    """Writes statuses and Events of Topics."""

    def __init__(self, kube: Writer, resources: TopicResources) -> None:
        self._kube = kube
        self._resources = resources

    async def statuses(self, outcomes: Mapping[TopicResource, Outcome], now: datetime) -> None:
        """Writes each status that differs from the one in its Topic. If Kubernetes refuses a write, the others are
        still made, and Retry with the first refusal is raised at the end."""
        differing = []
        for resource, outcome in outcomes.items():
            status = topic_status(resource, outcome, now)
            patch = status_patch(resource.status, status)
            if patch is not None:
                differing.append((resource, outcome, status, patch))
        refusals = Refusals()

        async def write(resource: TopicResource, outcome: Outcome, status: Status, patch: Status) -> None:
            with refusals.gathered():
                await self._status(resource, outcome, status, patch, now)

        for some in slices(differing, AT_A_TIME):
            await asyncio.gather(*(write(*one) for one in some))
        refusals.told()

    async def events(self, news: Sequence[News], now: datetime) -> None:
        """Writes the Events in `news`, which are about changes that were made."""
        for some in slices(news, AT_A_TIME):
            await asyncio.gather(*(self._event(one.resource, one.reason, one.message, now) for one in some))

    async def _status(
        self, resource: TopicResource, outcome: Outcome, status: Status, patch: Status, now: datetime
    ) -> None:
        body = {"metadata": {"uid": resource.uid}, "status": patch}
        try:
            await self._kube.merge("Topic", *resource.ref, body, "status")
        except KubeError as error:
            if error.status in (404, 409):  # the resource is gone, or another one has its name
                return
            raise
        self._resources.wrote(resource, status)
        if outcome.ready is False and not outcome.expected and outcome.message != resource.status.get("message"):
            await self._event(resource, outcome.reason, outcome.message, now, warning=True)

    async def _event(
        self, resource: TopicResource, reason: str, message: str, now: datetime, *, warning: bool = False
    ) -> None:
        about = {
            "apiVersion": API_VERSION,
            "kind": "Topic",
            "metadata": {"namespace": resource.ref.namespace, "name": resource.ref.name, "uid": resource.uid},
        }
        await self._kube.event(about, reason, message, now, warning=warning)


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
