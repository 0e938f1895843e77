"""A reader of the Fetch (key 1) request, written by hand for speed. Pure.

The reader unpacks each run of fields of fixed size by one call, into plain tuples.

Versions 4–18; kio's reader is the twin that tests compare this module with. Unknown tagged fields are skipped.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from .errors import ProtocolError
from .fetch import FLEXIBLE, TOPIC_IDS
from .received import Frame
from .varints import read_unsigned_varint

CONSUMER = -1
_REPLICA_STATE_VERSION = 15  # from here on the replica's id is a tagged field
_SESSIONS = 7
_RACKS = 11
_REPLICA_STATE_TAG = 1

_short = struct.Struct(">h")
_int = struct.Struct(">i")
_two_ints = struct.Struct(">ii")
_replica_state = struct.Struct(">iq")
_limits_4 = struct.Struct(">iiiib")  # replica, max wait, min bytes, max bytes, isolation level
_limits_12 = struct.Struct(">iiibiiB")  # without the replica; session id and epoch; a small count of topics
_partition_4 = struct.Struct(">iqi")  # index, fetch offset, max bytes
_partition_5 = struct.Struct(">iqqi")  # … log start offset before max bytes
_partition_9 = struct.Struct(">iiqqi")  # … leader epoch after index
_partition_12 = struct.Struct(">iiqiqiB")  # … last fetched epoch after fetch offset; a count of tagged fields
_new = tuple.__new__  # a NamedTuple's own constructor is a Python function, and takes twice as long

AskedPartition = tuple[int, int, int, int, int, int]
"""Index, fetch offset, max bytes, current leader epoch, last fetched epoch, the follower's log start offset."""


class FetchRequest(NamedTuple):
    """A decoded request. Topics are given by name, from version 13 on by the 16 bytes of their id.

    `replica_epoch` is the epoch of the follower's registration; it is −1 if the request doesn't have it.
    """

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
    replica_epoch: int = -1


def read_fetch_request(version: int, frame: Frame, position: int, end: int) -> FetchRequest:
    """The request body at frame[position:end]. Bytes after the body are ignored, as Kafka ignores them.

    Raises ProtocolError if the bytes don't follow the schema.
    """
    try:
        if version >= FLEXIBLE:
            return _read_flexible(version, frame, position, end)
        return _read_plain(version, frame, position, end)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"malformed Fetch request: {error}") from error


def _read_flexible(version: int, frame: Frame, position: int, end: int) -> FetchRequest:
    """Reads a flexible version. Counts and sizes of one byte, as most are, are read in place, for speed."""
    replica_id, replica_epoch = CONSUMER, -1
    if version < _REPLICA_STATE_VERSION:
        (replica_id,) = _int.unpack_from(frame, position)
        position += 4
    max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, topic_count = _limits_12.unpack_from(
        frame, position
    )
    position += 22
    if 0 < topic_count < 0x80:
        topic_count -= 1
    else:
        topic_count, position = _compact_count(frame, position - 1, end)
    topics: list[tuple[str | bytes, list[AskedPartition]]] = []
    topic: str | bytes
    for _ in range(topic_count):
        if version < TOPIC_IDS and 0 < (size := frame[position]) < 0x80:
            topic = str(frame[position + 1 : position + size], "utf-8")
            position += size
        else:
            topic, position = _compact_topic(version, frame, position, end)
        partition_count = frame[position]
        if 0 < partition_count < 0x80:
            partition_count -= 1
            position += 1
        else:
            partition_count, position = _compact_count(frame, position, end)
        partitions: list[AskedPartition] = []
        for _ in range(partition_count):
            index, leader_epoch, offset, last_epoch, log_start, limit, tags = _partition_12.unpack_from(frame, position)
            partitions.append((index, offset, limit, leader_epoch, last_epoch, log_start))
            position = position + 33 if tags == 0 else _skip_tags(frame, position + 32, end)
        topics.append((topic, partitions))
        position = position + 1 if frame[position] == 0 else _skip_tags(frame, position, end)
    forgotten: list[tuple[str | bytes, list[int]]] = []
    if frame[position] == 1:
        position += 1
    else:
        position = _read_forgotten(version, frame, position, end, forgotten)
    rack_id = ""
    if frame[position] == 1:
        position += 1
    else:
        rack_id, position = _compact_string(frame, position, end)
    if frame[position] == 0:
        position += 1
    else:
        replica_id, replica_epoch, position = _read_tags(version, frame, position, end, replica_id)
    if position > end:
        raise _cut_short()
    return _new(
        FetchRequest,
        (
            replica_id, max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, topics, forgotten,
            rack_id, replica_epoch,
        ),
    )  # fmt: skip


