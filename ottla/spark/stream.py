"""The streaming reader: where a query starts, how far each micro-batch goes, and what its tasks read.

Positions have the shape of Spark's own offsets, with the topics' ids beside them (`positions`). The rules are those of
Spark's KafkaMicroBatchStream: partitions that appear later are read from their earliest offset, a limit is spread in
proportion to the backlog, and offsets that went away are reported as data loss. Two things differ. Spark's Python API
has no composite limit: `minOffsetsPerTrigger` together with `maxOffsetsPerTrigger` is kept inside `latestOffset`. And a
topic that was deleted and created anew is known by its id: what the checkpoint says about the old one is not taken for
offsets of the new one, which is reported as data loss and otherwise read from its beginning.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
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
from ottla.net.names import EARLIEST, TopicPartition
from ottla.uuids import uuid_text

from .offsets import OffsetRange, rate_limited, tasks
from .options import Offsets, ReadOptions
from .planning import NOWHERE, assigned, ends, open_client, report_data_loss, resolve
from .positions import Position, from_json
from .schema import arrow_schema
from .task import TaskRanges

log = logging.getLogger("ottla.spark")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One source of one streaming query. Lives on the driver; tasks use only `read`."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.options = options
        self.spark_schema = schema
        self._client: Client | None = None
        self._latest = NOWHERE
        self._target: Position | None = None
        self._last_trigger: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None}

    def initialOffset(self) -> dict[str, dict[str, int]]:
        """The starting offsets, resolved; asked for only when there is no checkpoint."""
        for warning in self.options.warnings:
            log.warning("%s", warning)
        partitions, topic_ids = assigned(self._cluster(), self.options.subscription)
        start = resolve(self._cluster(), partitions, self.options.starting, self.options, starting=True)
        if isinstance(self.options.starting, Offsets) and self.options.starting.each:
            start = self._within_log(start)
        return Position(start, topic_ids).json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options say; Spark replaces it where a trigger demands everything."""
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.min_offsets_per_trigger is not None:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the end of the query at the present ends of the logs."""
        self._target = self._fetch_latest(NOWHERE)

    def latestOffset(self, start: dict[str, dict[str, int]], limit: ReadLimit) -> dict[str, dict[str, int]]:
        """The end of the next micro-batch; `start` itself where it has to wait. Raises as `partitions` does."""
        begin = from_json(start)
        self._latest = self._look_ahead(begin)
        self._report_recreated(begin, self._latest)
        if isinstance(limit, ReadAllAvailable):
            return self._latest.json()
        known = self._from(begin, self._latest)
        least = self.options.min_offsets_per_trigger
        if least is not None and self._target is None and self._must_wait(least, known):
            return start
        if isinstance(limit, ReadMaxRows):
            known = {**self._earliest(self._latest.offsets.keys() - known.keys()), **known}
            return Position(rate_limited(limit.max_rows, known, self._latest.offsets), self._latest.topic_ids).json()
        return self._latest.json()

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:
        """The ends of the logs when they were last asked for, for Spark's progress reports."""
        return self._latest.json() or None

    def partitions(self, start: dict[str, dict[str, int]], end: dict[str, dict[str, int]]) -> Sequence[InputPartition]:
        """The tasks' ranges between two offsets. Raises DataLoss under failOnDataLoss."""
        whole, stop = from_json(start), from_json(end)
        self._report_recreated(whole, stop)
        begin = self._from(whole, stop)
        added = sorted(stop.offsets.keys() - begin.keys())
        earliest = self._earliest(added)
        recreated = whole.recreated(stop)
        for each in added:
            if each not in earliest:
                report_data_loss(self.options, f"{each} is gone before its first record was read")
            elif earliest[each] and each.topic not in recreated:
                report_data_loss(
                    self.options, f"the new partition {each} starts at offset {earliest[each]} instead of 0"
                )
        gone = sorted(begin.keys() - stop.offsets.keys())
        if gone:
            report_data_loss(self.options, f"{', '.join(map(str, gone))} are gone")
        ranges = []
        for each, last in sorted(stop.offsets.items()):
            first = begin.get(each, earliest.get(each))
            if first is None:
                continue
            if last < first:
                report_data_loss(self.options, f"the end of {each} went back from offset {first} to {last}")
            ranges.append(OffsetRange(each, first, last))
        planned = tasks(ranges, self.options.min_partitions, self.options.max_records_per_partition)
        return [TaskRanges(each, stop.topic_ids) for each in planned]

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

    def _look_ahead(self, begin: Position) -> Position:
        """The present ends of the logs, or the fixed end.

        The end is fixed anew if it lies before `begin`, or if a topic was created anew in between.
        """
        if self._target is None:
            return self._fetch_latest(begin)
        behind = any(self._target.offsets.get(each, -1) < offset for each, offset in begin.offsets.items())
        if behind or begin.recreated(self._target):
            self._target = self._fetch_latest(begin)
        return self._target

    def _fetch_latest(self, known: Position) -> Position:
        """The ends of the logs of everything that is to be read."""
        partitions, topic_ids = assigned(self._cluster(), self.options.subscription, known)
        since = self._from(known, Position({}, topic_ids))
        return Position(ends(self._cluster(), partitions, since, self.options), topic_ids)

    def _from(self, begin: Position, later: Position) -> dict[TopicPartition, int]:
        """The offsets of `begin` whose topics are the same, by id, in `later`."""
        recreated = begin.recreated(later)
        return {each: offset for each, offset in begin.offsets.items() if each.topic not in recreated}

    def _report_recreated(self, begin: Position, later: Position) -> None:
        for name in sorted(begin.recreated(later)):
            old, new = uuid_text(begin.topic_ids[name]), uuid_text(later.topic_ids[name])
            report_data_loss(
                self.options,
                f"topic '{name}' was deleted and created anew (its id was {old} and is {new}): the offsets in the "
                "checkpoint are the old topic's, and the new one is read from its beginning",
            )

    def _earliest(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The earliest offsets of those partitions that (still) exist."""
        if not partitions:
            return {}
        wanted = Position(dict.fromkeys(partitions, 0), {})
        existing = set(assigned(self._cluster(), self.options.subscription, wanted).partitions) & set(partitions)
        found = self._cluster().list_offsets(dict.fromkeys(sorted(existing), EARLIEST))
        return {each: answer.offset for each, answer in found.items()}

    def _within_log(self, start: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        low = self._cluster().list_offsets(dict.fromkeys(start, EARLIEST))
        high = ends(self._cluster(), start, start, self.options)
        within = {}
        for each, offset in start.items():
            within[each] = min(max(offset, low[each].offset), high[each])
            if within[each] != offset:
                held = f"it holds offsets {low[each].offset} to {high[each]}"
                report_data_loss(self.options, f"startingOffsets for {each} is {offset}, and {held}")
        return within

    def _must_wait(self, least: int, begin: Mapping[TopicPartition, int]) -> bool:
        """Whether fewer than `least` offsets are waiting and maxTriggerDelay hasn't passed since the last batch."""
        now = time.monotonic()
        waiting = sum(max(offset - begin.get(each, 0), 0) for each, offset in self._latest.offsets.items())
        delay_s = self.options.max_trigger_delay_ms / 1000
        overdue = self._last_trigger is None or now - self._last_trigger >= delay_s
        if waiting < least and not overdue:
            return True
        self._last_trigger = now
        return False
