"""Batches with something wrong in them, for every codec, and what Apache Kafka 4.3 answers to each.

`all_cases` makes them; a case's `expected` is the answer of Apache Kafka 4.3.1, which tests/conformance compares with a
running one, except where `ottla` says what Ottla answers instead. `produced` writes one.
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import cramjam
import lz4.frame
import zstandard
from crc32c import crc32c

from ottla.protocol.batches import CONTROL, DELETE_HORIZON, HEADER_SIZE, LOG_APPEND_TIME, LOG_OVERHEAD
from ottla.protocol.codecs import Codec, compress
from ottla.protocol.errors import ErrorCode
from ottla.protocol.varints import write_varint
from tests.peers.wire import Wire

PRODUCE = 0
HOUR_MS = 3_600_000
PLAIN, COMPACTED, STAMPED, BOUNDED, ODD = "plain", "compacted", "stamped", "bounded", "odd"
TOPICS: dict[str, dict[str, str]] = {
    PLAIN: {},
    COMPACTED: {"cleanup.policy": "compact"},
    STAMPED: {"message.timestamp.type": "LogAppendTime"},
    ODD: {},  # what kafka-python can't read, because it is stricter than Kafka
    BOUNDED: {"message.timestamp.before.max.ms": str(HOUR_MS)},
}
"""The topics that cases are written to: name → settings."""


@dataclass(frozen=True)
class Answer:
    """What a partition answers: the error's name, and the indices of the records that it names (KIP-467). An offset
    moves with the error `none` only."""

    error: str
    record_errors: tuple[int, ...] = ()


NONE = Answer("none")
INVALID = Answer("invalid_record")
UNREADABLE = Answer("unknown_server_error")  # what Kafka says where a codec fails
CORRUPT = Answer("corrupt_message")


@dataclass(frozen=True)
class Case:
    """One batch, for the topic of that kind."""

    name: str
    codec: Codec
    batch: bytes = field(repr=False)
    expected: Answer
    topic: str = PLAIN
    ottla: Answer | None = None  # None: as Apache Kafka

    @property
    def wanted(self) -> Answer:
        """What Ottla answers."""
        return self.ottla or self.expected

    def __str__(self) -> str:
        return f"{self.codec.name}: {self.name}"


# ---- records, right and wrong


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
    """A record as it stands in a batch; each length can be made a lie, and `behind` follows its last field."""
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
    """A batch whose header states what it is told, around `payload` as it is, with a right CRC."""
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
LONG_VARINT = b"\xff" * 10 + b"\x01"

Body = tuple[str, bytes, int, Answer, Answer | None, Answer | None]
"""Name, records before they are compressed, their stated number; Kafka's answer uncompressed and (None: the same)
compressed; Ottla's, if it is another."""


