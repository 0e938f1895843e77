"""A task's share of a read, as Spark carries it from the driver to a worker.

A module of its own, because planning must not load what only workers need: numba takes half a second.
"""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from .offsets import OffsetRange


class TaskRanges(InputPartition):
    """The ranges of offsets that one task reads, one after another."""

    def __init__(self, ranges: tuple[OffsetRange, ...]) -> None:
        self.ranges = ranges
