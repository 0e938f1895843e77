"""Estimates how large a compressed payload is when unpacked, and how much memory unpacking takes. Pure.

The estimates are made from the headers of the payload's frames and blocks, which are called heads here. They can't be
relied on: a payload may be damaged, and a gzip member may state a wrong size. So code that unpacks a payload counts the
unpacked bytes.

Source: RFC 1952 (gzip), snappy-java's blocks, the LZ4 frame format 1.6, RFC 8878 (Zstandard).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress

import cramjam

from .codecs import XERIAL_HEADER_BYTES, XERIAL_MAGIC, Codec
from .received import Buffer

ZSTD_WINDOW_LOG_MAX = 27  # the largest window that Kafka's consumers accept

BLOCK_BYTES_MIN = 2 << 10
"""The least size, in bytes, for which a block of Snappy or Zstandard counts in estimates of the time to unpack it.
Even an empty block takes time."""

_LIKELY_BLOCK_BYTES = 16 << 10
_BLOCKS_AT_ONCE = 4  # reading this number of heads takes about as long as unpacking BLOCK_BYTES_MIN
_ODD_BLOCKS = 4  # further blocks that are allowed: an empty last one, and short ones that a producer's flush made
_SNAPPY_LENGTH_BYTES_MAX = 5
_SNAPPY_RATIO_MAX = 22  # Snappy's best element makes 64 bytes of 3
_SNAPPY_LIKELY_PACKED_BYTES = 1 << 10  # a block of 32 KiB takes more than this, even at the best ratio
_SNAPPY_BLOCKS_LOOKED_AT = 1_000
_GZIP_RATIO_MAX = 1032
_LZ4_HEAD = struct.Struct("<IBB")
_LZ4_MAGIC = 0x184D2204
_LZ4_INDEPENDENT = 0x20
_LZ4_BLOCK_CHECKSUM = 0x10
_LZ4_CONTENT_SIZE = 0x08
_LZ4_DICTIONARY = 0x01
_LZ4_SIZE_MASK = 0x7FFFFFFF
_LZ4_STORED = 0x80000000  # the bit of a stored block; alone it is the size field of an empty stored block
_LZ4_PACKED_NOTHING = 1  # the size of an empty packed block
_LZ4_NOTHING_MAX = 2  # Kafka's clients in Java skip up to this number of empty packed blocks in a row at any place
_LZ4_BLOCK_BYTES = {4: 64 << 10, 5: 256 << 10, 6: 1 << 20, 7: 4 << 20}
_LZ4_WINDOW_BYTES = 128 << 10
_ZSTD_HEAD = struct.Struct("<IB")
_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SINGLE_SEGMENT = 0x20
_ZSTD_RESERVED = 0x08  # a frame with this bit is refused
_ZSTD_BLOCK_BYTES = 128 << 10
_ZSTD_DICTIONARY_BYTES = (0, 1, 2, 4)
_ZSTD_CONTENT_SIZE_BYTES = (0, 2, 4, 8)
_ZSTD_CONTENT_SIZE_OF_TWO_BYTES = 256  # is added to a size of two bytes
_ZSTD_RLE, _ZSTD_PACKED = 1, 2  # kinds of blocks; 0 is a raw one
_int32 = struct.Struct(">i")
_uint32_little = struct.Struct("<I")


class Unreadable(Exception):
    """The payload doesn't follow the codec's format, or some client can't read it."""


def claimed_bytes(codec: int, data: Buffer, enough: int) -> int:
    """An upper bound, in bytes, for the unpacked size of the first frame of `data`.

    It is the size stated at gzip's end or in Zstandard's head. Otherwise it is the sum of the largest unpacked sizes of
    the frame's blocks, in which a block of Snappy or Zstandard counts for at least `BLOCK_BYTES_MIN`.

    Counting ends once the sum exceeds `enough`, or when `data` can't be read any further. Going from block to block
    takes time, too. So the result also exceeds `enough` if there are more blocks than `enough` bytes usually have.
    """
    view = memoryview(data)
    if codec == Codec.gzip:
        if len(view) < _uint32_little.size:
            return 0
        (claimed,) = _uint32_little.unpack_from(view, len(view) - _uint32_little.size)
        return max(len(view), min(int(claimed), _GZIP_RATIO_MAX * len(view)))
    if codec == Codec.snappy:
        return _claimed_by_snappy(view, enough)
    if codec == Codec.lz4:
        return _claimed_by_lz4(view, enough)
    if codec == Codec.zstd:
        return _claimed_by_zstd(view, enough)
    return len(view)


