"""The statuses of Users and Events about them, by the outcomes of a sweep."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from ottla.operator.plan.user_status import Outcome, user_status
from ottla.operator.reports import News, Report
from ottla.operator.spec.user import UserResource


def reports_of(outcomes: Mapping[UserResource, Outcome], now: datetime) -> list[Report]:
    """The statuses of Users, with an Event for each User that isn't ready and won't be by itself."""
    return [
        Report(
            resource,
            user_status(resource, outcome, now),
            News(resource, outcome.reason, outcome.message)
            if outcome.ready is False and not outcome.expected
            else None,
        )
        for resource, outcome in outcomes.items()
    ]
