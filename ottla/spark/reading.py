"""What a task does: reads its ranges of offsets and yields Arrow record batches.

A worker process keeps its clients from task to task, one for each set of properties: a micro-batch of a few records
should not pay for connecting. Workers are forked from a daemon that never opens one.
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
    """The records of `task`; nothing for the placeholder that Spark makes up where there is nothing to read.

    Raises DataLoss where offsets are gone, under failOnDataLoss.
    """
    if isinstance(task, TaskRanges):
        for each in task.ranges:
            yield from _read_range(each, task.topic_ids.get(each.partition.topic), options, schema)


def _read_range(
    asked: OffsetRange, topic_id: UUID | None, options: ReadOptions, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    partition, offset, end = asked
    client = _client(options.properties)
    gaps = 0  # one after another, with nothing read between them
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
        gc.freeze()  # workers collect garbage after each task, and to look through all of numba's objects takes 60 ms
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
    """The offset at which to go on after a broker said that `offset` is out of range. Raises DataLoss.

    If the log has `offset`, that is `offset`: it is read again. If the log starts after `offset`, data is lost, and the
    task goes on at the log's first offset, at most at `end`. If the log ends before `offset`, the leader is asked
    again, because a new leader's high watermark may still be behind; if it stays behind, data is lost, and the rest of
    the range is left out. Lost data raises DataLoss under failOnDataLoss, and is a warning otherwise.
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
    report_data_loss(options, f"{partition} holds offsets {low} to {high}, and {offset} was to be read")
    return min(low, end) if low > offset else end
