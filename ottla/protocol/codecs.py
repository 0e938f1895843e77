"""Compresses record batches by Kafka's codecs, in Kafka's framings. Pure. `ottla.protocol.unpacking` decompresses.

Framings: gzip members (RFC 1952), Snappy in snappy-java's blocks (or raw Snappy, which Kafka reads too), LZ4 frames
with independent blocks (KIP-57), Zstandard frames (KIP-110).
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any, Protocol

import cramjam

from .received import Buffer

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


class Codec(IntEnum):
    """The value of the attribute bits 0-2, named as in `compression.type`."""

    none = 0
    gzip = 1
    snappy = 2
    lz4 = 3
    zstd = 4


DEFAULT_LEVELS = {Codec.gzip: 6, Codec.lz4: 9, Codec.zstd: 3}
XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER_BYTES = 16  # the magic, the version, and the lowest version that can read the format

_XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_SIZE = 32 << 10
_int32 = struct.Struct(">i")
_LZ4_HEADER = bytes.fromhex("04224d18604082")  # magic, independent blocks of 64 KiB, the descriptor's checksum
_LZ4_BLOCK_SIZE = 64 << 10
_LZ4_UNCOMPRESSED = 0x80000000
_uint32_little = struct.Struct("<I")


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """`data`, compressed to one block of `codec`. `level` is that of `compression.<codec>.level`; None is Kafka's
    default."""
    if codec == Codec.none:
        return bytes(data)
    return b"".join(compress_pieces(codec, (data,), level, len(data)))


def compress_pieces(
    codec: int, pieces: Iterable[Buffer], level: int | None = None, size_bytes: int | None = None
) -> Iterator[Buffer]:
    """Compresses `pieces` to one block of `codec`, and yields the block's parts while the pieces arrive.

    After each piece at least one part is yielded, which may be empty. `size_bytes` is the size of all pieces, if it is
    known.
    """
    if codec == Codec.none:
        yield from pieces
    elif codec == Codec.snappy:
        yield _XERIAL_HEADER
        for piece in pieces:
            yield from _snappy_blocks(piece) if piece else (b"",)
    elif codec == Codec.lz4:
        level = DEFAULT_LEVELS[Codec.lz4] if level is None else level
        yield _LZ4_HEADER
        for piece in pieces:
            yield from _lz4_blocks(piece, level) if piece else (b"",)
        yield bytes(4)
    else:
        level = DEFAULT_LEVELS[Codec(codec)] if level is None else level
        compressor: _Compressor
        if codec == Codec.gzip:
            compressor = zlib.compressobj(level, zlib.DEFLATED, 31)
        else:
            compressor = zstd.ZstdCompressor(level=level)
            if size_bytes is not None:
                compressor.set_pledged_input_size(size_bytes)
        for piece in pieces:
            yield compressor.compress(piece)
        yield compressor.flush()


class _Compressor(Protocol):
    def compress(self, data: Buffer, /) -> bytes: ...

    def flush(self) -> bytes: ...


def _lz4_blocks(data: Buffer, level: int) -> Iterator[Buffer]:
    """The blocks of a frame. No block refers to another one, because Kafka refuses linked blocks.

    As in Kafka, the default level uses the fast compressor, every other level the slow one.
    """
    view = memoryview(data)
    options: dict[str, Any] = (
        {} if level == DEFAULT_LEVELS[Codec.lz4] else {"mode": "high_compression", "compression": level}
    )
    for start in range(0, len(view), _LZ4_BLOCK_SIZE):
        source = view[start : start + _LZ4_BLOCK_SIZE]
        block = memoryview(cramjam.lz4.compress_block(source, store_size=False, **options))
        if len(block) < len(source):
            yield _uint32_little.pack(len(block))
            yield block
        else:
            yield _uint32_little.pack(len(source) | _LZ4_UNCOMPRESSED)
            yield source


def _snappy_blocks(data: Buffer) -> Iterator[Buffer]:
    view = memoryview(data)
    for start in range(0, len(view), _XERIAL_BLOCK_SIZE):
        block = cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_SIZE])
        yield _int32.pack(len(block))
        yield memoryview(block)
