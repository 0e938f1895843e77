"""Runs a read task in a Spark worker: fetches the task's ranges of offsets, and yields them as Arrow record batches.

A worker process keeps its clients and their connections from task to task, one client for each set of properties. So a
micro-batch of a few records doesn't have to connect first. Spark forks the workers from a daemon, and the daemon never
opens a client: no two processes share a connection.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Iterator
from uuid import UUID

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from ottla.net.client import Client
from ottla.net.existence import TopicGone
from ottla.net.fetching import OffsetOutOfRange, RangeReader
from ottla.net.names import EARLIEST, LATEST, TopicPartition

from .decode import decode
from .offsets import OffsetRange
from .options import ReadOptions
from .planning import open_client, report_data_loss
from .properties import ClientProperties
from .selection import select
from .task import TaskRanges

log = logging.getLogger("ottla.spark")
_clients: dict[ClientProperties, Client] = {}


def read_task(task: InputPartition, options: ReadOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The records of `task`.

    If a read has no tasks, Spark runs one task all the same, with a placeholder that isn't a TaskRanges. This task has
    no records. Raises DataLoss under failOnDataLoss if offsets aren't in the log any more, or the topic was deleted.
    """
    if isinstance(task, TaskRanges):
        for each in task.ranges:
            yield from _read_range(each, task.topic_ids.get(each.partition.topic), options, schema)


def _read_range(
    asked: OffsetRange, topic_id: UUID | None, options: ReadOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    partition, offset, end = asked
    client = _client(options.properties)
    gaps = 0  # consecutive answers that `offset` is out of range, without a record between them
    while offset < end:
        reader = _reader(client, partition, topic_id, offset, end, options)
        try:
            for fetched in reader:
                batches = select(
                    fetched.records,
                    offset,
                    end,
                    aborted=fetched.aborted,
                    check_crc=options.properties.check_crc,
                    where=str(partition),
                )
                yield from decode(fetched.records, batches, offset, end, partition.topic, partition.partition, schema)
                offset = fetched.next_offset
                gaps = 0
        except OffsetOutOfRange:
            gaps += 1
            if gaps > options.offset_attempts + 1:
                raise
            offset = _after_gap(client, partition, offset, end, options)
        except TopicGone as error:
            report_data_loss(options, f"offsets {offset} to {end} of {partition} can't be read: {error.message}")
            return


def _client(properties: ClientProperties) -> Client:
    if properties not in _clients:
        gc.freeze()  # a worker collects garbage after each task, and traversing all of numba's objects would take 60 ms
        _clients[properties] = open_client(properties)
    return _clients[properties]


def _reader(
    client: Client, partition: TopicPartition, topic_id: UUID | None, start: int, end: int, options: ReadOptions
) -> RangeReader:
    properties = options.properties
    return RangeReader(
        client,
        partition,
        start,
        end,
        topic_id=topic_id,
        isolation=properties.isolation,
        max_bytes=properties.fetch_max_bytes,
        min_bytes=properties.fetch_min_bytes,
        max_wait_ms=properties.fetch_max_wait_ms,
        poll_timeout_ms=options.poll_timeout_ms,
    )


def _after_gap(client: Client, partition: TopicPartition, offset: int, end: int, options: ReadOptions) -> int:
    """The offset at which the task continues after a broker answered that `offset` is out of range.

    - If the log has `offset`, the task fetches `offset` again.
    - If the log starts after `offset`, data is lost. The task continues at the log's first offset, or at `end` if that
      is lower.
    - If the log ends at or before `offset`, the bounds of the log are requested again, because the high watermark of a
      new leader may still be behind. If it stays behind, data is lost, and the task leaves out the rest of the range.

    Lost data raises DataLoss under failOnDataLoss, and is logged as a warning otherwise.
    """
    for attempt in range(options.offset_attempts + 1):
        if attempt:
            time.sleep(options.offset_retry_interval_ms / 1000)
        low = client.list_offsets({partition: EARLIEST})[partition].offset
        high = client.list_offsets({partition: LATEST})[partition].offset
        if low <= offset < high:
            return offset
        if low > offset:
            break
    report_data_loss(options, f"{partition} has offsets {low} to {high}, but {offset} was to be read")
    return min(low, end) if low > offset else end
