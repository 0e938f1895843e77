"""Fetch (key 1, version 17) for a follower: a writer of the request, and a reader of the answer. Pure.

Record sets aren't copied out of the answer: the reader gives their positions. Tests compare this module with kio, its
twin.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from .errors import ProtocolError
from .fetch_request import AskedPartition
from .frames import skip_tagged_fields
from .varints import read_unsigned_varint, write_unsigned_varint

FETCH = 1
VERSION = 17

_DIVERGING_EPOCH_TAG = 0
_limits = struct.Struct(">iiibii")  # max wait, min bytes, max bytes, isolation level, session id, session epoch
_asked = struct.Struct(">iiqiqib")  # index, leader epoch, offset, last epoch, log start, max bytes, no tags
_replica_state = struct.Struct(">iqb")  # replica id, replica epoch, no tags
_answer = struct.Struct(">ihi")  # throttle time, error, session id
_partition = struct.Struct(">ihqqq")  # index, error, high watermark, last stable offset, log start offset
_int = struct.Struct(">i")
_epoch_end = struct.Struct(">iq")
_ABORTED_BYTES = 16  # producer id and first offset, before the tagged fields


class FetchLimits(NamedTuple):
    """The bounds of a fetch: the leader waits up to `max_wait_ms` for `min_bytes`, and sends up to `max_bytes`."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int


class FetchedPartition(NamedTuple):
    """The leader's answer for one partition. `records` is the position of the record set, as (start, end).

    If the follower's last epoch ended at another offset in the leader's log, `diverging` is the (epoch, end offset) of
    the leader's log (KIP-595).
    """

    topic: bytes
    index: int  # type: ignore[assignment]  # hides tuple.index
    error: int
    high_watermark: int
    log_start_offset: int
    diverging: tuple[int, int] | None
    records: tuple[int, int]


class FetchAnswer(NamedTuple):
    """The head of an answer, and the position of its topics."""

    error: int
    session_id: int
    topics_at: int


def write_follower_fetch(
    replica: tuple[int, int],
    limits: FetchLimits,
    session: tuple[int, int],
    topics: Sequence[tuple[bytes, Sequence[AskedPartition]]],
    forgotten: Sequence[tuple[bytes, Sequence[int]]] = (),
) -> bytes:
    """The request's body. `replica` is (broker id, broker epoch), `session` is (id, epoch). Topics are given by id."""
    out = bytearray(_limits.pack(*limits, 0, *session))
    write_unsigned_varint(out, len(topics) + 1)
    for topic, partitions in topics:
        out += topic
        write_unsigned_varint(out, len(partitions) + 1)
        for index, offset, max_bytes, leader_epoch, last_epoch, log_start in partitions:
            out += _asked.pack(index, leader_epoch, offset, last_epoch, log_start, max_bytes, 0)
        out.append(0)
    write_unsigned_varint(out, len(forgotten) + 1)
    for topic, indexes in forgotten:
        out += topic
        write_unsigned_varint(out, len(indexes) + 1)
        out += struct.pack(f">{len(indexes)}i", *indexes)
        out.append(0)
    out.append(1)  # no rack, because a follower fetches from the leader in any case
    out += bytes((1, 1, _replica_state.size))  # one tagged field: number 1, its size
    out += _replica_state.pack(*replica, 0)
    return bytes(out)


def read_fetch_answer(frame: bytearray, position: int, end: int) -> FetchAnswer:
    """The head of the answer whose body is frame[position:end]. Raises ProtocolError if the frame ends inside the
    head."""
    if end - position < _answer.size:
        raise ProtocolError("the frame ends inside the head of a Fetch answer")
    _, error, session_id = _answer.unpack_from(frame, position)
    return FetchAnswer(error, session_id, position + _answer.size)


def read_fetched_partitions(frame: bytearray, position: int, end: int) -> Iterator[FetchedPartition]:
    """The partitions of the answer, from `FetchAnswer.topics_at` on. Raises ProtocolError for malformed bytes."""
    try:
        topic_count, position = _count(frame, position, end)
        for _ in range(topic_count):
            topic = bytes(frame[position : position + 16])
            partition_count, position = _count(frame, position + 16, end)
            for _ in range(partition_count):
                partition, position = _read_partition(frame, position, end, topic)
                yield partition
            position = skip_tagged_fields(frame, position, end)
    except (struct.error, IndexError) as error:
        raise ProtocolError(f"malformed Fetch answer: {error}") from error


def _read_partition(frame: bytearray, position: int, end: int, topic: bytes) -> tuple[FetchedPartition, int]:
    index, error, high_watermark, _, log_start = _partition.unpack_from(frame, position)
    aborted, position = read_unsigned_varint(frame, position + _partition.size)
    if aborted > end - position:
        raise ProtocolError(f"{aborted} aborted transactions are stated, but only {end - position} bytes follow")
    for _ in range(aborted - 1):
        position = skip_tagged_fields(frame, position + _ABORTED_BYTES, end)
    size, start = read_unsigned_varint(frame, position + _int.size)  # behind the preferred read replica
    stop = start + max(size - 1, 0)
    if stop >= end:
        raise ProtocolError(f"a record set states a size of {size - 1} bytes, but only {end - start} bytes follow")
    diverging, position = _diverging(frame, stop, end)
    records = (start, stop)
    return FetchedPartition(topic, index, error, high_watermark, log_start, diverging, records), position


def _diverging(frame: bytearray, position: int, end: int) -> tuple[tuple[int, int] | None, int]:
    """((epoch, end offset) where the leader's log diverges, or None; position after the tagged fields)."""
    count, position = read_unsigned_varint(frame, position)
    diverging = None
    for _ in range(count):
        tag, position = read_unsigned_varint(frame, position)
        size, position = read_unsigned_varint(frame, position)
        if position + size > end:
            raise ProtocolError("the frame ends inside a tagged field")
        if tag == _DIVERGING_EPOCH_TAG:
            epoch, end_offset = _epoch_end.unpack_from(frame, position)
            diverging = (epoch, end_offset) if end_offset >= 0 else None
        position += size
    return diverging, position


def _count(frame: bytearray, position: int, end: int) -> tuple[int, int]:
    count, position = read_unsigned_varint(frame, position)
    if not 1 <= count <= end - position + 1:
        raise ProtocolError(f"an array states {count - 1} elements, but has only {end - position} bytes")
    return count - 1, position


def by_topic(keys: Iterable[tuple[bytes, int]]) -> list[tuple[bytes, list[int]]]:
    """(topic id, partition index) pairs, grouped by topic as in a request. Both keep their order."""
    topics: dict[bytes, list[int]] = {}
    for topic, index in keys:
        topics.setdefault(topic, []).append(index)
    return list(topics.items())
