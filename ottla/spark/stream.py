"""The streaming reader: where a query starts, how far each micro-batch goes, and what its tasks read.

Offsets are Spark's own shape, {"topic": {"0": 5}}, and mean the next offset to read. The rules are those of Spark's
KafkaMicroBatchStream: partitions that appear later are read from their earliest offset, a limit is spread in
proportion to the backlog, and offsets that went away are reported as data loss. One thing differs because Spark's
Python API has no composite limit: `minOffsetsPerTrigger` together with `maxOffsetsPerTrigger` is kept inside
`latestOffset`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ottla.net.client import Client
from ottla.net.names import EARLIEST, LATEST, TopicPartition

from .offsets import OffsetRange, by_topic, from_topics, rate_limited, tasks
from .options import Offsets, ReadOptions
from .planning import assigned, open_client, report_data_loss, resolve
from .schema import arrow_schema
from .task import TaskRanges

log = logging.getLogger("ottla.spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One source of one streaming query. Lives on the driver; tasks use only `read`."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.spark_schema = schema
        self._client: Client | None = None
        self._latest: dict[TopicPartition, int] = {}
        self._target: dict[TopicPartition, int] | None = None
        self._last_trigger: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def initialOffset(self) -> dict[str, dict[str, int]]:
        """The starting offsets, resolved; asked for only when there is no checkpoint."""
        for warning in self.options.warnings:
            log.warning("%s", warning)
        partitions = assigned(self._cluster(), self.options.subscription)
        start = resolve(self._cluster(), partitions, self.options.starting, self.options, starting=True)
        if isinstance(self.options.starting, Offsets) and self.options.starting.each:
            start = self._within_log(start)
        return by_topic(start)

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options say; Spark replaces it where a trigger demands everything."""
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.min_offsets_per_trigger is not None:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the end of the query at what is there now."""
        self._target = self._fetch_latest({})

    def latestOffset(self, start: dict[str, dict[str, int]], limit: ReadLimit) -> dict[str, dict[str, int]]:
        """The end of the next micro-batch; `start` itself where it has to wait."""
        begin = from_topics(start)
        self._latest = self._fetch_latest(begin) if self._target is None else self._target
        if isinstance(limit, ReadAllAvailable):
            return by_topic(self._latest)
        least = self.options.min_offsets_per_trigger
        if least is not None and self._target is None and self._must_wait(least, begin):
            return start
        if isinstance(limit, ReadMaxRows):
            known = {**self._earliest(self._latest.keys() - begin.keys()), **begin}
            return by_topic(rate_limited(limit.max_rows, known, self._latest))
        return by_topic(self._latest)

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:
        """What the log held at the last look, for Spark's progress reports."""
        return by_topic(self._latest) or None

    def partitions(self, start: dict[str, dict[str, int]], end: dict[str, dict[str, int]]) -> Sequence[InputPartition]:
        """The tasks' ranges between two offsets. Raises DataLoss under failOnDataLoss."""
        begin, stop = from_topics(start), from_topics(end)
        added = sorted(stop.keys() - begin.keys())
        earliest = self._earliest(added)
        for each in added:
            if each not in earliest:
                report_data_loss(self.options, f"{each} is gone before its first record was read")
            elif earliest[each]:
                report_data_loss(
                    self.options, f"the new partition {each} starts at offset {earliest[each]} instead of 0"
                )
        gone = sorted(begin.keys() - stop.keys())
        if gone:
            report_data_loss(self.options, f"{', '.join(map(str, gone))} are gone")
        ranges = []
        for each, last in sorted(stop.items()):
            first = begin.get(each, earliest.get(each))
            if first is None:
                continue
            if last < first:
                report_data_loss(self.options, f"the end of {each} went back from offset {first} to {last}")
            ranges.append(OffsetRange(each, first, last))
        planned = tasks(ranges, self.options.min_partitions, self.options.max_records_per_partition)
        return [TaskRanges(each) for each in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's records."""
        from .reading import read_task

        return read_task(partition, self.options, arrow_schema(self.spark_schema))

    def commit(self, end: dict[str, dict[str, int]]) -> None:
        """Nothing: progress is in Spark's checkpoint."""

    def stop(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _cluster(self) -> Client:
        if self._client is None:
            self._client = open_client(self.options.properties)
        return self._client

    def _fetch_latest(self, known: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """The ends of the log, asked for again where one is before an offset that was read already.

        Right after an election a leader may answer with a high watermark that is still behind.
        """
        for attempt in range(self.options.offset_attempts + 1):
            partitions = assigned(self._cluster(), self.options.subscription)
            isolation = self.options.properties.isolation
            found = self._cluster().list_offsets(dict.fromkeys(partitions, LATEST), isolation=isolation)
            latest = {each: found[each].offset for each in partitions}
            behind = [each for each, offset in latest.items() if offset < known.get(each, 0)]
            if not behind:
                break
            log.warning("the end of %s is before what was read already", ", ".join(map(str, behind)))
            if attempt < self.options.offset_attempts:
                time.sleep(self.options.offset_retry_interval_ms / 1000)
        return latest

    def _earliest(self, partitions: Any) -> dict[TopicPartition, int]:
        """The earliest offsets of those partitions that (still) exist."""
        if not partitions:
            return {}
        existing = set(assigned(self._cluster(), self.options.subscription)) & set(partitions)
        found = self._cluster().list_offsets(dict.fromkeys(sorted(existing), EARLIEST))
        return {each: answer.offset for each, answer in found.items()}

    def _within_log(self, start: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        low = self._cluster().list_offsets(dict.fromkeys(start, EARLIEST))
        high = self._cluster().list_offsets(dict.fromkeys(start, LATEST))
        within = {}
        for each, offset in start.items():
            within[each] = min(max(offset, low[each].offset), high[each].offset)
            if within[each] != offset:
                held = f"it holds offsets {low[each].offset} to {high[each].offset}"
                report_data_loss(self.options, f"startingOffsets for {each} is {offset}, and {held}")
        return within

    def _must_wait(self, least: int, begin: Mapping[TopicPartition, int]) -> bool:
        """Whether fewer than `least` offsets are waiting and maxTriggerDelay hasn't passed since the last batch."""
        now = time.monotonic()
        waiting = sum(max(offset - begin.get(each, 0), 0) for each, offset in self._latest.items())
        delay_s = self.options.max_trigger_delay_ms / 1000
        overdue = self._last_trigger is None or now - self._last_trigger >= delay_s
        if waiting < least and not overdue:
            return True
        self._last_trigger = now
        return False
