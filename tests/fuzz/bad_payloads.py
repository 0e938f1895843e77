"""Payloads with oddities that only their codec has, and Apache Kafka 4.3's answer to each."""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Callable, Iterator

import cramjam
import lz4.frame
import zstandard

from ottla.protocol.codecs import Codec, compress
from tests.fuzz.made_batches import GOOD, INVALID, NONE, UNREADABLE, Answer, record

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"

Payload = tuple[str, bytes, Answer, int]


def gzip_payloads() -> Iterator[Payload]:
    good = compress(Codec.gzip, GOOD)
    yield "without its trailer", good[:-8], UNREADABLE, 3
    yield "a wrong CRC of the content", good[:-8] + bytes(4) + good[-4:], UNREADABLE, 3
    yield "a wrong length", good[:-4] + b"\x01\x00\x00\x00", UNREADABLE, 3
    yield "zlib's framing", zlib.compress(GOOD), UNREADABLE, 3
    yield "bare deflate", zlib.compress(GOOD, wbits=-15), UNREADABLE, 3
    named = io.BytesIO()
    with gzip.GzipFile("name", "wb", fileobj=named) as stream:
        stream.write(GOOD)
    yield "a file's name", named.getvalue(), NONE, 3
    raw = zlib.compress(GOOD, wbits=-15)
    trailer = good[-8:]

    def member(flags: int = 0, more: bytes = b"", body: bytes = raw, end: bytes = trailer, method: int = 8) -> bytes:
        return b"\x1f\x8b" + bytes((method, flags, 0, 0, 0, 0, 0, 3)) + more + body + end

    head = member(2, b"", b"", b"")
    checksum = zlib.crc32(head) & 0xFFFF
    yield "a head's checksum", member(2, struct.pack("<H", checksum)), NONE, 3
    yield "a head's wrong checksum", member(2, struct.pack("<H", checksum ^ 1)), UNREADABLE, 3
    yield "an extra field", member(4, b"\x05\x00extra"), NONE, 3
    yield "an extra field beyond the payload", member(4, b"\xff\xff"), UNREADABLE, 3
    yield "a comment", member(16, b"comment\x00"), NONE, 3
    yield "a name without end", good[:3] + b"\x08" + good[4:10] + b"n" * 300, UNREADABLE, 3
    for flag in (0x20, 0x40, 0x80):
        yield f"reserved flag {flag}", member(flag), NONE, 3
    yield "another method", member(method=7), UNREADABLE, 3
    nothing = member(0, b"", b"\x03\x00", bytes(8))
    yield "an empty member", nothing, INVALID, 3
    yield "10,000 empty members", nothing * 10_000, UNREADABLE, 3
    yield "an empty member behind the records", good + nothing, NONE, 3
    yield "half a member's head behind the records", good + good[:3], NONE, 3
    blocks = b"\x00\x00\x00\xff\xff" * 200_000
    yield "200,000 empty blocks", member(body=blocks + b"\x01\x00\x00\xff\xff", end=bytes(8)), INVALID, 3
    yield "200,000 empty blocks, then the records", member(body=blocks + raw), NONE, 3
    asks = zlib.compressobj(wbits=-15, zdict=b"keyvalue" * 9)
    yield "a dictionary", member(body=asks.compress(GOOD) + asks.flush()), UNREADABLE, 3


