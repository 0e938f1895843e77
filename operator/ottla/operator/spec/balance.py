"""`spec.balance` of a Cluster: whether and by which goals replicas are balanced between its brokers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ottla.balance.loads import Goal


class Mode(StrEnum):
    """Whether replicas are moved for balance, moves are only suggested in the status, or nothing is done."""

    OFF = "Off"
    SUGGEST = "Suggest"
    RUN = "Run"


@dataclass(frozen=True)
class Balance:
    """`spec.balance`, with its defaults filled in."""

    mode: Mode = Mode.OFF
    goals: tuple[Goal, ...] = tuple(Goal)
    tolerance_percent: int = 10


def parse_balance(spec: Mapping[str, Any]) -> Balance:
    """Reads `spec.balance`, whose values the API server has checked already."""
    names = spec.get("goals") or [goal.value for goal in Goal]
    goals = tuple(goal for goal in Goal if goal.value in names)
    return Balance(Mode(spec.get("mode") or Mode.OFF), goals, spec.get("tolerancePercent") or 10)
