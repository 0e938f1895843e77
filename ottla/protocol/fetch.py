"""A broker's writer of the Fetch (key 1) response, written by hand: record sets stay in their files. Pure.

The answer is a list of parts: bytes, and file ranges that the connection sends with `sendfile`. Versions 4–18. Tests
compare this module with its twin, the generic writer of `ottla.protocol.messages`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from .varints import write_unsigned_varint

FLEXIBLE = 12
TOPIC_IDS = 13
NO_RECORDS: Sequence[Any] = ()
NO_TAGS = b"\x00"
_ONE_END = NO_TAGS + NO_TAGS  # of the topic and of the answer
_int = struct.Struct(">i")
_short = struct.Struct(">h")
_start_sessionless = struct.Struct(">iiii")  # size, correlation id, throttle time, topics
_start = struct.Struct(">iiihii")  # … error and session id before the topics
_start_flexible = struct.Struct(">iibihi")  # size, correlation id, no header tags, throttle time, error, session id
_partition_4 = struct.Struct(">ihqq")  # index, error, high watermark, last stable offset
_partition_5 = struct.Struct(">ihqqq")  # … log start offset
_partition_12 = struct.Struct(">ihqqqbi")  # … no aborted transactions, preferred read replica
_two_ints = struct.Struct(">ii")
_new = tuple.__new__  # a NamedTuple's own constructor is a Python function, and takes twice as long


class PartitionAnswer(NamedTuple):
    """The answer for one partition. `records` are the parts of its record set, `size` is their bytes in all.

    `aborted` has the (producer id, first offset) of each aborted transaction. It is None for a reader of uncommitted
    records. `tags` are the encoded tagged fields, with their count before them: a follower's diverging epoch, or the
    current leader.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index
    error: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: Sequence[Any] = NO_RECORDS
    size: int = 0
    aborted: Sequence[tuple[int, int]] | None = None
    preferred_read_replica: int = -1
    tags: bytes = NO_TAGS


def success(
    index: int,
    high_watermark: int,
    last_stable_offset: int,
    log_start_offset: int,
    records: Sequence[Any],
    size: int,
    aborted: Sequence[tuple[int, int]] | None,
) -> PartitionAnswer:
    """The answer for a partition that could be read."""
    return _new(
        PartitionAnswer,
        (index, 0, high_watermark, last_stable_offset, log_start_offset, records, size, aborted, -1, NO_TAGS),
    )


def diverging_epoch_tags(epoch: int, end_offset: int) -> bytes:
    """The tagged fields by which a follower learns where its log diverges from the leader's and has to be truncated
    (KIP-595)."""
    return b"\x01\x00\x0d" + struct.pack(">iqb", epoch, end_offset, 0)


def write_fetch_answer(
    version: int,
    correlation_id: int,
    error: int,
    session_id: int,
    topics: Sequence[tuple[str | bytes, Sequence[PartitionAnswer]]],
    throttle_time: int = 0,
    tags: bytes = NO_TAGS,
) -> list[Any]:
    """The whole response frame as parts, the first of which begins with the size and the header.

    `tags` are the response's own tagged fields.
    """
    flexible = version >= FLEXIBLE
    if flexible and len(topics) == 1:
        topic, partitions = topics[0]
        if len(partitions) == 1 and not error and partitions[0].size and not partitions[0].aborted:
            return _write_one_read(correlation_id, session_id, topic, partitions[0], throttle_time)
    if flexible:
        out = bytearray(_start_flexible.pack(0, correlation_id, 0, throttle_time, error, session_id))
        write_unsigned_varint(out, len(topics) + 1)
    elif version >= 7:
        out = bytearray(_start.pack(0, correlation_id, throttle_time, error, session_id, len(topics)))
    else:
        out = bytearray(_start_sessionless.pack(0, correlation_id, throttle_time, len(topics)))
    parts: list[Any] = [out]
    total = 0
    for topic, partitions in topics:
        _write_topic(version, out, topic, len(partitions))
        for answer in partitions:
            if flexible:
                _write_flexible_partition(out, answer)
            else:
                _write_plain_partition(version, out, answer)
            if answer.size:
                total += len(out) + answer.size
                parts.extend(answer.records)
                out = bytearray()
                parts.append(out)
            if flexible:
                out += answer.tags
        if flexible:
            out.append(0)
    if flexible:
        out += tags
    if not out:
        parts.pop()
    _int.pack_into(parts[0], 0, total + len(out) - 4)
    return parts


def _write_one_read(
    correlation_id: int, session_id: int, topic: str | bytes, answer: PartitionAnswer, throttle_time: int
) -> list[Any]:
    """A fast path for small requests: the frame of a flexible version with the records of one partition."""
    index, error, high_watermark, stable, log_start, records, size, aborted, preferred, tags = answer
    null_or_empty = 0 if aborted is None else 1
    out = bytearray(_start_flexible.pack(0, correlation_id, 0, throttle_time, 0, session_id))
    out += _one_topic_prefix(topic)
    out += _partition_12.pack(index, error, high_watermark, stable, log_start, null_or_empty, preferred)
    write_unsigned_varint(out, size + 1)
    end = tags + _ONE_END
    _int.pack_into(out, 0, len(out) + size + len(end) - 4)
    return [out, *records, end]


@lru_cache(4096)
def _one_topic_prefix(topic: str | bytes) -> bytes:
    """The encoded array of one topic with an array of one partition, up to the content of that partition."""
    return b"\x02" + (topic if isinstance(topic, bytes) else _compact_name(topic)) + b"\x02"


def _write_topic(version: int, out: bytearray, topic: str | bytes, partition_count: int) -> None:
    if version >= FLEXIBLE:
        out += topic if isinstance(topic, bytes) else _compact_name(topic)
        write_unsigned_varint(out, partition_count + 1)
    else:
        name = str(topic).encode()
        out += _short.pack(len(name))
        out += name
        out += _int.pack(partition_count)


@lru_cache(4096)
def _compact_name(name: str) -> bytes:
    encoded = name.encode()
    out = bytearray()
    write_unsigned_varint(out, len(encoded) + 1)
    return bytes(out + encoded)


def _write_flexible_partition(out: bytearray, answer: PartitionAnswer) -> None:
    index, error, high_watermark, stable, log_start, _, size, aborted, preferred, _ = answer
    if aborted:
        out += _partition_5.pack(index, error, high_watermark, stable, log_start)
        write_unsigned_varint(out, len(aborted) + 1)
        for producer_id, first_offset in aborted:
            out += struct.pack(">qqb", producer_id, first_offset, 0)
        out += _int.pack(preferred)
    else:
        null_or_empty = 0 if aborted is None else 1
        out += _partition_12.pack(index, error, high_watermark, stable, log_start, null_or_empty, preferred)
    write_unsigned_varint(out, size + 1)


def _write_plain_partition(version: int, out: bytearray, answer: PartitionAnswer) -> None:
    out += _partition_5.pack(*answer[:5]) if version >= 5 else _partition_4.pack(*answer[:4])
    if answer.aborted is None:
        out += b"\xff\xff\xff\xff"
    else:
        out += _int.pack(len(answer.aborted))
        for producer_id, first_offset in answer.aborted:
            out += struct.pack(">qq", producer_id, first_offset)
    if version >= 11:
        out += _two_ints.pack(answer.preferred_read_replica, answer.size)
    else:
        out += _int.pack(answer.size)
