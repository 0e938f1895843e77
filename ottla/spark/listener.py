"""Computes the lag of streaming queries from Spark's progress reports.

For Spark's own Kafka source, a progress report has a description and metrics of the lag. For a source written in
Python, the report has neither, because PythonMicroBatchStream implements neither toString nor ReportsSourceMetrics
(Spark 4.2 and 4.3). The report does have the source's offsets. This module computes the description and the metrics
from the offsets.
"""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from ottla.net.names import TopicPartition

from .positions import from_json

Report = Callable[[str, dict[TopicPartition, int]], Any]


@dataclass(frozen=True)
class SourceReport:
    """One `ottla` source of a query: its topics, and the lag of each partition in offsets."""

    topics: tuple[str, ...]
    lag: Mapping[TopicPartition, int]

    @property
    def description(self) -> str:
        """The text `ottla[…]` with the names of the source's topics."""
        return f"ottla[{', '.join(self.topics)}]"

    @property
    def metrics(self) -> dict[str, str]:
        """The least, greatest and mean lag of the partitions, in offsets, under the names of Spark's Kafka source."""
        behind = list(self.lag.values())
        return {
            "minOffsetsBehindLatest": str(min(behind)),
            "maxOffsetsBehindLatest": str(max(behind)),
            "avgOffsetsBehindLatest": str(sum(behind) / len(behind)),
        }


class LagListener(StreamingQueryListener):
    """Calls `report(query, lag)` after each micro-batch of a query that reads `ottla` sources.

    `query` is the query's name, or its id if it has no name. `lag` maps each TopicPartition to its number of offsets
    that aren't read yet. Add the listener with `spark.streams.addListener(LagListener(report))`, to a classic session
    or to one of Spark Connect. `latest` has the last lag of each query. `sources` has the SourceReports of each query:
    the description and metrics of its sources, which Spark's own progress reports lack for sources written in Python.
    """

    def __init__(self, report: Report | None = None) -> None:
        self.latest: dict[str, dict[TopicPartition, int]] = {}
        self.sources: dict[str, list[SourceReport]] = {}
        self._report = report

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Does nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Computes the lag of each `ottla` source in the query, and reports it."""
        progress = event.progress
        found = [report_of(source.endOffset, source.latestOffset) for source in progress.sources]
        ours = [each for each in found if each is not None]
        if ours:
            query = progress.name or str(progress.id)
            lag = {partition: behind for each in ours for partition, behind in each.lag.items()}
            self.latest[query] = lag
            self.sources[query] = ours
            if self._report is not None:
                self._report(query, lag)

    def onQueryIdle(self, event: Any) -> None:
        """Does nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Does nothing: `latest` and `sources` keep the query's last lag."""


def report_of(end: Any, latest: Any) -> SourceReport | None:
    """The lag of a source whose progress has the offsets `end` and `latest`.

    None if these aren't offsets of an `ottla` source, or if the source has no partitions.

    In classic Spark, offsets are JSON texts. In Spark Connect they are dictionaries, and in Spark Connect of PySpark
    4.2 they are the texts that `str` makes of dictionaries.
    """
    try:
        read, held = from_json(_parsed(end)).offsets, from_json(_parsed(latest)).offsets
    except (ValueError, AttributeError, TypeError, SyntaxError):
        return None
    lag = {each: max(offset - read.get(each, 0), 0) for each, offset in held.items()}
    return SourceReport(tuple(dict.fromkeys(each.topic for each in sorted(lag))), lag) if lag else None


def _parsed(offsets: Any) -> Any:
    if not isinstance(offsets, str):
        return offsets or {}
    try:
        return json.loads(offsets or "{}") or {}
    except ValueError:
        return literal_eval(offsets) or {}
