"""What a batch's codec has packed, unpacked in pieces, so that a batch of a few KB that holds GBs costs a piece. Pure.

`pieces` is the only decompression: who needs all at once joins them, up to a bound (`decompress`). So what the check of
a producer's batch could unpack, every other reader here can. A payload has to be whole, and nothing else may follow it.

Framings: gzip members (RFC 1952), Snappy in snappy-java's blocks (or raw Snappy, which Kafka reads too), LZ4 frames
(KIP-57), Zstandard frames (KIP-110).
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

import cramjam
import lz4.frame

from .codecs import XERIAL_HEADER_BYTES, XERIAL_MAGIC, Codec
from .errors import ErrorCode, KafkaError
from .received import Buffer

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MAX_BYTES = 128 << 20  # what one batch may grow to in memory unless the caller says less
PIECE_BYTES = 1 << 20

_INPUT_BYTES = 64 << 10  # given to a codec at once: those that get more than they need copy the rest at each call
_SNAPPY_RATIO_MAX = 22  # its best element makes 64 bytes of 3
_LZ4_HEAD = struct.Struct("<IBB")
_LZ4_MAGIC = 0x184D2204
_LZ4_INDEPENDENT = 0x20
_LZ4_BLOCK_BYTES = {4: 64 << 10, 5: 256 << 10, 6: 1 << 20, 7: 4 << 20}
_LZ4_WINDOW_BYTES = 128 << 10
_ZSTD_HEAD = struct.Struct("<IB")
_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SINGLE_SEGMENT = 0x20
_ZSTD_WINDOW_LOG_MAX = 27  # what Kafka's consumers take
_NAMES = {codec.value: codec.name for codec in Codec}
_int32 = struct.Struct(">i")


def pieces(codec: int, data: Buffer, piece_bytes: int = PIECE_BYTES, *, one_frame: bool = False) -> Iterator[Buffer]:
    """What `data` holds, in order, at most `piece_bytes` at a time; `one_frame`: a second gzip member or frame is an
    error, because librdkafka doesn't read it.

    Raises KafkaError corrupt_message where `data` can't be read.
    """
    view = memoryview(data)
    piece_bytes = min(piece_bytes, max(16 * len(view), 1 << 14))  # most payloads fit one piece; room for it costs
    try:
        if codec == Codec.none:
            yield from _cut(view, piece_bytes)
        elif codec == Codec.gzip:
            yield from _gunzip(view, piece_bytes, one_frame)
        elif codec == Codec.snappy:
            for block in _snappy_blocks(view):
                yield from _cut(memoryview(_unsnappy(block)), piece_bytes)
        elif codec == Codec.lz4:
            yield from _unframe(lz4.frame.LZ4FrameDecompressor, view, piece_bytes, one_frame)
        elif codec == Codec.zstd:
            yield from _unframe(_zstd_decompressor, view, piece_bytes, one_frame)
        else:
            raise _Unreadable("nobody knows such a codec")
    except (_Unreadable, cramjam.DecompressionError, zlib.error, zstd.ZstdError, RuntimeError) as error:
        name = _NAMES.get(codec, str(codec))
        raise KafkaError(ErrorCode.corrupt_message, f"the batch's {name} data can't be read: {error}") from error


def decompress(codec: int, data: Buffer, max_bytes: int = MAX_BYTES) -> Buffer:
    """All that `data` holds.

    Raises KafkaError corrupt_message where `data` can't be read, record_list_too_large where it holds more than
    `max_bytes`.
    """
    if codec == Codec.none:
        return data
    found: list[Buffer] = []
    size = 0
    for piece in pieces(codec, data, min(PIECE_BYTES, max_bytes + 1)):
        size += len(piece)
        if size > max_bytes:
            raise KafkaError(ErrorCode.record_list_too_large, f"a compressed batch holds more than {max_bytes} bytes")
        found.append(piece)
    return found[0] if len(found) == 1 else b"".join(found)


def working_bytes(codec: int, data: Buffer) -> int:
    """What `pieces` keeps in memory of one frame, `data`, beside its pieces, in bytes, at most: the window that it
    refers back to, the block that has to be unpacked as a whole. 0 where `data` can't be read."""
    view = memoryview(data)
    if codec == Codec.snappy:
        try:
            return max((_claimed(block) for block in _snappy_blocks(view)), default=0)
        except (_Unreadable, cramjam.DecompressionError):
            return 0
    if codec == Codec.lz4 and len(view) >= _LZ4_HEAD.size:
        _, _, descriptor = _LZ4_HEAD.unpack_from(view)
        return 2 * _LZ4_BLOCK_BYTES.get(descriptor >> 4 & 7, 0) + _LZ4_WINDOW_BYTES
    if codec == Codec.zstd:
        return _zstd_window(view)
    return 0


