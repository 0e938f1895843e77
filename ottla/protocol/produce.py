"""A reader and a writer for Produce (key 0), the hottest request, written by hand for speed. Pure.

Record sets aren't copied: the reader gives their positions in the frame, so that their offsets can be patched in place
and the bytes be written to the log from there. Versions 3–13. Tests compare this module with its twins, kio's reader
and the generic writer of `ottla.protocol.messages`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from .errors import ProtocolError
from .received import Frame
from .varints import read_unsigned_varint, write_unsigned_varint

FLEXIBLE = 9
TOPIC_IDS = 13
_acks_timeout_count = struct.Struct(">hii")
_acks_timeout_small_count = struct.Struct(">hiB")
_short = struct.Struct(">h")
_int = struct.Struct(">i")
_two_ints = struct.Struct(">ii")
_int_byte = struct.Struct(">iB")
_answer = struct.Struct(">ihqq")  # index, error, base offset, log append time
_sized_start = struct.Struct(">iib")  # size, correlation id, no tags in the header
_answer_start = struct.Struct(">ihqqq")  # … and log start offset
_SUCCESS_END = b"\x01\x00\x00"  # no record errors, null message, no tags
_ONE_SUCCESS_END = _SUCCESS_END + bytes(6)  # no tags of the topic, no throttle time, no tags of the response
_ONE_SUCCESS_BYTES = 5 + _answer_start.size + len(_ONE_SUCCESS_END)  # without the topic
_new = tuple.__new__  # a NamedTuple's own constructor is a Python function, and takes twice as long
NO_TAGS = b"\x00"


PartitionRecords = tuple[int, int, int]
"""A partition's index and its record set as (start, end) in the frame; start is −1 if the record set is null."""

TopicRecords = tuple[str | bytes, list[PartitionRecords]]
"""A topic by its name, or from version 13 by the 16 bytes of its id."""


class ProduceRequest(NamedTuple):
    """A decoded request. `acks` should be −1, 0 or 1, but isn't checked; `timeout` is in ms."""

    transactional_id: str | None
    acks: int
    timeout: int
    topics: list[TopicRecords]


class PartitionAnswer(NamedTuple):
    """The answer for one partition. `record_errors` are errors of single records, as (batch index, message): KIP-467.

    If another broker leads the partition, `tags` are the encoded tagged fields, with their count before them.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index
    error: int
    base_offset: int = -1
    log_append_time: int = -1
    log_start_offset: int = -1
    message: str | None = None
    record_errors: Sequence[tuple[int, str | None]] = ()
    tags: bytes = NO_TAGS


def success(index: int, base_offset: int, append_time: int, log_start_offset: int) -> PartitionAnswer:
    """The answer for a partition whose batch was written."""
    return _new(PartitionAnswer, (index, 0, base_offset, append_time, log_start_offset, None, (), NO_TAGS))


def read_produce_request(version: int, frame: Frame, position: int, end: int) -> ProduceRequest:
    """The request body at frame[position:end]. Raises ProtocolError if the bytes don't follow the schema."""
    try:
        if version >= FLEXIBLE:
            return _read_flexible(version, frame, position, end)
        return _read_plain(frame, position, end)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"malformed Produce request: {error}") from error


