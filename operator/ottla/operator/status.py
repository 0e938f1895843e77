"""The conditions of a status: what is true, since when, and why. Pure; the time is an input.

A condition's time changes only when its status flips. So equal conditions give an equal document, which isn't written
again: otherwise each reconcile would cause the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ottla.operator.objects import Object, timestamp

INVALID = "InvalidObject"  # the reason where Kubernetes finds an object invalid, so that only another spec helps


@dataclass(frozen=True)
class Condition:
    """One condition as it is now. `holds` is None if the condition's status is Unknown."""

    type: str
    holds: bool | None
    reason: str
    message: str = ""


@dataclass(frozen=True)
class Trouble:
    """A part of a reconcile that wasn't done: it was refused, it failed unexpectedly, or it has to wait."""

    part: str
    reason: str  # INVALID, Refused, Unexpected or Waiting
    message: str
    error: Exception | None = field(default=None, compare=False)

    @property
    def failed(self) -> bool:
        """Whether this part of the reconcile failed; a part that only waits hasn't failed."""
        return self.reason != "Waiting"


def ready_or_before(holds: bool | None, reason: str, message: str, present: Iterable[Mapping[str, Any]]) -> Condition:
    """The condition Ready. If `holds` is None, the condition of that type among the `present` ones stays, if there is
    one."""
    before = next((condition for condition in present if condition["type"] == "Ready"), None)
    if holds is not None or before is None:
        return Condition("Ready", holds, reason, message)
    return Condition("Ready", {"True": True, "False": False}.get(before["status"]), before["reason"], before["message"])


def conditions(
    present: Iterable[Mapping[str, Any]], found: Iterable[Condition], generation: int, now: datetime
) -> list[Object]:
    """The conditions for the status: first those `found`, in their order, then the other ones of the present status."""
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