def snappy_payloads() -> Iterator[Payload]:
    raw = bytes(cramjam.snappy.compress_raw(GOOD))
    head = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    block = struct.pack(">i", len(raw)) + raw
    yield "raw", raw, NONE, 3
    yield "a head without blocks", head, INVALID, 3
    yield "half a head", head[:12], UNREADABLE, 3
    yield "another version", b"\x82SNAPPY\x00" + struct.pack(">ii", 9, 1) + block, NONE, 3
    yield "a version that no reader knows", b"\x82SNAPPY\x00" + struct.pack(">ii", 9, 9) + block, NONE, 3
    yield "version 0", b"\x82SNAPPY\x00" + struct.pack(">ii", 0, 0) + block, NONE, 3
    yield "a block of 2 GiB", head + struct.pack(">i", 2**31 - 1) + raw, UNREADABLE, 3
    yield "a block of negative size", head + struct.pack(">i", -1) + raw, UNREADABLE, 3
    yield "an empty block", head + struct.pack(">i", 0) + block, UNREADABLE, 3
    yield (
        "a block that claims 4 GiB",
        head + struct.pack(">i", 5 + len(raw)) + b"\xff\xff\xff\xff\x0f" + raw,
        UNREADABLE,
        3,
    )
    yield "raw, with a length of 4 GiB", b"\xff\xff\xff\xff\x0f" + raw[1:], UNREADABLE, 3
    yield "half a size behind the blocks", head + block + b"\x00\x00", NONE, 3
    yield "the framing of snappy's own format", bytes(cramjam.snappy.compress(GOOD)), UNREADABLE, 3
    nothing = struct.pack(">ib", 1, 0)
    yield "200,000 empty blocks", head + nothing * 200_000, INVALID, 3
    yield "20,000 empty blocks, then the records", head + nothing * 20_000 + block, NONE, 3
    yield "an empty block behind the records", head + block + nothing, NONE, 3
    yield "a block of size 0 behind the records", head + block + bytes(4), UNREADABLE, 3
    pieces = (bytes(cramjam.snappy.compress_raw(GOOD[at : at + 1])) for at in range(len(GOOD)))
    yield "blocks of a byte", head + b"".join(struct.pack(">i", len(each)) + each for each in pieces), NONE, 3
    yield "two heads", head + head + block, NONE, 3
    yield "a head behind the records", head + block + head, NONE, 3
    yield "raw, of nothing", b"\x00", INVALID, 3
    yield "raw, followed by a byte", raw + b"\x00", UNREADABLE, 3
    yield "raw, twice", raw + raw, UNREADABLE, 3
    for more in (-1, 1):
        yield f"raw, with a length of {more:+} byte", bytes((raw[0] + more,)) + raw[1:], UNREADABLE, 3
    stored = bytes(((len(GOOD) - 1) << 2,)) + GOOD
    yield "raw, of a literal", bytes((len(GOOD),)) + stored, NONE, 3
    yield "raw, its length in five bytes", bytes((len(GOOD) | 0x80, 0x80, 0x80, 0x80, 0)) + stored, NONE, 3
    yield "raw, its length in six bytes", bytes((len(GOOD) | 0x80, 0x80, 0x80, 0x80, 0x80, 0)) + stored, UNREADABLE, 3
    copied = bytes((len(GOOD) + 4,)) + stored
    yield "raw, a copy of nothing", copied + b"\x01\x00", UNREADABLE, 3
    yield "raw, a copy from before its start", copied + b"\x01\xff", UNREADABLE, 3
    yield "a block that ends with a surplus byte", head + struct.pack(">i", len(raw) + 1) + raw + b"\x00", UNREADABLE, 3
    framed = head + block
    yield "a framed block in a block", head + struct.pack(">i", len(framed)) + framed, UNREADABLE, 3
    yield "almost the magic", head[:7] + b"\x01" + head[8:] + block, UNREADABLE, 3
    body = record(0, value=bytes(8 << 20))
    whole = bytes(cramjam.snappy.compress_raw(body))
    yield "one block of 8 MiB", head + struct.pack(">i", len(whole)) + whole, NONE, 1


