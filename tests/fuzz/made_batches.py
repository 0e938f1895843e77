"""Record batches made by hand, in which any field can be false, and the answers of brokers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from crc32c import crc32c

from ottla.protocol.batches import CRC_START, HEADER_SIZE, LOG_OVERHEAD
from ottla.protocol.varints import write_varint


@dataclass(frozen=True)
class Answer:
    """A partition's answer: the error's name, and the indices of the records that it names (KIP-467). The end offset
    moves only if the error is `none`."""

    error: str
    record_errors: tuple[int, ...] = ()


NONE = Answer("none")
INVALID = Answer("invalid_record")
UNREADABLE = Answer("unknown_server_error")  # Kafka's error when a codec fails
CORRUPT = Answer("corrupt_message")


def record(
    delta: int,
    *,
    timestamp_delta: int = 0,
    key: bytes | None = b"key",
    value: bytes | None = b"value",
    headers: Sequence[tuple[bytes | None, bytes | None]] = (),
    attributes: int = 0,
    length: int | None = None,
    key_length: int | None = None,
    value_length: int | None = None,
    header_count: int | None = None,
    header_key_length: int | None = None,
    header_value_length: int | None = None,
    behind: bytes = b"",
) -> bytes:
    """A record as in a batch. Each length can be false, and `behind` follows the record's last field."""
    body = bytearray((attributes,))
    write_varint(body, timestamp_delta)
    write_varint(body, delta)
    _field(body, key, key_length)
    _field(body, value, value_length)
    write_varint(body, len(headers) if header_count is None else header_count)
    for name, content in headers:
        _field(body, name, header_key_length)
        _field(body, content, header_value_length)
    body += behind
    out = bytearray()
    write_varint(out, len(body) if length is None else length)
    return bytes(out + body)


def _field(out: bytearray, content: bytes | None, length: int | None) -> None:
    if length is None:
        length = -1 if content is None else len(content)
    write_varint(out, length)
    out += content or b""


def padded(value: int, size: int) -> bytes:
    """A small number as a varint of `size` bytes: more bytes than the number needs."""
    return bytes((value << 1 ^ value >> 63 | 0x80, *[0x80] * (size - 2), 0))


def record_of(
    *,
    timestamp: bytes = b"\x00",
    delta: bytes = b"\x00",
    key_length: bytes = b"\x06",
    value_length: bytes = b"\x0a",
    headers: bytes = b"\x00",
) -> bytes:
    """The only record of a batch, with its numbers given as bytes."""
    body = b"\x00" + timestamp + delta + key_length + b"key" + value_length + b"value" + headers
    out = bytearray()
    write_varint(out, len(body))
    return bytes(out) + body


def repack(batch: bytes, at: int, layout: str, value: int) -> bytes:
    """The batch with another number at this place of its header, and a correct CRC."""
    out = bytearray(batch)
    struct.pack_into(layout, out, at, value)
    if at >= CRC_START:
        struct.pack_into(">I", out, CRC_START - 4, crc32c(bytes(out[CRC_START:])))
    return bytes(out)


def seal(
    payload: bytes,
    count: int,
    now_ms: int,
    *,
    codec: int = 0,
    attributes: int = 0,
    last_offset_delta: int | None = None,
    base_offset: int = 0,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """A batch whose header has these numbers, around the unchanged `payload`, with a correct CRC."""
    rest = struct.pack(
        ">hiqqqhii",
        attributes | codec,
        count - 1 if last_offset_delta is None else last_offset_delta,
        now_ms if base_timestamp is None else base_timestamp,
        now_ms if max_timestamp is None else max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    length = HEADER_SIZE - LOG_OVERHEAD + len(payload)
    return struct.pack(">qiibI", base_offset, length, -1, 2, crc32c(payload, crc32c(rest))) + rest + payload


GOOD = b"".join(record(delta) for delta in range(3))