def working_bytes(codec: int, data: Buffer) -> int:
    """An upper bound, in bytes, for the memory that unpacking the frame `data` takes besides the unpacked pieces.

    It is the window to which the frame refers back, or the block that has to be unpacked as a whole. It is 0 if `data`
    can't be read.
    """
    view = memoryview(data)
    if codec == Codec.snappy:
        return _largest_of_snappy(view)
    if codec == Codec.lz4 and len(view) >= _LZ4_HEAD.size:
        _, _, descriptor = _LZ4_HEAD.unpack_from(view)
        return 2 * _LZ4_BLOCK_BYTES.get(descriptor >> 4 & 7, 0) + _LZ4_WINDOW_BYTES
    if codec == Codec.zstd:
        return _zstd_window(view)
    return 0


def blocks_passed(codec: int, view: memoryview) -> Iterator[None]:
    """Goes over the heads of the blocks of a frame of LZ4 or Zstandard, and yields every few blocks.

    Raises Unreadable if the library that Ottla uses for the codec reads the frame, but some other client doesn't.

    Kafka's clients in Java read only independent blocks of LZ4, and no frame that needs a dictionary. For these clients
    a frame ends at a stored block of 0 bytes, and sometimes at a run of empty packed blocks: they read no later block.
    librdkafka refuses a packed block of Zstandard of 0 bytes, which RFC 8878 (3.1.1.2.4) excludes.
    """
    heads = _lz4_heads_passed(view) if codec == Codec.lz4 else _zstd_heads_passed(view)
    for number, _ in enumerate(heads, 1):
        if not number % _BLOCKS_AT_ONCE:
            yield


def _lz4_heads_passed(view: memoryview) -> Iterator[None]:
    if len(view) < _LZ4_HEAD.size:
        return
    magic, flags, _ = _LZ4_HEAD.unpack_from(view)
    if magic != _LZ4_MAGIC:
        raise Unreadable("it doesn't begin with an LZ4 frame")
    if not flags & _LZ4_INDEPENDENT:
        raise Unreadable("its LZ4 blocks aren't independent of one another")
    if flags & _LZ4_DICTIONARY:
        raise Unreadable("its LZ4 frame needs a dictionary")
    ended, nothing = False, 0
    for size in _lz4_block_sizes(view, flags):
        if size == _LZ4_STORED:
            ended = True
        elif size == _LZ4_PACKED_NOTHING:
            nothing += 1
        elif ended or nothing > _LZ4_NOTHING_MAX:
            raise Unreadable("blocks follow an empty block, at which some clients stop reading")
        else:
            nothing = 0
        yield


def _zstd_heads_passed(view: memoryview) -> Iterator[None]:
    head = _zstd_head(view)
    if head is None:
        return
    for kind, size in _zstd_blocks(view, head[2]):
        if kind == _ZSTD_PACKED and not size:
            raise Unreadable("a compressed block has no bytes")
        yield


def _lz4_block_sizes(view: memoryview, flags: int) -> Iterator[int]:
    """The size fields before the blocks, up to the frame's end. A stored block's size has the bit `_LZ4_STORED`."""
    checksum = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
    position = _LZ4_HEAD.size + 1 + (8 if flags & _LZ4_CONTENT_SIZE else 0) + (4 if flags & _LZ4_DICTIONARY else 0)
    end = len(view) - _uint32_little.size
    while position <= end:
        (size,) = _uint32_little.unpack_from(view, position)
        if not size:
            return
        yield size
        position += _uint32_little.size + (size & _LZ4_SIZE_MASK) + checksum


def snappy_blocks(view: memoryview) -> Iterator[memoryview]:
    """The blocks of a payload in snappy-java's framing; without that framing, the payload as one block.

    Raises Unreadable.
    """
    if bytes(view[: len(XERIAL_MAGIC)]) != XERIAL_MAGIC:
        yield view
        return
    position = XERIAL_HEADER_BYTES
    if len(view) < position:
        raise Unreadable("it ends inside its head")
    while position < len(view):
        if len(view) - position < _int32.size:
            raise Unreadable("it ends inside a block's size")
        (size,) = _int32.unpack_from(view, position)
        position += _int32.size
        if not 0 <= size <= len(view) - position:
            raise Unreadable("it ends inside a block")
        yield view[position : position + size]
        position += size


def snappy_claim(block: memoryview) -> int:
    """The unpacked size that a block of Snappy states.

    Raises Unreadable if the block is too short for this size, and cramjam.DecompressionError if it states no size.
    """
    if len(block) > _SNAPPY_LENGTH_BYTES_MAX and min(block[:_SNAPPY_LENGTH_BYTES_MAX]) >= 0x80:
        raise Unreadable("a block's length takes more than 32 bits")  # cramjam would accept it
    claimed = int(cramjam.snappy.decompress_raw_len(block))
    if claimed > _SNAPPY_RATIO_MAX * len(block):
        raise Unreadable(f"a block of {len(block)} bytes can't have the unpacked size that it states, {claimed}")
    return claimed


