"""How far each partition is behind, from Spark's own progress reports.

Spark asks no source written in Python for a description or for metrics (PythonMicroBatchStream implements neither
toString nor ReportsSourceMetrics, in 4.2 as in 4.3). What its own Kafka source would say there is worked out here, from
the offsets that progress reports do have.
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
    """One source of ours in a query's progress."""

    topics: tuple[str, ...]
    lag: Mapping[TopicPartition, int]

    @property
    def description(self) -> str:
        """The source with its topics, for people."""
        return f"ottla[{', '.join(self.topics)}]"

    @property
    def metrics(self) -> dict[str, str]:
        """What the progress of Spark's Kafka source has under `metrics`, name for name."""
        behind = list(self.lag.values())
        return {
            "minOffsetsBehindLatest": str(min(behind)),
            "maxOffsetsBehindLatest": str(max(behind)),
            "avgOffsetsBehindLatest": str(sum(behind) / len(behind)),
        }


class LagListener(StreamingQueryListener):
    """Calls `report(query name or id, lag)` after each micro-batch; `lag` counts offsets not read yet, by partition.

    Add it by `spark.streams.addListener(LagListener(report))`, also to a session of Spark Connect. `latest` keeps the
    last lag of every query, and `sources` its sources with what Spark's own progress has no room for: sources written
    in Python have neither a description there (it is a Java object's hash) nor metrics.
    """

    def __init__(self, report: Report | None = None) -> None:
        self.latest: dict[str, dict[TopicPartition, int]] = {}
        self.sources: dict[str, list[SourceReport]] = {}
        self._report = report

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Does nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Works out the lag of every source of ours in the query."""
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
        """Keeps the last lag."""


def report_of(end: Any, latest: Any) -> SourceReport | None:
    """How far `end` is behind `latest`, both as in Spark's progress; None where they aren't offsets of ours.

    They come as JSON, under Spark Connect also as what was read out of it, or as Python's text for that (PySpark 4.2).
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
