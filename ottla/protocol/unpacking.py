"""Decompresses batches in pieces, so that a batch of a few KB that unpacks to GBs takes the memory of a piece. Pure.

Only `pieces` decompresses. `decompress` joins the pieces, up to a bound, for callers that need the whole content. So if
the check of a producer's batch could unpack a payload, all of Ottla's readers can unpack it. A payload has to be whole,
and nothing else may follow it.

Framings: gzip members (RFC 1952), Snappy in snappy-java's blocks (or raw Snappy, which Kafka reads too), LZ4 frames
(KIP-57), Zstandard frames (KIP-110).
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

import cramjam
import lz4.frame

from .codecs import Codec
from .errors import ErrorCode, KafkaError
from .packed_heads import ZSTD_WINDOW_LOG_MAX, Unreadable, blocks_passed, snappy_blocks, snappy_claim
from .received import Buffer

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_BYTES = 128 << 20  # the default bound on the unpacked size of one batch in memory
PIECE_BYTES = 1 << 20

_INPUT_BYTES = 64 << 10  # the input of one call: a codec that gets more than it needs copies the rest at each call
_NAMES = {codec.value: codec.name for codec in Codec}


def pieces(codec: int, data: Buffer, piece_bytes: int = PIECE_BYTES, *, one_frame: bool = False) -> Iterator[Buffer]:
    """The unpacked content of `data`, in order, at most `piece_bytes` at a time.

    `one_frame` is set for a producer's batch: then a second gzip member or frame is an error, and so is a frame that
    some other client doesn't read (`blocks_passed`). A piece is empty if a block or frame is empty, or if the bytes
    that have been read yield no output yet. A caller that works in turns of bounded length can end a turn at any piece.

    Raises KafkaError corrupt_message if `data` can't be read.
    """
    view = memoryview(data)
    # Most payloads fit into one piece of this size. A larger one would cost time, for the allocation of its memory.
    piece_bytes = min(piece_bytes, max(16 * len(view), 1 << 14))
    try:
        if one_frame and codec in (Codec.lz4, Codec.zstd):
            for _ in blocks_passed(codec, view):
                yield b""
        if codec == Codec.none:
            yield from _cut(view, piece_bytes)
        elif codec == Codec.gzip:
            yield from _gunzip(view, piece_bytes, one_frame)
        elif codec == Codec.snappy:
            for block in snappy_blocks(view):
                unpacked = _unsnappy(block)
                yield from _cut(memoryview(unpacked), piece_bytes) if unpacked else (b"",)
        elif codec == Codec.lz4:
            yield from _unframe(lz4.frame.LZ4FrameDecompressor, view, piece_bytes, one_frame)
        elif codec == Codec.zstd:
            yield from _unframe(_zstd_decompressor, view, piece_bytes, one_frame)
        else:
            raise Unreadable("Kafka has no codec of this number")
    except (Unreadable, cramjam.DecompressionError, zlib.error, zstd.ZstdError, RuntimeError) as error:
        name = _NAMES.get(codec, str(codec))
        raise KafkaError(ErrorCode.corrupt_message, f"the batch's {name} data can't be read: {error}") from error


def decompress(codec: int, data: Buffer, max_bytes: int = MAX_BYTES) -> Buffer:
    """The whole unpacked content of `data`.

    Raises KafkaError corrupt_message if `data` can't be read, and record_list_too_large if the content exceeds
    `max_bytes`.
    """
    if codec == Codec.none:
        return data
    found: list[Buffer] = []
    size = 0
    for piece in pieces(codec, data, min(PIECE_BYTES, max_bytes + 1)):
        if not piece:
            continue
        size += len(piece)
        if size > max_bytes:
            raise KafkaError(ErrorCode.record_list_too_large, f"a compressed batch holds more than {max_bytes} bytes")
        found.append(piece)
    return found[0] if len(found) == 1 else b"".join(found)


class _Decompressor(Protocol):
    """The interface of decompressors in the standard library's bz2, lzma and zstd."""

    @property
    def eof(self) -> bool: ...

    @property
    def needs_input(self) -> bool: ...

    @property
    def unused_data(self) -> bytes | None: ...

    def decompress(self, data: Buffer, max_length: int) -> bytes: ...


def _cut(view: memoryview, piece_bytes: int) -> Iterator[memoryview]:
    for start in range(0, len(view), piece_bytes):
        yield view[start : start + piece_bytes]


def _unframe(
    begin: Callable[[], _Decompressor], view: memoryview, piece_bytes: int, one_frame: bool
) -> Iterator[bytes]:
    position, rest = 0, memoryview(b"")
    while True:
        frame = begin()
        while not frame.eof:
            if frame.needs_input and not rest:
                rest = view[position : position + _INPUT_BYTES]
                position += len(rest)
                if not rest:
                    raise Unreadable("it ends inside a frame")
            piece = frame.decompress(rest if frame.needs_input else b"", piece_bytes)
            rest = memoryview(b"")
            yield piece
        rest = memoryview(frame.unused_data or b"")
        if not rest and position == len(view):
            return
        if one_frame:
            raise Unreadable("bytes follow its frame")


def _gunzip(view: memoryview, piece_bytes: int, one_frame: bool) -> Iterator[bytes]:
    position, rest = 0, memoryview(b"")
    while True:
        member = zlib.decompressobj(31)
        while not member.eof:
            if not rest:
                rest = view[position : position + _INPUT_BYTES]
                position += len(rest)
            ended = not rest
            piece = member.decompress(rest, piece_bytes)
            rest = memoryview(member.unconsumed_tail)
            if ended and not piece and not member.eof:
                raise Unreadable("it ends inside a gzip member")
            yield piece
        rest = memoryview(member.unused_data)
        if not rest and position == len(view):
            return
        if one_frame:
            raise Unreadable("bytes follow its gzip member")


def _unsnappy(block: memoryview) -> bytes:
    snappy_claim(block)
    return bytes(cramjam.snappy.decompress_raw(block))


def _zstd_decompressor() -> _Decompressor:
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG_MAX})