def bodies() -> Iterator[Body]:
    """Batches whose records are wrong under a header that is right.

    Kafka doesn't look at a compressed record's length, nor at an uncompressed one's offset, and stores what its own
    consumer stumbles over.
    """
    more = [(b"h", b"v")]
    head = record(0)
    yield "sound", GOOD, 3, NONE, None, None
    yield "no records but a count", b"", 1, INVALID, None, None
    yield "a record too few", GOOD, 4, INVALID, None, None
    yield "a record too many", GOOD, 2, INVALID, None, None
    yield "2,147,483,647 records", GOOD, 2**31 - 1, INVALID, None, None
    yield "a byte behind the last record", GOOD + b"\x00", 3, INVALID, None, None
    yield "noise behind the last record", GOOD + bytes(range(200)), 3, INVALID, None, None
    yield "cut inside the last record", GOOD[:-3], 3, INVALID, None, None
    yield "zeros", bytes(4096), 3, INVALID, None, None
    yield "ones", b"\xff" * 4096, 3, UNREADABLE, INVALID, INVALID
    yield "a record's length beyond the batch", head + record(1, length=5000), 2, INVALID, NONE, INVALID
    yield "a record's length of 2 GiB", head + record(1, length=2**31 - 1), 2, INVALID, NONE, INVALID
    yield "a record's negative length", head + record(1, length=-1), 2, INVALID, NONE, INVALID
    yield "a record shorter than its fields", head + record(1, length=6) + record(2), 3, INVALID, NONE, INVALID
    yield "a record longer than its fields", head + record(1, behind=b"more"), 2, INVALID, None, None
    yield "a record's length one too large", head + record(1, length=15) + record(2), 3, INVALID, NONE, INVALID
    yield "a length of eleven bytes", head + LONG_VARINT + bytes(20), 2, UNREADABLE, INVALID, INVALID
    yield "a key beyond its record", head + record(1, key_length=300), 2, INVALID, None, None
    yield "a key of 2 GiB", head + record(1, key_length=2**31 - 1), 2, INVALID, None, None
    yield "a value beyond its record", head + record(1, value_length=300), 2, INVALID, None, None
    yield "a value into the next record", head + record(1, value_length=9) + record(2), 3, INVALID, None, None
    yield "a value shorter than stated", head + record(1, value_length=2), 2, INVALID, None, None
    yield "a value of 2 GiB", head + record(1, value_length=2**31 - 1), 2, INVALID, None, None
    yield "a negative number of headers", head + record(1, header_count=-1), 2, INVALID, None, None
    yield "2,147,483,647 headers", head + record(1, header_count=2**31 - 1), 2, INVALID, None, None
    yield "a header too many", head + record(1, headers=more, header_count=2), 2, INVALID, None, None
    yield "a null header key", head + record(1, headers=[(None, b"v")]), 2, INVALID, None, None
    yield "a header key beyond its record", head + record(1, headers=more, header_key_length=99), 2, INVALID, None, None
    yield (
        "a header value beyond its record",
        head + record(1, headers=more, header_value_length=99),
        2,
        INVALID,
        None,
        None,
    )
    yield "a null header value", head + record(1, headers=[(b"h", None)]), 2, NONE, None, None
    yield "a header key that isn't UTF-8", head + record(1, headers=[(b"\xff\xfe", b"v")]), 2, NONE, None, None
    yield "a key's length of -5", head + record(1, key=None, key_length=-5), 2, NONE, None, INVALID
    yield "a record's attributes", head + record(1, attributes=0x7F), 2, NONE, None, None
    yield "offset deltas all 0", record(0) * 3, 3, NONE, UNREADABLE, INVALID
    yield "offset deltas that fall", record(2) + record(1) + record(0), 3, NONE, UNREADABLE, INVALID
    yield "an offset delta of 2 GiB", head + record(2**31 - 1), 2, NONE, UNREADABLE, INVALID
    yield "a negative offset delta", head + record(-1), 2, NONE, UNREADABLE, INVALID


def body_cases(codec: Codec, now_ms: int) -> Iterator[Case]:
    for name, body, count, plain, packed, ottla in bodies():
        expected = plain if codec == Codec.none or packed is None else packed
        batch = seal(compress(codec, body), count, now_ms, codec=codec)
        yield Case(name, codec, batch, expected, ODD if "UTF-8" in name else PLAIN, ottla)