def links_blocks(codec: int, data: Buffer) -> bool:
    """Whether `data` is an LZ4 frame whose blocks refer to one another: Kafka's clients in Java can't read one."""
    if codec != Codec.lz4 or len(data) < _LZ4_HEAD.size:
        return False
    magic, flags, _ = _LZ4_HEAD.unpack_from(data)
    return bool(magic == _LZ4_MAGIC and not flags & _LZ4_INDEPENDENT)


class _Unreadable(Exception):
    """The payload isn't what the codec makes."""


class _Decompressor(Protocol):
    """As in the standard library's bz2, lzma and zstd."""

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
                    raise _Unreadable("it ends inside a frame")
            piece = frame.decompress(rest if frame.needs_input else b"", piece_bytes)
            rest = memoryview(b"")
            if piece:
                yield piece
        rest = memoryview(frame.unused_data or b"")
        if not rest and position == len(view):
            return
        if one_frame:
            raise _Unreadable("bytes follow its frame")


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
            if piece:
                yield piece
            elif ended and not member.eof:
                raise _Unreadable("it ends inside a gzip member")
        rest = memoryview(member.unused_data)
        if not rest and position == len(view):
            return
        if one_frame:
            raise _Unreadable("bytes follow its gzip member")


def _snappy_blocks(view: memoryview) -> Iterator[memoryview]:
    if bytes(view[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        yield view
        return
    position = XERIAL_HEADER_BYTES
    if len(view) < position:
        raise _Unreadable("it ends inside its head")
    while position < len(view):
        if len(view) - position < _int32.size:
            raise _Unreadable("it ends inside a block's size")
        (size,) = _int32.unpack_from(view, position)
        position += _int32.size
        if not 0 <= size <= len(view) - position:
            raise _Unreadable("it ends inside a block")
        yield view[position : position + size]
        position += size


def _claimed(block: memoryview) -> int:
    """The bytes that a block says it holds, if it can."""
    claimed = int(cramjam.snappy.decompress_raw_len(block))
    if claimed > _SNAPPY_RATIO_MAX * len(block):
        raise _Unreadable(f"a block of {len(block)} bytes claims to hold {claimed}")
    return claimed


def _unsnappy(block: memoryview) -> bytes:
    _claimed(block)
    return bytes(cramjam.snappy.decompress_raw(block))


def _zstd_decompressor() -> _Decompressor:
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG_MAX})


def _zstd_window(view: memoryview) -> int:
    """The window of a frame (RFC 8878, 3.1.1.1); of one in a single segment it is the whole content."""
    if len(view) <= _ZSTD_HEAD.size:
        return 0
    magic, descriptor = _ZSTD_HEAD.unpack_from(view)
    if magic != _ZSTD_MAGIC:
        return 0
    if descriptor & _ZSTD_SINGLE_SEGMENT:
        try:
            window = zstd.get_frame_info(view).decompressed_size or 0
        except zstd.ZstdError:
            return 0
    else:
        exponent, mantissa = view[_ZSTD_HEAD.size] >> 3, view[_ZSTD_HEAD.size] & 7
        window = (1 << 10 + exponent) * (8 + mantissa) // 8
    return window if window <= 1 << _ZSTD_WINDOW_LOG_MAX else 0  # beyond, it is refused
