"""What a running pipeline reports after each batch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from pyspark.sql.streaming.listener import QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent

from ottla.spark.listener import LagListener, report_of


class Progress(NamedTuple):
    """A batch of one query. `lag` is the number of offsets that aren't read yet, over all topics and partitions of the
    source; None if the source isn't a topic. `too_late` is the number of rows that a step with a window of time has
    left out, because their times were too far behind the newest one."""

    query: str
    batch: int
    rows: int
    rows_per_s: float
    lag: int | None
    too_late: int


class ProgressListener(LagListener):
    """Calls `tell` for each batch that had rows. Spark also reports the empty looks between batches."""

    def __init__(self, tell: Callable[[Progress], None]) -> None:
        super().__init__()
        self._tell = tell
        self._running = 0
        self._changed = threading.Condition()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Counts the query. Spark calls this before the query's start returns."""
        self._count(1)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Counts the query as ended. Spark calls this after the query's last progress, some time after its end."""
        self._count(-1)

    def wait_for_the_last(self, seconds: float) -> None:
        """Waits until the last progress of all queries was told, at most so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running, seconds)

    def _count(self, queries: int) -> None:
        with self._changed:
            self._running += queries
            self._changed.notify_all()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Reports the batch."""
        progress = event.progress
        if not progress.numInputRows:
            return
        lags = [report_of(source.endOffset, source.latestOffset) for source in progress.sources]
        known = [sum(lag.lag.values()) for lag in lags if lag is not None]
        late = sum(each.numRowsDroppedByWatermark for each in progress.stateOperators)
        lag = sum(known) if known else None
        self._tell(
            Progress(
                progress.name or "",
                progress.batchId,
                progress.numInputRows,
                progress.processedRowsPerSecond,
                lag,
                late,
            )
        )
