"""The Fetch (key 1) request, by hand: parts of fixed size are unpacked at once, into plain tuples. Pure.

Versions 4–18; kio's reader is the twin that tests compare this module with. Unknown tagged fields are skipped.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from .errors import ProtocolError
from .fetch import FLEXIBLE, TOPIC_IDS
from .varints import read_unsigned_varint

CONSUMER = -1
_REPLICA_STATE_VERSION = 15  # from here on the replica's id is a tagged field
_SESSIONS = 7
_REPLICA_STATE_TAG = 1

_short = struct.Struct(">h")
_int = struct.Struct(">i")
_replica_id = struct.Struct(">i")
_limits = struct.Struct(">iiib")  # max wait, min bytes, max bytes, isolation level
_session = struct.Struct(">ii")  # id, epoch
_partition_4 = struct.Struct(">iqi")  # index, fetch offset, max bytes
_partition_5 = struct.Struct(">iqqi")  # … log start offset before max bytes
_partition_9 = struct.Struct(">iiqqi")  # … leader epoch after index
_partition_12 = struct.Struct(">iiqiqi")  # … last fetched epoch after fetch offset

AskedPartition = tuple[int, int, int, int, int, int]
"""Index, fetch offset, max bytes, current leader epoch, last fetched epoch, the follower's log start offset."""


class FetchRequest(NamedTuple):
    """A decoded request. Topics go by name, or from version 13 by the 16 bytes of their id."""

    replica_id: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[tuple[str | bytes, list[AskedPartition]]]
    forgotten: list[tuple[str | bytes, list[int]]]
    rack_id: str


def read_fetch_request(version: int, frame: bytearray | bytes, position: int, end: int) -> FetchRequest:
    """The request body at frame[position:end]; what follows it is left out, as by Kafka.

    Raises ProtocolError where the bytes don't follow the schema.
    """
    try:
        request, position = _read(version, frame, position, end)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"malformed Fetch request: {error}") from error
    if position > end:
        raise ProtocolError("the frame ends inside a Fetch request")
    return request


def _read(version: int, frame: bytearray | bytes, position: int, end: int) -> tuple[FetchRequest, int]:
    flexible = version >= FLEXIBLE
    replica_id = CONSUMER
    if version < _REPLICA_STATE_VERSION:
        (replica_id,) = _replica_id.unpack_from(frame, position)
        position += 4
    max_wait_ms, min_bytes, max_bytes, isolation_level = _limits.unpack_from(frame, position)
    position += 13
    session_id, session_epoch = 0, -1
    if version >= _SESSIONS:
        session_id, session_epoch = _session.unpack_from(frame, position)
        position += 8
    topics: list[tuple[str | bytes, list[AskedPartition]]] = []
    count, position = _count(flexible, frame, position, end)
    for _ in range(count):
        topic, position = _topic(version, frame, position, end)
        partitions, position = _partitions(version, frame, position, end)
        topics.append((topic, partitions))
    forgotten: list[tuple[str | bytes, list[int]]] = []
    if version >= _SESSIONS:
        count, position = _count(flexible, frame, position, end)
        for _ in range(count):
            topic, position = _topic(version, frame, position, end)
            number, position = _count(flexible, frame, position, end)
            forgotten.append((topic, list(struct.unpack_from(f">{number}i", frame, position))))
            position += 4 * number
            if flexible:
                position = _skip_tags(frame, position, end)
    rack_id = ""
    if version >= 11:
        rack_id, position = _string(flexible, frame, position, end)
    if flexible:
        count, position = read_unsigned_varint(frame, position)
        for _ in range(count):
            tag, position = read_unsigned_varint(frame, position)
            size, position = read_unsigned_varint(frame, position)
            if tag == _REPLICA_STATE_TAG and version >= _REPLICA_STATE_VERSION:
                (replica_id,) = _replica_id.unpack_from(frame, position)
            position = _within(position + size, end)
    request = FetchRequest(
        replica_id,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack_id,
    )
    return request, position


def _partitions(version: int, frame: bytearray | bytes, position: int, end: int) -> tuple[list[AskedPartition], int]:
    partitions: list[AskedPartition] = []
    count, position = _count(version >= FLEXIBLE, frame, position, end)
    for _ in range(count):
        leader_epoch = last_epoch = log_start = -1
        if version >= FLEXIBLE:
            index, leader_epoch, offset, last_epoch, log_start, limit = _partition_12.unpack_from(frame, position)
            position += 32
            position = position + 1 if frame[position] == 0 else _skip_tags(frame, position, end)
        elif version >= 9:
            index, leader_epoch, offset, log_start, limit = _partition_9.unpack_from(frame, position)
            position += 28
        elif version >= 5:
            index, offset, log_start, limit = _partition_5.unpack_from(frame, position)
            position += 24
        else:
            index, offset, limit = _partition_4.unpack_from(frame, position)
            position += 16
        partitions.append((index, offset, limit, leader_epoch, last_epoch, log_start))
    if version >= FLEXIBLE:
        position = _skip_tags(frame, position, end)
    return partitions, position


def _topic(version: int, frame: bytearray | bytes, position: int, end: int) -> tuple[str | bytes, int]:
    if version >= TOPIC_IDS:
        return bytes(frame[position : position + 16]), _within(position + 16, end)
    return _string(version >= FLEXIBLE, frame, position, end)


def _string(flexible: bool, frame: bytearray | bytes, position: int, end: int) -> tuple[str, int]:
    if flexible:
        size, position = read_unsigned_varint(frame, position)
        size -= 1
    else:
        (size,) = _short.unpack_from(frame, position)
        position += 2
    if size < 0:
        raise ProtocolError("a string that must not be null")
    after = _within(position + size, end)
    return str(frame[position:after], "utf-8"), after


def _count(flexible: bool, frame: bytearray | bytes, position: int, end: int) -> tuple[int, int]:
    """An array's count, refused where so many elements can't follow."""
    if flexible:
        count, position = read_unsigned_varint(frame, position)
        count -= 1
    else:
        (count,) = _int.unpack_from(frame, position)
        position += 4
    if not 0 <= count <= end - position:
        raise ProtocolError(f"an array of {count} elements in {end - position} bytes")
    return count, position


def _skip_tags(frame: bytearray | bytes, position: int, end: int) -> int:
    count, position = read_unsigned_varint(frame, position)
    for _ in range(count):
        _, position = read_unsigned_varint(frame, position)
        size, position = read_unsigned_varint(frame, position)
        position = _within(position + size, end)
    return position


def _within(position: int, end: int) -> int:
    if position > end:
        raise ProtocolError("the frame ends inside a field")
    return position