def _blocks_in(size_bytes: int) -> int:
    """The largest number of blocks that `size_bytes` unpacked bytes take, unless a producer makes odd, small blocks."""
    return size_bytes // _LIKELY_BLOCK_BYTES + _ODD_BLOCKS


def _claimed_by_snappy(view: memoryview, enough: int) -> int:
    claimed, blocks_max = 0, _blocks_in(enough)
    try:
        for number, block in enumerate(snappy_blocks(view)):
            if number == blocks_max:
                return enough + 1
            claimed += max(snappy_claim(block), BLOCK_BYTES_MIN)
            if claimed > enough:
                break
    except (Unreadable, cramjam.DecompressionError):
        pass
    return claimed


def _largest_of_snappy(view: memoryview) -> int:
    largest = 0
    blocks_max = min(len(view) // _SNAPPY_LIKELY_PACKED_BYTES + _ODD_BLOCKS, _SNAPPY_BLOCKS_LOOKED_AT)
    with suppress(Unreadable, cramjam.DecompressionError):  # the blocks before an unreadable one will be unpacked
        for number, block in enumerate(snappy_blocks(view)):
            if number == blocks_max:
                return _SNAPPY_RATIO_MAX * len(view)
            largest = max(largest, snappy_claim(block))
    return largest


def _claimed_by_lz4(view: memoryview, enough: int) -> int:
    if len(view) < _LZ4_HEAD.size:
        return 0
    magic, flags, descriptor = _LZ4_HEAD.unpack_from(view)
    block_bytes = _LZ4_BLOCK_BYTES.get(descriptor >> 4 & 7, 0)
    if magic != _LZ4_MAGIC or not block_bytes:
        return 0
    claimed = 0
    for _ in _lz4_block_sizes(view, flags):
        claimed += block_bytes
        if claimed > enough:
            break
    return claimed


def _claimed_by_zstd(view: memoryview, enough: int) -> int:
    head = _zstd_head(view)
    if head is None:
        return 0
    _, stated, position = head
    claimed, blocks_left = max(stated, 0), _blocks_in(enough)
    for kind, size in _zstd_blocks(view, position):
        if claimed > enough:
            break
        if not blocks_left:
            return enough + 1
        blocks_left -= 1
        if stated < 0:  # if the size is stated, it isn't raised: partly filled blocks would count for too much
            claimed += max(min(size, _ZSTD_BLOCK_BYTES), BLOCK_BYTES_MIN) if kind <= _ZSTD_RLE else _ZSTD_BLOCK_BYTES
    return claimed


def _zstd_blocks(view: memoryview, position: int) -> Iterator[tuple[int, int]]:
    """The kind and the size of each block from `position` to the frame's last block."""
    last = False
    while not last and position + 3 <= len(view):
        head_of_block = view[position] | view[position + 1] << 8 | view[position + 2] << 16
        last, kind, size = bool(head_of_block & 1), head_of_block >> 1 & 3, head_of_block >> 3
        yield kind, size
        position += 3 + (1 if kind == _ZSTD_RLE else size)


def _zstd_window(view: memoryview) -> int:
    head = _zstd_head(view)
    if head is None:
        return 0
    window = head[0]
    return window if window <= 1 << ZSTD_WINDOW_LOG_MAX else 0  # a frame with a larger window is refused


def _zstd_head(view: memoryview) -> tuple[int, int, int] | None:
    """(window in bytes, stated unpacked size in bytes or −1, position of the first block) of a frame.

    None if the head can't be read. Source: RFC 8878, 3.1.1.1.
    """
    if len(view) <= _ZSTD_HEAD.size:
        return None
    magic, descriptor = _ZSTD_HEAD.unpack_from(view)
    if magic != _ZSTD_MAGIC or descriptor & _ZSTD_RESERVED:
        return None
    single = bool(descriptor & _ZSTD_SINGLE_SEGMENT)
    size_bytes = _ZSTD_CONTENT_SIZE_BYTES[descriptor >> 6] or int(single)
    size_at = _ZSTD_HEAD.size + (not single) + _ZSTD_DICTIONARY_BYTES[descriptor & 3]
    blocks_at = size_at + size_bytes
    if len(view) < blocks_at:
        return None
    stated = int.from_bytes(view[size_at:blocks_at], "little") if size_bytes else -1
    stated += _ZSTD_CONTENT_SIZE_OF_TWO_BYTES if size_bytes == 2 else 0
    if single:
        return stated, stated, blocks_at
    exponent, mantissa = view[_ZSTD_HEAD.size] >> 3, view[_ZSTD_HEAD.size] & 7
    return (1 << 10 + exponent) * (8 + mantissa) // 8, stated, blocks_at