def topic_cases(codec: Codec, now_ms: int) -> Iterator[Case]:
    """What depends on the topic's settings, and names single records."""

    def case(
        name: str,
        topic: str,
        body: bytes,
        count: int,
        expected: Answer,
        ottla: Answer | None = None,
        **header: int,
    ) -> Case:
        batch = seal(compress(codec, body), count, now_ms, codec=codec, **header)
        return Case(name, codec, batch, expected, topic, ottla)

    keyless = record(0) + record(1, key=None) + record(2) + record(3, key=None)
    late = record(0) + record(1, timestamp_delta=2 * HOUR_MS) + record(2)
    early = record(0) + record(1, timestamp_delta=-2 * HOUR_MS) + record(2)
    yield case("null keys", COMPACTED, keyless, 4, Answer("invalid_record", (1, 3)))
    yield case("null keys where they are allowed", PLAIN, keyless, 4, NONE)
    yield case("a tombstone", COMPACTED, record(0, value=None), 1, NONE)
    strange = record(0, key=None, key_length=-5)
    yield case("a key's length of -5", COMPACTED, strange, 1, Answer("invalid_record", (0,)), INVALID)
    both = record(0, key=None) + record(1, timestamp_delta=2 * HOUR_MS)
    yield case("a null key and a late time", COMPACTED, both, 2, Answer("invalid_timestamp", (0, 1)))
    broken = record(0, key=None) + record(1, value_length=300)
    yield case("a null key before a broken record", COMPACTED, broken, 2, INVALID)
    yield case("a time too late", PLAIN, late, 3, Answer("invalid_timestamp", (1,)), max_timestamp=now_ms + 2 * HOUR_MS)
    yield case("a time too late that the header hides", PLAIN, late, 3, Answer("invalid_timestamp", (1,)))
    yield case("a time too early", BOUNDED, early, 3, Answer("invalid_timestamp", (1,)))
    yield case("a time too early that nobody minds", PLAIN, early, 3, NONE)
    yield case("any time under LogAppendTime", STAMPED, late, 3, NONE)
    yield case("no time", PLAIN, GOOD, 3, NONE, base_timestamp=-1, max_timestamp=-1)
    yield case("no time where times are bounded", BOUNDED, GOOD, 3, NONE, base_timestamp=-1, max_timestamp=-1)
    yield case("a negative time", PLAIN, GOOD, 3, NONE, base_timestamp=-5, max_timestamp=-5)
    yield case(
        "a negative time where times are bounded",
        BOUNDED,
        GOOD,
        3,
        Answer("invalid_timestamp", (0, 1, 2)),
        base_timestamp=-5,
        max_timestamp=-5,
    )
    yield case("a greatest time that isn't there", PLAIN, GOOD, 3, NONE, max_timestamp=now_ms + 9 * HOUR_MS)
    yield case("LogAppendTime from a client", PLAIN, GOOD, 3, NONE, attributes=LOG_APPEND_TIME)
    yield case(
        "LogAppendTime from a client, under LogAppendTime",
        STAMPED,
        GOOD,
        3,
        Answer("invalid_timestamp", (0, 1, 2)),
        attributes=LOG_APPEND_TIME,
    )
    yield case(
        "LogAppendTime from a client, and no time",
        PLAIN,
        GOOD,
        3,
        Answer("invalid_timestamp", (0, 1, 2)),
        attributes=LOG_APPEND_TIME,
        max_timestamp=-1,
    )


def header_cases(codec: Codec, now_ms: int) -> Iterator[Case]:
    """What the 61 bytes tell, over records that are right."""
    payload = compress(codec, GOOD)

    def case(name: str, expected: Answer, count: int = 3, **header: int) -> Case:
        return Case(name, codec, seal(payload, count, now_ms, codec=codec, **header), expected)

    yield case("a control batch", INVALID, attributes=CONTROL)
    yield case("a base offset", INVALID, base_offset=7)
    yield case("a negative count", INVALID, -1)
    yield case("a count of 0", INVALID, 0)
    yield case("2,147,483,647 records, offset delta 2", INVALID, 2**31 - 1, last_offset_delta=2)
    yield case("3 records, offset delta 2,147,483,646", INVALID, 3, last_offset_delta=2**31 - 2)
    yield case("3 records, a negative offset delta", INVALID, 3, last_offset_delta=-3)
    yield case("a producer without a sequence", INVALID, producer_id=77, producer_epoch=0)
    yield case("a delete horizon", NONE, attributes=DELETE_HORIZON)
    yield case("unknown attributes", NONE, attributes=0x80)
    whole = seal(payload, 3, now_ms, codec=codec)
    damaged = bytearray(whole)
    damaged[-1] ^= 1
    yield Case("a wrong CRC", codec, bytes(damaged), CORRUPT)
    yield Case("cut", codec, whole[:-1], INVALID)
    yield Case("two batches", codec, whole + whole, INVALID)