def _read_flexible(version: int, frame: Frame, position: int, end: int) -> ProduceRequest:
    """Reads a flexible version. Varints of the usual length (one byte; for a record set's size one or two) are read in
    place, for speed."""
    transactional_id = None
    if frame[position] == 0:
        position += 1
    else:
        transactional_id, position = _compact_nullable(frame, position)
    acks, timeout, topic_count = _acks_timeout_small_count.unpack_from(frame, position)
    position += 7
    if 0 < topic_count < 0x80:
        topic_count -= 1
    else:
        topic_count, position = _large_count(frame, position - 1, end)
    topics: list[TopicRecords] = []
    topic: str | bytes
    for _ in range(topic_count):
        if version >= TOPIC_IDS:
            topic = bytes(frame[position : position + 16])
            position += 16
        else:
            size = frame[position]
            if size < 0x80:
                position += 1
            else:
                size, position = read_unsigned_varint(frame, position)
            if size == 0:
                raise ProtocolError("a null topic name")
            topic = str(frame[position : position + size - 1], "utf-8")
            position += size - 1
        partition_count = frame[position]
        if 0 < partition_count < 0x80:
            partition_count -= 1
            position += 1
        else:
            partition_count, position = _large_count(frame, position, end)
        partitions: list[PartitionRecords] = []
        for _ in range(partition_count):
            index, size = _int_byte.unpack_from(frame, position)
            position += 5
            if size >= 0x80:
                byte = frame[position]
                if byte < 0x80:
                    size = size & 0x7F | byte << 7
                    position += 1
                else:
                    size, position = read_unsigned_varint(frame, position - 1)
            if size == 0:
                partitions.append((index, -1, -1))
            else:
                start = position
                position += size - 1
                if position > end:
                    raise ProtocolError("the frame ends inside a record set")
                partitions.append((index, start, position))
            position = position + 1 if frame[position] == 0 else _skip_tags(frame, position, end)
        topics.append((topic, partitions))
        position = position + 1 if frame[position] == 0 else _skip_tags(frame, position, end)
    position = position + 1 if frame[position] == 0 else _skip_tags(frame, position, end)
    if position != end:
        raise _another_end(position, end)
    return _new(ProduceRequest, (transactional_id, acks, timeout, topics))


def _read_plain(frame: Frame, position: int, end: int) -> ProduceRequest:
    transactional_id, position = _nullable(frame, position, end)
    acks, timeout, topic_count = _acks_timeout_count.unpack_from(frame, position)
    position += 10
    topics: list[TopicRecords] = []
    for _ in range(_plausible(topic_count, position, end)):
        topic, position = _nullable(frame, position, end)
        if topic is None:
            raise ProtocolError("a null topic name")
        (partition_count,) = _int.unpack_from(frame, position)
        position += 4
        partitions: list[PartitionRecords] = []
        for _ in range(_plausible(partition_count, position, end)):
            index, size = _two_ints.unpack_from(frame, position)
            position += 8
            if size < 0:
                if size != -1:
                    raise ProtocolError(f"a record set states a size of {size} bytes")
                partitions.append((index, -1, -1))
                continue
            if position + size > end:
                raise ProtocolError("the frame ends inside a record set")
            partitions.append((index, position, position + size))
            position += size
        topics.append((topic, partitions))
    if position != end:
        raise _another_end(position, end)
    return ProduceRequest(transactional_id, acks, timeout, topics)


def _another_end(position: int, end: int) -> ProtocolError:
    return ProtocolError(f"the fields of a Produce request end at byte {position}, but the frame ends at byte {end}")


def _large_count(frame: Frame, position: int, end: int) -> tuple[int, int]:
    """(count, position after it) of an array whose count may take several bytes. Raises ProtocolError for null."""
    count, position = read_unsigned_varint(frame, position)
    if count == 0:
        raise ProtocolError("an array that needs a value is null")
    return _plausible(count - 1, position, end), position


def _plausible(count: int, position: int, end: int) -> int:
    """Returns `count`, the count of an array. Raises ProtocolError if there are fewer bytes left than elements."""
    if not 0 <= count <= end - position:
        raise ProtocolError(f"an array states {count} elements, but has only {end - position} bytes")
    return count


def _compact_nullable(frame: Frame, position: int) -> tuple[str | None, int]:
    size, position = read_unsigned_varint(frame, position)
    if size == 0:
        return None, position
    return str(frame[position : position + size - 1], "utf-8"), position + size - 1


def _nullable(frame: Frame, position: int, end: int) -> tuple[str | None, int]:
    (size,) = _short.unpack_from(frame, position)
    position += 2
    if size < 0:
        return None, position
    if position + size > end:
        raise ProtocolError("the frame ends inside a string")
    return str(frame[position : position + size], "utf-8"), position + size


