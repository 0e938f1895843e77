"""The status of a User resource, by the outcome of a reconcile. Pure; the time is an input.

The status is written only if it differs from the present one, so a resource without changes costs no request.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ottla.operator.objects import timestamp
from ottla.operator.spec.user import UserResource
from ottla.operator.status import conditions, ready_or_before
from ottla.wording import abridged

MESSAGE_LENGTH_MAX = 1024

Status = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a reconcile of one User. If `ready` is None, the condition Ready stays as it was."""

    ready: bool | None
    reason: str
    message: str = ""
    username: str = ""  # the user's name in Kafka; empty if it isn't known
    secret: str = ""  # the name of the User's Secret; empty if it has none
    expires: datetime | None = None  # when the user's certificate ends
    expected: bool = False  # no Event is made for it, because it passes by itself


def user_status(resource: UserResource, outcome: Outcome, now: datetime) -> Status:
    """The whole status; `now`, in UTC, becomes the time of conditions that have flipped."""
    message = abridged(outcome.message, MESSAGE_LENGTH_MAX)
    status: Status = {"observedGeneration": resource.generation, "message": message}
    if outcome.username:
        status["username"] = outcome.username
    if outcome.secret:
        status["secret"] = outcome.secret
    if outcome.expires is not None:
        status["certificateExpires"] = timestamp(outcome.expires)
    present = resource.status.get("conditions", ())
    ready = ready_or_before(outcome.ready, outcome.reason, message, present)
    status["conditions"] = conditions(present, [ready], resource.generation, now)
    return status
