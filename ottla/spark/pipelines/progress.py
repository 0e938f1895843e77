"""What a running pipeline reports after each batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pyspark.sql.streaming.listener import QueryProgressEvent

from ottla.spark.listener import LagListener, report_of


class Progress(NamedTuple):
    """A batch of one query. `lag` is the number of offsets that aren't read yet, over all topics and partitions of the
    source; None if the source isn't a topic."""

    query: str
    batch: int
    rows: int
    rows_per_s: float
    lag: int | None


class ProgressListener(LagListener):
    """Calls `tell` for each batch that had rows. Spark also reports the empty looks between batches."""

    def __init__(self, tell: Callable[[Progress], None]) -> None:
        super().__init__()
        self._tell = tell

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Reports the batch."""
        progress = event.progress
        if not progress.numInputRows:
            return
        lags = [report_of(source.endOffset, source.latestOffset) for source in progress.sources]
        known = [sum(lag.lag.values()) for lag in lags if lag is not None]
        rate = progress.processedRowsPerSecond
        told = Progress(
            progress.name or "", progress.batchId, progress.numInputRows, rate, sum(known) if known else None
        )
        self._tell(told)
