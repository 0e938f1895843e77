"""Fetch (key 1, version 17) as a follower speaks it: the request written, the answer read where it lies. Pure.

Record sets aren't copied out of the answer: the reader says where they are. kio is the twin that tests compare this
module with.
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
    """How long the leader may wait for how much, and how much it may send."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int


class FetchedPartition(NamedTuple):
    """What the leader answers for a partition; `records` is where its record set lies, as (start, end).

    `diverging` is (epoch, end offset) where the follower's last epoch ended otherwise at the leader (KIP-595).
    """

    topic: bytes
    index: int  # type: ignore[assignment]  # hides tuple.index
    error: int
    high_watermark: int
    log_start_offset: int
    diverging: tuple[int, int] | None
    records: tuple[int, int]


class FetchAnswer(NamedTuple):
    """The head of an answer, and where its topics begin."""

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
    """The request's body. `replica` is (broker id, broker epoch), `session` is (id, epoch); topics by their ids."""
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
    out.append(1)  # no rack: a follower fetches from the leader wherever that is
    out += bytes((1, 1, _replica_state.size))  # one tagged field: number 1, its size
    out += _replica_state.pack(*replica, 0)
    return bytes(out)


def read_fetch_answer(frame: bytearray, position: int, end: int) -> FetchAnswer:
    """The head of the answer whose body lies at frame[position:end]. Raises ProtocolError."""
    if end - position < _answer.size:
        raise ProtocolError("the frame ends inside the head of a Fetch answer")
    _, error, session_id = _answer.unpack_from(frame, position)
    return FetchAnswer(error, session_id, position + _answer.size)


def read_fetched_partitions(frame: bytearray, position: int, end: int) -> Iterator[FetchedPartition]:
    """The partitions of the answer, from `FetchAnswer.topics_at` on. Raises ProtocolError where it isn't one."""
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
        raise ProtocolError(f"{aborted} aborted transactions in {end - position} bytes")
    for _ in range(aborted - 1):
        position = skip_tagged_fields(frame, position + _ABORTED_BYTES, end)
    size, start = read_unsigned_varint(frame, position + _int.size)  # behind the preferred read replica
    stop = start + max(size - 1, 0)
    if stop >= end:
        raise ProtocolError(f"a record set of {size - 1} bytes, with {end - start} to come")
    diverging, position = _diverging(frame, stop, end)
    records = (start, stop)
    return FetchedPartition(topic, index, error, high_watermark, log_start, diverging, records), position


def _diverging(frame: bytearray, position: int, end: int) -> tuple[tuple[int, int] | None, int]:
    """(epoch and end offset that the leader knows, position after the tagged fields)."""
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
        raise ProtocolError(f"an array of {count - 1} elements in {end - position} bytes")
    return count - 1, position


def by_topic(keys: Iterable[tuple[bytes, int]]) -> list[tuple[bytes, list[int]]]:
    """(topic id, partition index) pairs as the request groups them, in their order."""
    topics: dict[bytes, list[int]] = {}
    for topic, index in keys:
        topics.setdefault(topic, []).append(index)
    return list(topics.items())
