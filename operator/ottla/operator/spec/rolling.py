"""`spec.rolling` of a Cluster: how many brokers may be away at the same time during a roll. Pure.

As in a StatefulSet's update strategy, it is a number, or a percentage of all brokers, rounded up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ottla.operator.spec.spec_error import SpecError


@dataclass(frozen=True)
class Rolling:
    """`spec.rolling`: `max_unavailable` is a number, or a text such as "25%"."""

    max_unavailable: int | str = 1

    def limit(self, brokers: int) -> int:
        """How many brokers may be away at the same time; at least one. `brokers`: how many brokers the cluster has."""
        given = self.max_unavailable
        if isinstance(given, str):
            return max(1, -(-brokers * int(given.removesuffix("%")) // 100))
        return given


def parse_rolling(spec: Mapping[str, Any], *, racks: bool) -> Rolling:
    """Reads `spec.rolling`. `racks`: whether any pool has a rack. Raises SpecError."""
    given = spec.get("maxUnavailable", 1)
    if given != 1 and not racks:
        raise SpecError(
            "rolling.maxUnavailable: only brokers of one rack are restarted at once; set rackKey or rack in brokers"
        )
    text = str(given)
    digits = text.removesuffix("%") if isinstance(given, str) else text
    if not digits.isdecimal() or not int(digits) or (isinstance(given, str) and not text.endswith("%")):
        raise SpecError(f"rolling.maxUnavailable: a number of at least 1, or a part like 25%, is wanted, not {given!r}")
    return Rolling(given)