def _skip_tags(frame: Frame, position: int, end: int) -> int:
    count, position = read_unsigned_varint(frame, position)
    for _ in range(count):
        _, position = read_unsigned_varint(frame, position)
        size, position = read_unsigned_varint(frame, position)
        position += size
        if position > end:
            raise ProtocolError("the frame ends inside a tagged field")
    return position


def write_produce_answer(
    version: int,
    correlation_id: int,
    answers: Sequence[tuple[str | bytes, Sequence[PartitionAnswer]]],
    tags: bytes = NO_TAGS,
    throttle_time: int = 0,
) -> bytes | bytearray:
    """The whole response frame, size and header included; `tags` are the tagged fields of the response, and
    `throttle_time` is in ms."""
    if version >= FLEXIBLE and len(answers) == 1 and not throttle_time:
        topic, partitions = answers[0]
        if len(partitions) == 1 and not partitions[0].error:
            return _write_one_success(correlation_id, topic, partitions[0])
    out = bytearray(4)
    out += _int.pack(correlation_id)
    if version >= FLEXIBLE:
        out.append(0)
        write_unsigned_varint(out, len(answers) + 1)
    else:
        out += _int.pack(len(answers))
    for topic, partitions in answers:
        if version >= TOPIC_IDS:
            out += topic  # type: ignore[arg-type]
        else:
            name = str(topic).encode()
            if version >= FLEXIBLE:
                write_unsigned_varint(out, len(name) + 1)
            else:
                out += _short.pack(len(name))
            out += name
        if version >= FLEXIBLE:
            write_unsigned_varint(out, len(partitions) + 1)
        else:
            out += _int.pack(len(partitions))
        for answer in partitions:
            _write_partition(version, out, answer)
        if version >= FLEXIBLE:
            out.append(0)
    out += _int.pack(throttle_time)
    if version >= FLEXIBLE:
        out += tags
    _int.pack_into(out, 0, len(out) - 4)
    return out


def _write_one_success(correlation_id: int, topic: str | bytes, answer: PartitionAnswer) -> bytes:
    """A fast path for small requests: the frame of a flexible version for one partition without an error."""
    prefix = _one_topic_prefix(topic)
    index, error, base_offset, append_time, log_start, _, _, _ = answer
    start = _sized_start.pack(len(prefix) + _ONE_SUCCESS_BYTES, correlation_id, 0)
    return start + prefix + _answer_start.pack(index, error, base_offset, append_time, log_start) + _ONE_SUCCESS_END


@lru_cache(4096)
def _one_topic_prefix(topic: str | bytes) -> bytes:
    """The encoded array of one topic with an array of one partition, up to the content of that partition."""
    out = bytearray((2,))
    if isinstance(topic, bytes):
        out += topic
    else:
        name = topic.encode()
        write_unsigned_varint(out, len(name) + 1)
        out += name
    out.append(2)
    return bytes(out)


def _write_partition(version: int, out: bytearray, answer: PartitionAnswer) -> None:
    if version < 5:
        out += _answer.pack(answer.index, answer.error, answer.base_offset, answer.log_append_time)
        return
    out += _answer_start.pack(*answer[:5])
    if version < 8:
        return
    if version < FLEXIBLE:
        out += _int.pack(len(answer.record_errors))
        for index, message in answer.record_errors:
            out += _int.pack(index) + _plain_string(message)
        out += _plain_string(answer.message)
        return
    if answer.error == 0:
        out += _SUCCESS_END
        return
    write_unsigned_varint(out, len(answer.record_errors) + 1)
    for index, message in answer.record_errors:
        out += _int.pack(index) + _compact_string(message) + b"\x00"
    out += _compact_string(answer.message) + answer.tags


def _plain_string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    encoded = text.encode()
    return _short.pack(len(encoded)) + encoded


def _compact_string(text: str | None) -> bytes:
    if text is None:
        return b"\x00"
    encoded = text.encode()
    out = bytearray()
    write_unsigned_varint(out, len(encoded) + 1)
    return bytes(out + encoded)
