"""What a task does: reads its ranges of offsets and yields Arrow record batches.

A worker process keeps its clients from task to task, one for each set of properties: a micro-batch of a few records
should not pay for connecting. Workers are forked from a daemon that never opens one.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from ottla.net.client import Client
from ottla.net.fetching import OffsetOutOfRange, RangeReader
from ottla.net.names import EARLIEST, LATEST, TopicPartition
from ottla.protocol.errors import ErrorCode, KafkaError

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
            yield from _read_range(each, options, schema)


def _read_range(asked: OffsetRange, options: ReadOptions, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    partition, offset, end = asked
    client = _client(options.properties)
    while offset < end:
        reader = _reader(client, partition, offset, end, options)
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
        except OffsetOutOfRange:
            offset = _after_gap(client, partition, offset, end, options)
        except KafkaError as error:
            if error.code != ErrorCode.unknown_topic_or_partition:
                raise
            report_data_loss(options, f"{partition} is gone")
            return


def _client(properties: ClientProperties) -> Client:
    if properties not in _clients:
        gc.freeze()  # workers collect garbage after each task, and to look through all of numba's objects takes 60 ms
        _clients[properties] = open_client(properties)
    return _clients[properties]


def _reader(client: Client, partition: TopicPartition, start: int, end: int, options: ReadOptions) -> RangeReader:
    properties = options.properties
    return RangeReader(
        client,
        partition,
        start,
        end,
        isolation=properties.isolation,
        max_bytes=properties.fetch_max_bytes,
        min_bytes=properties.fetch_min_bytes,
        max_wait_ms=properties.fetch_max_wait_ms,
        poll_timeout_ms=options.poll_timeout_ms,
    )


def _after_gap(client: Client, partition: TopicPartition, offset: int, end: int, options: ReadOptions) -> int:
    """Where to go on after `offset` turned out to be gone: the earliest offset there is, or `end` if that is beyond."""
    low = client.list_offsets({partition: EARLIEST})[partition].offset
    high = client.list_offsets({partition: LATEST})[partition].offset
    report_data_loss(options, f"{partition} holds offsets {low} to {high}, and {offset} was to be read")
    return min(low, end) if low > offset else end
