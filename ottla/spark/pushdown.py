"""Filters on partition, offset and timestamp, turned into bounds of offsets. Pure.

Filters on partition and offset are answered in full, so Spark needn't evaluate them again. A lower bound of the
timestamp only moves the start, to the first record at or after it, and an upper bound moves nothing: under CreateTime,
timestamps don't rise with offsets. Spark evaluates both again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from .offsets import OffsetRange


@dataclass(frozen=True)
class Bounds:
    """What the filters leave: partitions (None: all), offsets [first, end), and the earliest timestamp in ms."""

    partitions: frozenset[int] | None = None
    first: float = 0
    end: float = math.inf
    since_ms: int | None = None

    def apply(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """The ranges cut to these partitions and offsets."""
        cut = []
        for each in ranges:
            if self.partitions is None or each.partition.partition in self.partitions:
                start, end = max(each.start, self.first), min(each.end, self.end)
                if start < end:
                    cut.append(OffsetRange(each.partition, int(start), int(end)))
        return cut


def push(filters: Iterable[Any]) -> tuple[Bounds, list[Any]]:
    """The bounds that Spark's `filters` (all must hold) stand for, and the filters that Spark must still evaluate."""
    bounds = Bounds()
    rest = []
    for each in filters:
        column = ".".join(getattr(each, "attribute", ()))
        rule = _RULES.get((column, type(each).__name__))
        value = getattr(each, "value", None)
        narrowed = None if rule is None else rule(bounds, value)
        if narrowed is not None:
            bounds = narrowed
        if narrowed is None or column == "timestamp":
            rest.append(each)
    return bounds, rest


def _partitions(bounds: Bounds, chosen: Iterable[Any]) -> Bounds | None:
    wanted = frozenset(chosen)
    if not all(type(index) is int for index in wanted):
        return None
    return replace(bounds, partitions=wanted if bounds.partitions is None else bounds.partitions & wanted)


def _between(first_more: float, end_more: float | None, lower: bool) -> Callable[[Bounds, Any], Bounds | None]:
    def narrow(bounds: Bounds, value: Any) -> Bounds | None:
        if type(value) is not int:
            return None
        if lower:
            bounds = replace(bounds, first=max(bounds.first, value + first_more))
        if end_more is not None:
            bounds = replace(bounds, end=min(bounds.end, value + end_more))
        return bounds

    return narrow


def _since(bounds: Bounds, value: Any) -> Bounds | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    since = math.floor(value.timestamp() * 1000)
    return replace(bounds, since_ms=since if bounds.since_ms is None else max(bounds.since_ms, since))


_RULES: dict[tuple[str, str], Callable[[Bounds, Any], Bounds | None]] = {
    ("partition", "EqualTo"): lambda bounds, value: _partitions(bounds, [value]),
    ("partition", "EqualNullSafe"): lambda bounds, value: _partitions(bounds, [value]),
    ("partition", "In"): _partitions,
    ("offset", "EqualTo"): _between(0, 1, True),
    ("offset", "EqualNullSafe"): _between(0, 1, True),
    ("offset", "GreaterThan"): _between(1, None, True),
    ("offset", "GreaterThanOrEqual"): _between(0, None, True),
    ("offset", "LessThan"): _between(0, 0, False),
    ("offset", "LessThanOrEqual"): _between(0, 1, False),
    ("timestamp", "EqualTo"): _since,
    ("timestamp", "GreaterThan"): _since,
    ("timestamp", "GreaterThanOrEqual"): _since,
}
