"""Turns Spark's filters on partition, offset and timestamp into bounds of the offsets to read. Pure.

The bounds apply filters on partition and offset completely, so Spark doesn't evaluate these again. A lower bound of the
timestamp becomes the offset of the first record with that timestamp or a later one. Under CreateTime, timestamps don't
rise with offsets: records behind that offset may be older, so Spark evaluates this filter again. For the same reason an
upper bound of the timestamp doesn't bound the offsets; only Spark evaluates it.
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
    """The bounds of a read: its partitions (None for all), offsets [first, end), and the least timestamp in ms."""

    partitions: frozenset[int] | None = None
    first: float = 0
    end: float = math.inf
    since_ms: int | None = None

    def apply(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """The ranges, cut to these partitions and offsets. Empty ranges are left out."""
        cut = []
        for each in ranges:
            if self.partitions is None or each.partition.partition in self.partitions:
                start, end = max(each.start, self.first), min(each.end, self.end)
                if start < end:
                    cut.append(OffsetRange(each.partition, int(start), int(end)))
        return cut


def push(filters: Iterable[Any]) -> tuple[Bounds, list[Any]]:
    """The bounds of the records that pass all `filters`, and the filters that Spark must still evaluate."""
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
