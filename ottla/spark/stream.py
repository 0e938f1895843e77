"""The streaming reader: the offsets at which a query starts, the end of each micro-batch, and the ranges of its tasks.

A position between two micro-batches has the offsets in the form of Spark's Kafka source, and also the ids of the topics
(`positions`). The rules are those of Spark's KafkaMicroBatchStream: partitions that are added later are read from their
earliest offset, a limit is shared in proportion to the partitions' backlogs, and deleted offsets are reported as data
loss. There are two differences:

- Spark's Python API can't return two limits. If both `minOffsetsPerTrigger` and `maxOffsetsPerTrigger` are set, Spark
  knows only the maximum, and `latestOffset` applies the minimum itself.
- If a topic was deleted and created anew, its id isn't the one in the checkpoint's position. This is reported as data
  loss. If failOnDataLoss is false, the query reads the new topic from its beginning.
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
    """One source of one streaming query. Its methods run on the driver; only `read` runs in tasks."""

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
        """The position at which the query starts, in the form of `Position.json`.

        Spark calls this only if the query has no checkpoint yet. Raises OptionError, and DataLoss under failOnDataLoss
        if a given starting offset isn't in the log.
        """
        for warning in self.options.warnings:
            log.warning("%s", warning)
        partitions, topic_ids = assigned(self._cluster(), self.options.subscription)
        start = resolve(self._cluster(), partitions, self.options.starting, self.options, starting=True)
        if isinstance(self.options.starting, Offsets) and self.options.starting.each:
            start = self._within_log(start)
        return Position(start, topic_ids).json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit of a micro-batch that the options set: a maximum, else a minimum, else none.

        For a trigger that reads everything in one micro-batch, Spark passes ReadAllAvailable to `latestOffset` instead.
        """
        if self.options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self.options.max_offsets_per_trigger)
        if self.options.min_offsets_per_trigger is not None:
            return ReadMinRows(self.options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Makes the present ends of the logs the end of the query, for Trigger.AvailableNow."""
        self._target = self._fetch_latest(NOWHERE)

    def latestOffset(self, start: dict[str, dict[str, int]], limit: ReadLimit) -> dict[str, dict[str, int]]:
        """The position at which the micro-batch that begins at `start` ends, both in the form of `Position.json`.

        It is `start` itself while fewer than minOffsetsPerTrigger offsets are available and maxTriggerDelay hasn't
        passed; under Trigger.AvailableNow there is no such minimum. Raises OptionError if a topic or partition that the
        options name doesn't exist. Raises DataLoss under failOnDataLoss if a topic was deleted and created anew.
        """
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
        """The ends of the logs that `latestOffset` found last. Spark puts them into its progress reports."""
        return self._latest.json() or None

    def partitions(self, start: dict[str, dict[str, int]], end: dict[str, dict[str, int]]) -> Sequence[InputPartition]:
        """The tasks of the micro-batch between two positions. Raises DataLoss under failOnDataLoss."""
        whole, stop = from_json(start), from_json(end)
        self._report_recreated(whole, stop)
        begin = self._from(whole, stop)
        added = sorted(stop.offsets.keys() - begin.keys())
        earliest = self._earliest(added)
        recreated = whole.recreated(stop)
        for each in added:
            if each not in earliest:
                report_data_loss(self.options, f"{each} was deleted before its first record was read")
            elif earliest[each] and each.topic not in recreated:
                report_data_loss(
                    self.options, f"the new partition {each} starts at offset {earliest[each]} instead of 0"
                )
        gone = sorted(begin.keys() - stop.offsets.keys())
        if gone:
            report_data_loss(self.options, f"partitions don't exist any more: {', '.join(map(str, gone))}")
        ranges = []
        for each, last in sorted(stop.offsets.items()):
            first = begin.get(each, earliest.get(each))
            if first is None:
                continue
            if last < first:
                report_data_loss(self.options, f"{each} ends at offset {last}, before the stream's position {first}")
            ranges.append(OffsetRange(each, first, last))
        planned = tasks(ranges, self.options.min_partitions, self.options.max_records_per_partition)
        return [TaskRanges(each, stop.topic_ids) for each in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task, in Arrow record batches."""
        from .reading import read_task

        return read_task(partition, self.options, arrow_schema(self.spark_schema))

    def commit(self, end: dict[str, dict[str, int]]) -> None:
        """Does nothing: Spark's checkpoint has the query's position."""

    def stop(self) -> None:
        """Closes the connections to brokers."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _cluster(self) -> Client:
        if self._client is None:
            self._client = open_client(self.options.properties)
        return self._client

    def _look_ahead(self, begin: Position) -> Position:
        """The position up to which records may be read: the present ends of the logs, or the query's fixed end.

        A query has a fixed end under Trigger.AvailableNow. If the fixed end is before `begin` in any partition, or has
        another id for a topic than `begin`, the present ends of the logs become the new fixed end.
        """
        if self._target is None:
            return self._fetch_latest(begin)
        behind = any(self._target.offsets.get(each, -1) < offset for each, offset in begin.offsets.items())
        if behind or begin.recreated(self._target):
            self._target = self._fetch_latest(begin)
        return self._target

    def _fetch_latest(self, known: Position) -> Position:
        """The ends of the logs of all partitions that the subscription covers now. `known` is the query's position."""
        partitions, topic_ids = assigned(self._cluster(), self.options.subscription, known)
        since = self._from(known, Position({}, topic_ids))
        return Position(ends(self._cluster(), partitions, since, self.options), topic_ids)

    def _from(self, begin: Position, later: Position) -> dict[TopicPartition, int]:
        """The offsets of `begin`, without those of topics that have another id in `later`."""
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
        """The earliest offset of each of the `partitions`. Partitions that don't exist are left out."""
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
                held = f"its log has offsets {low[each].offset} to {high[each]}"
                report_data_loss(self.options, f"startingOffsets for {each} is {offset}, but {held}")
        return within

    def _must_wait(self, least: int, begin: Mapping[TopicPartition, int]) -> bool:
        """Whether the next micro-batch has to wait. The first micro-batch never waits.

        A later one waits while fewer than `least` offsets are available, but at most until maxTriggerDelay has passed
        since the micro-batch before it.
        """
        now = time.monotonic()
        waiting = sum(max(offset - begin.get(each, 0), 0) for each, offset in self._latest.offsets.items())
        delay_s = self.options.max_trigger_delay_ms / 1000
        overdue = self._last_trigger is None or now - self._last_trigger >= delay_s
        if waiting < least and not overdue:
            return True
        self._last_trigger = now
        return False
