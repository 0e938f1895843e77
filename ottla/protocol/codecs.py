"""The five compressions of a record batch, as Kafka frames them. Pure.

Decompression is always bounded: a batch of a few KB may claim to hold GBs. Sizes that the compressed bytes state are
used only as a first guess; what ends a decompression is the room that it is given.

Framings: gzip members (RFC 1952), Snappy in snappy-java's blocks (or raw Snappy, which Kafka reads too), LZ4 frames
with independent blocks (KIP-57), Zstandard frames (KIP-110).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import cramjam

from .errors import ErrorCode, KafkaError
from .received import Buffer


class Codec(IntEnum):
    """The value of the attribute bits 0-2, named as in `compression.type`."""

    none = 0
    gzip = 1
    snappy = 2
    lz4 = 3
    zstd = 4


DEFAULT_LEVELS = {Codec.gzip: 6, Codec.lz4: 9, Codec.zstd: 3}
MAX_BYTES = 128 << 20  # what one batch may grow to unless the caller says less

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_SIZE = 32 << 10
_int32 = struct.Struct(">i")
_LZ4_HEADER = bytes.fromhex("04224d18604082")  # magic, independent blocks of 64 KiB, the descriptor's checksum
_LZ4_BLOCK_SIZE = 64 << 10
_LZ4_UNCOMPRESSED = 0x80000000
_uint32_little = struct.Struct("<I")


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """`data` as one block of `codec`; `level` as in `compression.<codec>.level`, None for Kafka's default."""
    if codec == Codec.none:
        return bytes(data)
    if codec == Codec.snappy:
        return _snappy_blocks(data)
    if level is None:
        level = DEFAULT_LEVELS[Codec(codec)]
    if codec == Codec.gzip:
        compressor = zlib.compressobj(level, zlib.DEFLATED, 31)
        return compressor.compress(data) + compressor.flush()
    if codec == Codec.lz4:
        return _lz4_frame(data, level)
    return bytes(cramjam.zstd.compress(data, level=level))


def decompress(codec: int, data: Buffer, max_bytes: int = MAX_BYTES) -> Buffer:
    """What `data` holds.

    Raises KafkaError corrupt_message where `data` can't be read, record_list_too_large where it holds more than
    `max_bytes`.
    """
    if codec == Codec.none:
        return data
    try:
        if codec == Codec.gzip:
            return _gunzip(data, max_bytes)
        if codec == Codec.snappy:
            return _unsnappy(data, max_bytes)
        if codec == Codec.lz4:
            return _grow(cramjam.lz4.decompress_into, data, max_bytes)
        if codec == Codec.zstd:
            return _grow(cramjam.zstd.decompress_into, data, max_bytes)
    except (cramjam.DecompressionError, zlib.error, struct.error) as error:
        raise KafkaError(
            ErrorCode.corrupt_message, f"the batch's {Codec(codec).name} data can't be read: {error}"
        ) from error
    raise KafkaError(ErrorCode.corrupt_message, f"unknown compression codec {codec}")


def _too_large(max_bytes: int) -> KafkaError:
    return KafkaError(ErrorCode.record_list_too_large, f"a compressed batch holds more than {max_bytes} bytes")


def _grow(decompress_into: Callable[[Any, bytearray], int], data: Buffer, max_bytes: int) -> Buffer:
    """Decompresses into a buffer that grows until everything fits; one byte above the bound shows an excess."""
    room = min(max(4 * len(data), 1 << 14), max_bytes + 1)
    while True:
        out = bytearray(room)
        try:
            size = decompress_into(data, out)
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise
            if room > max_bytes:
                raise _too_large(max_bytes) from None
            room = min(4 * room, max_bytes + 1)
            continue
        if size > max_bytes:
            raise _too_large(max_bytes)
        return memoryview(out)[:size]


def _gunzip(data: Buffer, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    room = max_bytes + 1
    rest: Buffer = data
    while True:
        member = zlib.decompressobj(31)
        part = member.decompress(rest, room)
        parts.append(part)
        room -= len(part)
        if room <= 0:
            raise _too_large(max_bytes)
        if not member.eof:
            raise zlib.error("it ends inside a gzip member")
        rest = member.unused_data
        if not rest:
            return b"".join(parts) if len(parts) > 1 else parts[0]


def _lz4_frame(data: Buffer, level: int) -> bytes:
    """A frame of independent blocks: Kafka refuses the linked ones that the lz4 library makes by default.

    As in Kafka, the default level is the fast compressor and every other one the slow.
    """
    view = memoryview(data)
    options: dict[str, Any] = (
        {} if level == DEFAULT_LEVELS[Codec.lz4] else {"mode": "high_compression", "compression": level}
    )
    out = bytearray(_LZ4_HEADER)
    for start in range(0, len(view), _LZ4_BLOCK_SIZE):
        source = view[start : start + _LZ4_BLOCK_SIZE]
        block = memoryview(cramjam.lz4.compress_block(source, store_size=False, **options))
        if len(block) < len(source):
            out += _uint32_little.pack(len(block))
            out += block
        else:
            out += _uint32_little.pack(len(source) | _LZ4_UNCOMPRESSED)
            out += source
    return bytes(out + bytes(4))


def _snappy_blocks(data: Buffer) -> bytes:
    view = memoryview(data)
    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(view), _XERIAL_BLOCK_SIZE):
        block = cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_SIZE])
        out += _int32.pack(len(block))
        out += memoryview(block)
    return bytes(out)


def _unsnappy(data: Buffer, max_bytes: int) -> bytes:
    view = memoryview(data)
    if bytes(view[:8]) != _XERIAL_MAGIC:
        return _unsnappy_block(view, max_bytes)
    parts: list[bytes] = []
    position, room = len(_XERIAL_HEADER), max_bytes
    while position < len(view):
        (size,) = _int32.unpack_from(view, position)
        position += 4
        if size < 0 or position + size > len(view):
            raise cramjam.DecompressionError("it ends inside a block")
        part = _unsnappy_block(view[position : position + size], room)
        parts.append(part)
        room -= len(part)
        position += size
    return b"".join(parts)


def _unsnappy_block(block: memoryview, room: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(block) > room:
        raise _too_large(room)
    return bytes(cramjam.snappy.decompress_raw(block))