def _read_forgotten(
    version: int, frame: Frame, position: int, end: int, forgotten: list[tuple[str | bytes, list[int]]]
) -> int:
    """Adds the partitions that leave the session to `forgotten`. Returns the position after them."""
    forgotten_count, position = _compact_count(frame, position, end)
    for _ in range(forgotten_count):
        topic, position = _compact_topic(version, frame, position, end)
        number, position = _compact_count(frame, position, end)
        forgotten.append((topic, list(struct.unpack_from(f">{number}i", frame, position))))
        position = _skip_tags(frame, position + 4 * number, end)
    return position


def _read_tags(version: int, frame: Frame, position: int, end: int, replica_id: int) -> tuple[int, int, int]:
    """(the replica's id and epoch, position after the tagged fields)."""
    replica_epoch = -1
    count, position = read_unsigned_varint(frame, position)
    for _ in range(count):
        tag, position = read_unsigned_varint(frame, position)
        size, position = read_unsigned_varint(frame, position)
        if tag == _REPLICA_STATE_TAG and version >= _REPLICA_STATE_VERSION:
            replica_id, replica_epoch = _replica_state.unpack_from(frame, position)
        position = _within(position + size, end)
    return replica_id, replica_epoch, position


def _read_plain(version: int, frame: Frame, position: int, end: int) -> FetchRequest:
    replica_id, max_wait_ms, min_bytes, max_bytes, isolation = _limits_4.unpack_from(frame, position)
    position += _limits_4.size
    session_id, session_epoch = 0, -1
    if version >= _SESSIONS:
        session_id, session_epoch = _two_ints.unpack_from(frame, position)
        position += 8
    topics: list[tuple[str | bytes, list[AskedPartition]]] = []
    topic_count, position = _plain_count(frame, position, end)
    for _ in range(topic_count):
        topic, position = _plain_string(frame, position, end)
        partitions: list[AskedPartition] = []
        partition_count, position = _plain_count(frame, position, end)
        for _ in range(partition_count):
            leader_epoch = log_start = -1
            if version >= 9:
                index, leader_epoch, offset, log_start, limit = _partition_9.unpack_from(frame, position)
                position += 28
            elif version >= 5:
                index, offset, log_start, limit = _partition_5.unpack_from(frame, position)
                position += 24
            else:
                index, offset, limit = _partition_4.unpack_from(frame, position)
                position += 16
            partitions.append((index, offset, limit, leader_epoch, -1, log_start))
        topics.append((topic, partitions))
    forgotten: list[tuple[str | bytes, list[int]]] = []
    if version >= _SESSIONS:
        forgotten_count, position = _plain_count(frame, position, end)
        for _ in range(forgotten_count):
            topic, position = _plain_string(frame, position, end)
            number, position = _plain_count(frame, position, end)
            forgotten.append((topic, list(struct.unpack_from(f">{number}i", frame, position))))
            position += 4 * number
    rack_id = ""
    if version >= _RACKS:
        rack_id, position = _plain_string(frame, position, end)
    if position > end:
        raise _cut_short()
    return FetchRequest(
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation, session_id, session_epoch, topics, forgotten, rack_id
    )


def _cut_short() -> ProtocolError:
    return ProtocolError("the frame ends inside a Fetch request")


def _compact_count(frame: Frame, position: int, end: int) -> tuple[int, int]:
    """(an array's count, position after it). Raises ProtocolError for a count above 126 and above the bytes left."""
    count = frame[position]
    if 0 < count < 0x80:
        return count - 1, position + 1
    count, position = read_unsigned_varint(frame, position)
    return _plausible(count - 1, position, end), position


def _plain_count(frame: Frame, position: int, end: int) -> tuple[int, int]:
    (count,) = _int.unpack_from(frame, position)
    return _plausible(count, position + 4, end), position + 4


def _plausible(count: int, position: int, end: int) -> int:
    if not 0 <= count <= end - position:
        raise ProtocolError(f"an array states {count} elements, but has only {end - position} bytes")
    return count


def _compact_topic(version: int, frame: Frame, position: int, end: int) -> tuple[str | bytes, int]:
    if version >= TOPIC_IDS:
        return bytes(frame[position : position + 16]), _within(position + 16, end)
    return _compact_string(frame, position, end)


def _compact_string(frame: Frame, position: int, end: int) -> tuple[str, int]:
    size, position = read_unsigned_varint(frame, position)
    return _text(size - 1, frame, position, end)


def _plain_string(frame: Frame, position: int, end: int) -> tuple[str, int]:
    (size,) = _short.unpack_from(frame, position)
    return _text(size, frame, position + 2, end)


def _text(size: int, frame: Frame, position: int, end: int) -> tuple[str, int]:
    after = position + size
    if size < 0 or after > end:
        raise ProtocolError(f"a string states a size of {size} bytes, but only {end - position} bytes follow")
    return str(frame[position:after], "utf-8"), after


def _skip_tags(frame: Frame, position: int, end: int) -> int:
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
