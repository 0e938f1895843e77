"""How far each partition is behind, from Spark's own progress reports."""

from __future__ import annotations

import json
from collections.abc import Callable
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


class LagListener(StreamingQueryListener):
    """Calls `report(query name or id, lag)` after each micro-batch; `lag` counts offsets not read yet, by partition.

    Add it by `spark.streams.addListener(LagListener(report))`. `latest` keeps the last lag of every query.
    """

    def __init__(self, report: Report | None = None) -> None:
        self.latest: dict[str, dict[TopicPartition, int]] = {}
        self._report = report

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing to say yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Works out the lag of every source of ours in the query."""
        progress = event.progress
        lag: dict[TopicPartition, int] = {}
        for source in progress.sources:
            lag.update(lag_of(source.endOffset, source.latestOffset))
        if lag:
            query = progress.name or str(progress.id)
            self.latest[query] = lag
            if self._report is not None:
                self._report(query, lag)

    def onQueryIdle(self, event: Any) -> None:
        """Nothing new."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Keeps the last lag."""


def lag_of(end: str | None, latest: str | None) -> dict[TopicPartition, int]:
    """How far `end` is behind `latest`, both as in Spark's progress; empty where they aren't offsets of ours."""
    try:
        read, held = from_json(json.loads(end or "{}")).offsets, from_json(json.loads(latest or "{}")).offsets
    except (ValueError, AttributeError, TypeError):
        return {}
    return {each: max(offset - read.get(each, 0), 0) for each, offset in held.items()}
