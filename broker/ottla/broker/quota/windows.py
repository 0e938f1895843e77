"""The windows in which Kafka measures a quota. Pure.

Source: Kafka's ClientQuotaManagerConfig and MetricConfig.
"""

from __future__ import annotations

from typing import NamedTuple


class Windows(NamedTuple):
    """How many windows a measurement spans (`quota.window.num`), and the length of each one in ms
    (`quota.window.size.seconds`)."""

    number: int
    size_ms: int

    @property
    def span_ms(self) -> int:
        """The length of all windows together, in ms."""
        return self.number * self.size_ms
