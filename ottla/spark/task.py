"""The ranges of offsets that one task reads, in the form in which Spark sends them from the driver to a worker.

This is a module of its own so that planning doesn't import the modules that only workers need: to import numba takes
half a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from pyspark.sql.datasource import InputPartition

from .offsets import OffsetRange


class TaskRanges(InputPartition):
    """The ranges of offsets that one task reads in turn. `topic_ids` has the known ids of their topics by name."""

    def __init__(self, ranges: tuple[OffsetRange, ...], topic_ids: Mapping[str, UUID]) -> None:
        self.ranges = ranges
        self.topic_ids = {
            name: topic_ids[name] for name in {each.partition.topic for each in ranges} & topic_ids.keys()
        }
