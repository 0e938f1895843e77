"""Conditions: what holds, since when, and why. Pure; the time is an input.

A condition's time moves only when its status flips, so a status that says the same again is the same document and is
not written: nothing here may make one reconcile lead to the next.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ottla.operator.objects import Object, timestamp


@dataclass(frozen=True)
class Condition:
    """One condition as it is now. `holds` None: nobody knows."""

    type: str
    holds: bool | None
    reason: str
    message: str = ""


@dataclass(frozen=True)
class Trouble:
    """A part of a reconcile that wasn't done though nothing outside was to be waited for."""

    part: str
    reason: str  # Refused, Unexpected or Waiting
    message: str
    error: Exception | None = field(default=None, compare=False)

    @property
    def failed(self) -> bool:
        """Whether this part itself failed; one that only waits hasn't."""
        return self.reason != "Waiting"


def conditions(
    present: Iterable[Mapping[str, Any]], found: Iterable[Condition], generation: int, now: datetime
) -> list[Object]:
    """The conditions for the status, in the order found; then those that somebody else looks after."""
    before = {condition["type"]: dict(condition) for condition in present}
    written = []
    for condition in found:
        status = "Unknown" if condition.holds is None else str(condition.holds)
        old = before.pop(condition.type, None)
        since = old["lastTransitionTime"] if old is not None and old["status"] == status else timestamp(now)
        written.append(
            {
                "type": condition.type,
                "status": status,
                "observedGeneration": generation,
                "lastTransitionTime": since,
                "reason": condition.reason,
                "message": condition.message[:32768],
            }
        )
    return [*written, *before.values()]