# ---- what the codecs make of bytes


def codec_cases(codec: Codec, now_ms: int) -> Iterator[Case]:
    """Payloads that aren't what the attributes say they are.

    Kafka takes some of those behind which something follows, a second frame for one. librdkafka or kafka-python can't
    read them, and Ottla refuses them all.
    """

    def case(name: str, payload: bytes, expected: Answer, count: int = 3, ottla: Answer | None = None) -> Case:
        return Case(name, codec, seal(payload, count, now_ms, codec=codec), expected, ottla=ottla)

    def by_codec(gzip: Answer, snappy: Answer, lz4: Answer, zstd: Answer) -> Answer:
        return {Codec.gzip: gzip, Codec.snappy: snappy, Codec.lz4: lz4, Codec.zstd: zstd}[codec]

    good = compress(codec, GOOD)
    yield case("nothing", b"", by_codec(UNREADABLE, UNREADABLE, UNREADABLE, INVALID), ottla=UNREADABLE)
    yield case("plain records", GOOD, UNREADABLE)
    yield case("garbage", bytes((7 * at * at + 13) & 255 for at in range(500)), UNREADABLE)
    for other in Codec:
        if other not in (Codec.none, codec):
            yield case(f"{other.name} in its place", compress(other, GOOD), UNREADABLE)
    yield case("the first half", good[: len(good) // 2], UNREADABLE)
    yield case("the last byte missing", good[:-1], UNREADABLE)
    behind = by_codec(NONE, NONE, NONE, UNREADABLE)
    yield case("a byte behind it", good + b"\x00", behind, ottla=UNREADABLE)
    behind = by_codec(NONE, UNREADABLE, NONE, UNREADABLE)
    yield case("noise behind it", good + bytes(range(1, 60)), behind, ottla=UNREADABLE)
    twice = by_codec(INVALID, INVALID, NONE, INVALID)
    yield case("the same once more", good + good, twice, ottla=UNREADABLE)
    parts = by_codec(NONE, NONE, INVALID, NONE)
    yield case("in two parts", compress(codec, GOOD[:20]) + compress(codec, GOOD[20:]), parts, ottla=UNREADABLE)
    yield case("nothing, then the records", compress(codec, b"") + good, parts, ottla=UNREADABLE)
    bomb = compress(codec, bytes(64 << 20))
    yield case("a bomb of zeros", bomb, INVALID)
    yield case("a bomb that states 2,147,483,647 records", bomb, INVALID, 2**31 - 1)
    large = record(0, value=bytes(32 << 20))
    yield case("one record of 32 MiB", compress(codec, large), NONE, 1)
    yield case("one record of 32 MiB and a byte behind it", compress(codec, large + b"\x00"), INVALID, 1)
    for name, payload, expected, count in _OWN[codec]():
        yield case(name, payload, expected, count, _OTTLAS.get((codec, name)))


Payload = tuple[str, bytes, Answer, int]


def gzip_payloads() -> Iterator[Payload]:
    good = compress(Codec.gzip, GOOD)
    yield "without its trailer", good[:-8], UNREADABLE, 3
    yield "a wrong CRC", good[:-8] + bytes(4) + good[-4:], UNREADABLE, 3
    yield "a wrong length", good[:-4] + b"\x01\x00\x00\x00", UNREADABLE, 3
    yield "zlib's framing", zlib.compress(GOOD), UNREADABLE, 3
    yield "bare deflate", zlib.compress(GOOD, wbits=-15), UNREADABLE, 3
    named = io.BytesIO()
    with gzip.GzipFile("name", "wb", fileobj=named) as stream:
        stream.write(GOOD)
    yield "a file's name", named.getvalue(), NONE, 3


def snappy_payloads() -> Iterator[Payload]:
    raw = bytes(cramjam.snappy.compress_raw(GOOD))
    head = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    block = struct.pack(">i", len(raw)) + raw
    yield "raw", raw, NONE, 3
    yield "a head without blocks", head, INVALID, 3
    yield "half a head", head[:12], UNREADABLE, 3
    yield "another version", b"\x82SNAPPY\x00" + struct.pack(">ii", 9, 1) + block, NONE, 3
    yield "a version that nobody reads", b"\x82SNAPPY\x00" + struct.pack(">ii", 9, 9) + block, NONE, 3
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
    yield "raw, which claims 4 GiB", b"\xff\xff\xff\xff\x0f" + raw[1:], UNREADABLE, 3
    yield "half a size behind the blocks", head + block + b"\x00\x00", NONE, 3
    yield "the framing of snappy's own format", bytes(cramjam.snappy.compress(GOOD)), UNREADABLE, 3
    body = record(0, value=bytes(8 << 20))
    whole = bytes(cramjam.snappy.compress_raw(body))
    yield "one block of 8 MiB", head + struct.pack(">i", len(whole)) + whole, NONE, 1


def lz4_payloads() -> Iterator[Payload]:
    good = compress(Codec.lz4, GOOD)
    # 200 KiB that repeats over more than a block
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
        window = b"\x28\xb5\x2f\xfd\x00" + bytes(((log - 10) << 3,))
        frame = window + struct.pack("<I", len(GOOD) << 3 | 1)[:3] + GOOD
        yield f"a window of 2**{log}", frame, NONE if log <= 27 else UNREADABLE, 3
    # the same frame asks for a dictionary that nobody has
    asks = b"\x28\xb5\x2f\xfd\x01\x58\x07" + struct.pack("<I", len(GOOD) << 3 | 1)[:3] + GOOD
    yield "a dictionary", asks, UNREADABLE, 3


_OWN: dict[Codec, Callable[[], Iterator[Payload]]] = {
    Codec.gzip: gzip_payloads,
    Codec.snappy: snappy_payloads,
    Codec.lz4: lz4_payloads,
    Codec.zstd: zstd_payloads,
}


_OTTLAS = {
    # librdkafka can't read them
    (Codec.snappy, "half a size behind the blocks"): UNREADABLE,
    (Codec.lz4, "a wrong checksum"): UNREADABLE,
    (Codec.zstd, "a skippable frame first"): UNREADABLE,
}
"""Where Ottla answers something else to a payload."""


def produced(wire: Wire, topic: str, batch: bytes, version: int = 11) -> tuple[Answer, str | None]:
    """What the broker answers to that batch in partition 0 of the topic, and its sentence."""
    sets = [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}]
    answer = wire.call(PRODUCE, version, {"acks": -1, "timeout": 30_000, "topic_data": sets})
    partition = answer.responses[0].partition_responses[0]
    named = tuple(error.batch_index for error in partition.record_errors)
    return Answer(ErrorCode(partition.error_code).name, named), partition.error_message


def all_cases(now_ms: int) -> list[Case]:
    """Every case for every codec."""
    found: list[Case] = []
    for codec in Codec:
        found += header_cases(codec, now_ms)
        found += body_cases(codec, now_ms)
        found += topic_cases(codec, now_ms)
        if codec != Codec.none:
            found += codec_cases(codec, now_ms)
    for bits in (5, 6, 7):
        batch = seal(GOOD, 3, now_ms, codec=bits)
        ours = Answer("unsupported_compression_type")  # which says what is wrong
        found.append(Case(f"codec {bits}", Codec.none, batch, UNREADABLE, ottla=ours))
    return found