def lz4_payloads() -> Iterator[Payload]:
    good = compress(Codec.lz4, GOOD)
    # 200 KiB whose repetitions reach beyond a block
    body = record(0, value=bytes(range(256)) * 800)
    yield (
        "linked blocks",
        lz4.frame.compress(body, block_linked=True, block_size=lz4.frame.BLOCKSIZE_MAX64KB),
        UNREADABLE,
        1,
    )
    yield (
        "blocks of 4 MiB",
        lz4.frame.compress(body, block_linked=False, block_size=lz4.frame.BLOCKSIZE_MAX4MB),
        NONE,
        1,
    )
    yield "a stated length", lz4.frame.compress(GOOD, block_linked=False, store_size=True), NONE, 3
    sized = bytearray(lz4.frame.compress(GOOD, block_linked=False, store_size=False))
    checked = lz4.frame.compress(GOOD, block_linked=False, content_checksum=True, store_size=False)
    yield "a checksum", checked, NONE, 3
    yield "a wrong checksum", checked[:-1] + bytes((checked[-1] ^ 1,)), NONE, 3
    blocks = lz4.frame.compress(GOOD, block_linked=False, block_checksum=True, store_size=False)
    yield "blocks with checksums", blocks, NONE, 3
    yield "a block's wrong checksum", blocks[:-5] + bytes((blocks[-5] ^ 1,)) + blocks[-4:], UNREADABLE, 3
    yield "without its end", good[:-4], UNREADABLE, 3
    sized[6] ^= 1
    yield "a wrong head's checksum", bytes(sized), UNREADABLE, 3
    yield "a block of 2 GiB", good[:7] + b"\xff\xff\xff\x7f" + good[11:], UNREADABLE, 3
    yield "a skippable frame first", b"\x50\x2a\x4d\x18" + struct.pack("<I", 4) + b"skip" + good, UNREADABLE, 3
    yield "a legacy frame", b"\x02\x21\x4c\x18" + good[7:], UNREADABLE, 3
    skip = b"\x50\x2a\x4d\x18" + struct.pack("<I", 4) + b"skip"
    yield "a skippable frame behind the records", good + skip, NONE, 3
    yield "a skippable frame only", skip, UNREADABLE, 3
    yield "a second end", good + bytes(4), NONE, 3
    yield "an empty frame behind the records", good + compress(Codec.lz4, b""), NONE, 3
    head, stored = good[:7], struct.pack("<I", len(GOOD) | 1 << 31) + GOOD
    nothing, packed_nothing = b"\x00\x00\x00\x80", b"\x01\x00\x00\x00\x00"
    yield "a stored block", head + stored + bytes(4), NONE, 3
    bytewise = b"".join(b"\x01\x00\x00\x80" + GOOD[at : at + 1] for at in range(len(GOOD)))
    yield "blocks of a byte", head + bytewise + bytes(4), NONE, 3
    yield "200,000 empty blocks", head + nothing * 200_000 + bytes(4), INVALID, 3
    yield "an empty block, then the records", head + nothing + stored + bytes(4), INVALID, 3
    yield "an empty block behind the records", head + stored + nothing + bytes(4), NONE, 3
    yield "200,000 empty compressed blocks", head + packed_nothing * 200_000 + bytes(4), INVALID, 3
    split = struct.pack("<I", 20 | 1 << 31) + GOOD[:20], struct.pack("<I", len(GOOD) - 20 | 1 << 31) + GOOD[20:]
    for count, answer in ((1, NONE), (2, NONE), (3, INVALID)):
        blocks = split[0] + packed_nothing * count + split[1]
        yield f"{count} empty compressed blocks in the middle", head + blocks + bytes(4), answer, 3
    sizes = {"its size": len(GOOD), "a size too large": len(GOOD) + 1, "a size too small": len(GOOD) - 1}
    for name, size in sizes.items():
        yield name, lz4_head(0x68, 0x40, struct.pack("<Q", size)) + stored + bytes(4), NONE, 3
    yield "a dictionary", lz4_head(0x61, 0x40, struct.pack("<I", 7)) + stored + bytes(4), UNREADABLE, 3
    yield "a reserved flag", lz4_head(0x62, 0x40) + stored + bytes(4), UNREADABLE, 3
    for version in (0, 2, 3):
        yield f"version {version}", lz4_head(0x20 | version << 6, 0x40) + stored + bytes(4), UNREADABLE, 3
    for descriptor in (0x00, 0x30, 0x41, 0xC0):
        yield f"block descriptor {descriptor}", lz4_head(0x60, descriptor) + stored + bytes(4), UNREADABLE, 3
    yield "a checksum that isn't there", lz4_head(0x64, 0x40) + stored + bytes(4), UNREADABLE, 3
    yield "linked, of one block", lz4_head(0x40, 0x40) + stored + bytes(4), UNREADABLE, 3
    one = record(0, value=bytes(100_000))
    yield "a block larger than stated", head + struct.pack("<I", len(one) | 1 << 31) + one + bytes(4), UNREADABLE, 1
    yield "no end", head + stored, UNREADABLE, 3


