"""Reads one partition's raw record sets over a range of offsets, always one request ahead of its caller.

The next Fetch request is sent as soon as an answer's batch headers show at which offset the answer ends. So the broker
reads while the caller decodes. If another broker becomes the leader or the connection breaks, the reader continues
behind the last offset that the caller got, so no record is skipped or returned twice. Fetch sessions aren't used
(session id 0, KIP-227).
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from ottla.protocol.batches import HEADER_SIZE, LOG_OVERHEAD
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.fetch import TOPIC_IDS
from ottla.protocol.fetch_response import FetchedPartition

from .blocking import Connection
from .client import Client
from .error_codes import ABSENT, Retry, check
from .existence import doubt
from .names import READ_UNCOMMITTED, TopicPartition

FETCH = 1
BYTES_MAX = 4 << 20
_BYTES_MIN = 64 << 10
_RECORD_BYTES_GUESS = 1 << 10  # the assumed size of a record before the first answer
_offset_and_length = struct.Struct(">qi")
_int32 = struct.Struct(">i")


class FetchedRecords(NamedTuple):
    """Record batches in `records`, of which the last one may be cut off.

    `aborted` has (producer id, first offset) of aborted transactions. `records` is a view of the connection's buffer,
    and is valid until the reader's next step.
    """

    records: memoryview
    next_offset: int
    aborted: tuple[tuple[int, int], ...]


class OffsetOutOfRange(KafkaError):
    """The offset in the request isn't in the log: its record was deleted, or never written."""


class RecordsMissing(Exception):
    """No record came within the allowed time, although the end of the range isn't reached."""


class RangeReader:
    """Iterates over FetchedRecords until every offset in [start, end) has been covered.

    `max_bytes` bounds one answer (a larger first batch still comes whole, KIP-74), `poll_timeout_ms` the wait for the
    next record. With a `topic_id`, requests to brokers that serve Fetch 13 (KIP-516) name the topic by its id, so that
    a new topic of the same name is never read. Raises OffsetOutOfRange, RecordsMissing, TopicGone, KafkaError,
    Unreachable.
    """

    def __init__(
        self,
        client: Client,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        topic_id: UUID | None = None,
        isolation: int = READ_UNCOMMITTED,
        max_bytes: int = BYTES_MAX,
        min_bytes: int = 1,
        max_wait_ms: int = 500,
        poll_timeout_ms: int = 120_000,
    ) -> None:
        self._client = client
        self._partition = partition
        self._start = start
        self._end = end
        self._topic_id = topic_id
        self._isolation = isolation
        self._max_bytes = max_bytes
        self._min_bytes = min_bytes
        self._max_wait_ms = max_wait_ms
        self._poll_timeout_ms = poll_timeout_ms
        self._bytes_read = 0
        self._asked: tuple[Connection, int] | None = None  # (connection with a request under way, its offset)

    def __iter__(self) -> Iterator[FetchedRecords]:
        offset = self._start
        try:
            while offset < self._end:
                fetched = self._next(offset)
                self._bytes_read += len(fetched.records)
                offset = fetched.next_offset
                if offset < self._end:
                    self._ask_ahead(offset)
                yield fetched
        finally:
            if self._asked is not None:
                self._client.drop(self._asked[0])  # otherwise its answer would be taken for the next request's
                self._asked = None

    def _next(self, offset: int) -> FetchedRecords:
        deadline = time.monotonic() + self._poll_timeout_ms / 1000
        while True:
            data = self._client.retrying(
                lambda: self._attempt(offset), f"Fetch of {self._partition} at offset {offset}"
            )
            next_offset = end_of(data.records, offset) if data.records else offset
            if next_offset > offset:
                return FetchedRecords(data.records, next_offset, data.aborted)
            if time.monotonic() >= deadline:
                raise RecordsMissing(
                    f"{self._partition} gave no record at offset {offset} in {self._poll_timeout_ms} ms, and the range "
                    f"goes to {self._end} (high watermark {data.high_watermark})"
                )

    def _attempt(self, offset: int) -> FetchedPartition:
        if self._asked is None or self._asked[1] != offset:
            self._ask(offset)
        assert self._asked is not None
        connection = self._asked[0]
        self._asked = None  # the request is answered or fails now, and isn't under way after this
        held_s = self._max_wait_ms / 1000
        self._client.await_answer(connection, [self._partition], self._client.request_timeout_ms / 1000 + held_s)
        error, partitions = connection.receive_fetched(extra_s=held_s)
        check(error, str(self._partition), connection.address)
        data = partitions[0]
        code = data.error
        if code == ErrorCode.offset_out_of_range:
            raise OffsetOutOfRange(code, f"{self._partition} has no offset {offset}")
        if code in ABSENT:
            raise doubt(self._client, self._partition, self._topic_id, f"{connection.address} answered {code.name}")
        if code != ErrorCode.none:
            self._client.forget_leader(self._partition)
        check(code, str(self._partition), connection.address)
        return data

    def _ask_ahead(self, offset: int) -> None:
        try:
            self._ask(offset)
        except (ConnectionError, Retry):
            self._asked = None  # the next attempt connects anew, and retries until its deadline if it fails, too

    def _ask(self, offset: int) -> None:
        connection = self._client.leader(self._partition)
        version = connection.version(FETCH, 4, 12 if self._topic_id is None else TOPIC_IDS)
        size = self._answer_size(offset)
        wanted = {"partition": self._partition.partition, "fetch_offset": offset, "partition_max_bytes": size}
        topic = {"topic_id": self._topic_id} if version >= TOPIC_IDS else {"topic": self._partition.topic}
        message = {
            "replica_id": -1,
            "max_wait": self._max_wait_ms,
            "min_bytes": self._min_bytes,
            "max_bytes": size,
            "isolation_level": self._isolation,
            "topics": [{**topic, "partitions": [wanted]}],
            "forgotten_topics_data": [],
        }
        connection.send(FETCH, version, message)
        self._asked = (connection, offset)

    def _answer_size(self, offset: int) -> int:
        """The bytes to request: the size of the rest of the range, estimated by the size of the records so far.

        With a larger request, the broker would also send records beyond the range, which this reader would drop.
        """
        done = offset - self._start
        average = self._bytes_read / done if done else _RECORD_BYTES_GUESS
        expected = int((self._end - offset) * average * 1.1) + HEADER_SIZE
        return min(self._max_bytes, max(expected, _BYTES_MIN))


def end_of(records: memoryview, offset: int) -> int:
    """The offset after the last whole batch of a record set fetched at `offset`; `offset` if no batch is whole."""
    position, stop = 0, len(records)
    while position + HEADER_SIZE <= stop:
        base_offset, length = _offset_and_length.unpack_from(records, position)
        size = LOG_OVERHEAD + length
        if size < HEADER_SIZE or position + size > stop:
            break
        offset = max(offset, base_offset + _int32.unpack_from(records, position + 23)[0] + 1)
        position += size
    return offset
