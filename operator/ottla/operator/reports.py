"""Writes the statuses of Topics and Users, and Events about them.

Statuses are merge patches with the resource's uid: a resource that was deleted and created again under the same name
must not get the status of its predecessor. At most `AT_A_TIME` writes run concurrently, because a reconcile of a
Cluster's Topics or Users may need thousands.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeVar

from ottla.operator.kafka import slices
from ottla.operator.kube import KubeError
from ottla.operator.objects import API_VERSION, Object, merge_patch
from ottla.operator.refusals import Refusals
from ottla.operator.resources import Resources
from ottla.operator.spec.of_cluster import OfCluster

AT_A_TIME = 16


class Writer(Protocol):
    """The part of `ottla.operator.kube.Kube` that writes statuses and Events."""

    async def merge(self, kind: str, namespace: str, name: str, patch: Object, subresource: str = "") -> Object:
        """Changes an object or its subresource by a JSON merge patch (RFC 7396), and returns the object."""

    async def event(self, about: Object, reason: str, message: str, now: datetime, *, warning: bool = False) -> None:
        """Writes an Event about a resource. If Kubernetes refuses the Event, the refusal is logged, and no error is
        raised."""


class News(NamedTuple):
    """An Event of a resource."""

    resource: OfCluster
    reason: str
    message: str


class Report(NamedTuple):
    """A resource's status, and the Event that warns of it if the status is new."""

    resource: OfCluster
    status: Mapping[str, Any]
    warning: News | None = None


class Outcome(Protocol):
    """The part that the outcomes of all kinds' reconciles have in common."""

    @property
    def ready(self) -> bool | None:
        """Whether the resource is as its spec says; None if that isn't known."""

    @property
    def reason(self) -> str:
        """Why, as one word."""

    @property
    def message(self) -> str:
        """Why, as a sentence."""

    @property
    def expected(self) -> bool:
        """Whether no Event is made for the outcome, because it passes by itself."""


_R = TypeVar("_R", bound=OfCluster)
_O = TypeVar("_O", bound=Outcome)


def reports_of(
    outcomes: Mapping[_R, _O], status: Callable[[_R, _O, datetime], Mapping[str, Any]], now: datetime
) -> list[Report]:
    """The statuses of resources, which `status` makes, with an Event for each resource that isn't ready and won't be by
    itself."""
    return [
        Report(
            resource,
            status(resource, outcome, now),
            News(resource, outcome.reason, outcome.message)
            if outcome.ready is False and not outcome.expected
            else None,
        )
        for resource, outcome in outcomes.items()
    ]


class Reports:
    """Writes statuses and Events of one kind."""

    def __init__(self, kube: Writer, resources: Resources[Any]) -> None:
        self._kube = kube
        self._resources = resources

    async def statuses(self, reports: Sequence[Report], now: datetime) -> None:
        """Writes each status that differs from the one in its resource. If Kubernetes refuses a write, the others are
        still made, and Retry with the first refusal is raised at the end."""
        differing = [(each, patch) for each in reports if (patch := merge_patch(each.resource.status, each.status))]
        refusals = Refusals()

        async def write(report: Report, patch: Object) -> None:
            with refusals.gathered():
                await self._status(report, patch, now)

        for some in slices(differing, AT_A_TIME):
            await asyncio.gather(*(write(*one) for one in some))
        refusals.told()

    async def events(self, news: Sequence[News], now: datetime) -> None:
        """Writes the Events in `news`, which are about changes that were made."""
        for some in slices(news, AT_A_TIME):
            await asyncio.gather(*(self._event(one, now) for one in some))

    async def _status(self, report: Report, patch: Object, now: datetime) -> None:
        resource = report.resource
        body = {"metadata": {"uid": resource.uid}, "status": patch}
        try:
            await self._kube.merge(self._resources.kind, *resource.ref, body, "status")
        except KubeError as error:
            if error.status in (404, 409):  # the resource is gone, or another one has its name
                return
            raise
        self._resources.wrote(resource, report.status)
        if report.warning is not None and report.warning.message != resource.status.get("message"):
            await self._event(report.warning, now, warning=True)

    async def _event(self, news: News, now: datetime, *, warning: bool = False) -> None:
        ref, uid = news.resource.ref, news.resource.uid
        about = {
            "apiVersion": API_VERSION,
            "kind": self._resources.kind,
            "metadata": {"namespace": ref.namespace, "name": ref.name, "uid": uid},
        }
        await self._kube.event(about, news.reason, news.message, now, warning=warning)