def lz4_head(flags: int, blocks: int, more: bytes = b"") -> bytes:
    """The head of a frame with a correct checksum."""
    described = bytes((flags, blocks)) + more
    return b"\x04\x22\x4d\x18" + described + bytes((xxh32(described) >> 8 & 0xFF,))


def xxh32(data: bytes) -> int:
    """XXH32 of less than 16 bytes, with seed 0."""
    mask, first, second, third, fourth, fifth = 2**32 - 1, 2654435761, 2246822519, 3266489917, 668265263, 374761393
    value, words = fifth + len(data), len(data) // 4 * 4
    for (word,) in struct.iter_unpack("<I", data[:words]):
        value = value + word * third & mask
        value = (value << 17 | value >> 15) * fourth & mask
    for byte in data[words:]:
        value = value + byte * fifth & mask
        value = (value << 11 | value >> 21) * first & mask
    value = (value ^ value >> 15) * second & mask
    value = (value ^ value >> 13) * third & mask
    return value ^ value >> 16


def zstd_payloads() -> Iterator[Payload]:
    def packed(**parameters: int) -> bytes:
        made = zstandard.ZstdCompressionParameters(**parameters)
        return zstandard.ZstdCompressor(compression_params=made).compress(GOOD)

    checked = packed(write_checksum=1)
    yield "a checksum", checked, NONE, 3
    yield "a wrong checksum", checked[:-1] + bytes((checked[-1] ^ 1,)), UNREADABLE, 3
    yield "without its length", packed(write_content_size=0), NONE, 3
    sized = bytearray(packed(write_content_size=1))
    sized[5] ^= 1  # magic, descriptor, then the length of a frame in one segment
    yield "a wrong length", bytes(sized), UNREADABLE, 3
    yield "a skippable frame first", b"\x50\x2a\x4d\x18" + struct.pack("<I", 4) + b"skip" + packed(), NONE, 3
    for log in (27, 28, 31):
        # a frame that states its window, and has one raw, last block
        window = ZSTD_MAGIC + b"\x00" + bytes(((log - 10) << 3,))
        frame = window + struct.pack("<I", len(GOOD) << 3 | 1)[:3] + GOOD
        yield f"a window of 2**{log}", frame, NONE if log <= 27 else UNREADABLE, 3
    for name, head in (("", b"\x00\x00"), (" under a stated size", b"\x20\x05")):
        blocks = bytes(3 * 300_000) + b"\x01\x00\x00"
        yield f"300,000 empty blocks{name}", ZSTD_MAGIC + head + blocks, INVALID, 3
    window, last = ZSTD_MAGIC + b"\x00\x58", struct.pack("<I", len(GOOD) << 3 | 1)[:3] + GOOD
    frame, nothing = window + last, window + b"\x01\x00\x00"
    skip = b"\x50\x2a\x4d\x18" + struct.pack("<I", 4) + b"skip"
    yield "a raw block", frame, NONE, 3
    yield "300,000 empty blocks, then the records", window + bytes(3 * 300_000) + last, NONE, 3
    yield "an empty block of a repeated byte", window + b"\x02\x00\x00x" + last, NONE, 3
    yield "an empty compressed block", window + b"\x04\x00\x00" + last, NONE, 3
    yield "a reserved block", window + struct.pack("<I", len(GOOD) << 3 | 7)[:3] + GOOD, UNREADABLE, 3
    yield "no last block", window + struct.pack("<I", len(GOOD) << 3)[:3] + GOOD, UNREADABLE, 3
    yield "a block behind the last", frame + last, UNREADABLE, 3
    one = record(0, value=b"x" * 50_000)
    cut = one.index(b"x" * 50_000)
    first, rest = struct.pack("<I", cut << 3)[:3] + one[:cut], one[cut + 50_000 :]
    end = struct.pack("<I", len(rest) << 3 | 1)[:3] + rest
    yield (
        "a block of 50,000 times a byte",
        window + first + struct.pack("<I", 50_000 << 3 | 2)[:3] + b"x" + end,
        NONE,
        1,
    )
    yield "50,000 blocks of one byte", window + first + b"\x0a\x00\x00x" * 50_000 + end, NONE, 1
    yield (
        "a block beyond its window",
        ZSTD_MAGIC + b"\x00\x00" + struct.pack("<I", len(one) << 3 | 1)[:3] + one,
        UNREADABLE,
        1,
    )
    large = struct.pack("<I", 200_000 << 3 | 3)[:3] + b"x"
    yield "a block of more than 128 KiB", window + large, UNREADABLE, 1
    yield "a skippable frame behind the records", frame + skip, NONE, 3
    yield "a skippable frame only", skip, INVALID, 3
    yield "an empty frame", nothing, INVALID, 3
    yield "an empty frame behind the records", frame + nothing, NONE, 3
    yield "only a frame's magic behind the records", frame + ZSTD_MAGIC, NONE, 3
    yield "the magic of format 0.7", b"\x27" + frame[1:], UNREADABLE, 3
    yield "without its magic", frame[4:], UNREADABLE, 3
    yield "a reserved bit", ZSTD_MAGIC + b"\x08\x58" + last, UNREADABLE, 3
    yield "an unused bit", ZSTD_MAGIC + b"\x10\x58" + last, NONE, 3
    yield "dictionary 0, which is none", ZSTD_MAGIC + b"\x01\x58\x00" + last, NONE, 3
    for name, size, answer in (("its", len(GOOD), NONE), ("too large a", len(GOOD) + 1, UNREADABLE)):
        yield f"{name} size in 8 bytes", ZSTD_MAGIC + b"\xe0" + struct.pack("<Q", size) + last, answer, 3
    yield "a size of 2**63", ZSTD_MAGIC + b"\xe0" + struct.pack("<Q", 2**63) + last, UNREADABLE, 3
    yield "256 MiB in one segment", ZSTD_MAGIC + b"\xa0" + struct.pack("<I", 256 << 20) + last, UNREADABLE, 3
    yield "a checksum that isn't there", ZSTD_MAGIC + b"\x04\x58" + last, UNREADABLE, 3
    # the same frame asks for a dictionary that no reader has
    asks = ZSTD_MAGIC + b"\x01\x58\x07" + struct.pack("<I", len(GOOD) << 3 | 1)[:3] + GOOD
    yield "a dictionary", asks, UNREADABLE, 3


