"""A task's share of a read, as Spark carries it from the driver to a worker.

A module of its own, because planning must not load what only workers need: numba takes half a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from pyspark.sql.datasource import InputPartition

from .offsets import OffsetRange


class TaskRanges(InputPartition):
    """The ranges of offsets that one task reads, one after another, and their topics' ids as far as they are known."""

    def __init__(self, ranges: tuple[OffsetRange, ...], topic_ids: Mapping[str, UUID]) -> None:
        self.ranges = ranges
        self.topic_ids = {
            name: topic_ids[name] for name in {each.partition.topic for each in ranges} & topic_ids.keys()
        }