OWN: dict[Codec, Callable[[], Iterator[Payload]]] = {
    Codec.gzip: gzip_payloads,
    Codec.snappy: snappy_payloads,
    Codec.lz4: lz4_payloads,
    Codec.zstd: zstd_payloads,
}


OTTLAS = {
    # payloads that librdkafka can't read; some of them kafka-python can't read either
    (Codec.gzip, "half a member's head behind the records"): UNREADABLE,
    (Codec.gzip, "reserved flag 32"): UNREADABLE,
    (Codec.gzip, "reserved flag 64"): UNREADABLE,
    (Codec.gzip, "reserved flag 128"): UNREADABLE,
    (Codec.snappy, "half a size behind the blocks"): UNREADABLE,
    (Codec.snappy, "two heads"): UNREADABLE,
    (Codec.snappy, "a head behind the records"): UNREADABLE,
    (Codec.lz4, "a wrong checksum"): UNREADABLE,
    (Codec.lz4, "a size too large"): UNREADABLE,
    (Codec.lz4, "a size too small"): UNREADABLE,
    (Codec.lz4, "a skippable frame behind the records"): UNREADABLE,
    (Codec.lz4, "an empty frame behind the records"): UNREADABLE,
    (Codec.lz4, "a second end"): UNREADABLE,
    (Codec.zstd, "only a frame's magic behind the records"): UNREADABLE,
    (Codec.zstd, "an empty compressed block"): UNREADABLE,
    # Kafka ends the payload at these empty blocks, and finds too few records
    (Codec.lz4, "an empty block, then the records"): UNREADABLE,
    (Codec.lz4, "3 empty compressed blocks in the middle"): UNREADABLE,
    # Ottla takes one member or one frame: its memory budget counts the window of the first one only
    (Codec.gzip, "an empty member behind the records"): UNREADABLE,
    (Codec.zstd, "a skippable frame first"): UNREADABLE,
    (Codec.zstd, "a skippable frame behind the records"): UNREADABLE,
    (Codec.zstd, "an empty frame behind the records"): UNREADABLE,
}
"""Ottla's answers to payloads, where they differ from Apache Kafka's."""
