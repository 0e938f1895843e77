"""Malformed batches for every codec, and Apache Kafka 4.3's answer to each.

`all_cases` makes the batches. A case's `expected` is the answer of Apache Kafka 4.3.1; tests/conformance compares it
with the answer of a running Apache Kafka. `ottla` is Ottla's answer if Ottla's differs. `produced` sends a batch to a
broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ottla.protocol.batches import CONTROL, DELETE_HORIZON, LOG_APPEND_TIME, LOG_OVERHEAD, TRANSACTIONAL
from ottla.protocol.codecs import Codec, compress
from ottla.protocol.errors import ErrorCode
from tests.fuzz.bad_payloads import OTTLAS, OWN
from tests.fuzz.made_batches import (
    CORRUPT,
    GOOD,
    INVALID,
    NONE,
    UNREADABLE,
    Answer,
    padded,
    record,
    record_of,
    repack,
    seal,
)
from tests.peers.wire import Wire

PRODUCE = 0
LENGTH_AT, LEADER_EPOCH_AT, MAGIC_AT = 8, 12, 16
EPOCH = Answer("invalid_producer_epoch")
HOUR_MS = 3_600_000
PLAIN, COMPACTED, STAMPED, BOUNDED, ODD = "plain", "compacted", "stamped", "bounded", "odd"
TOPICS: dict[str, dict[str, str]] = {
    PLAIN: {},
    COMPACTED: {"cleanup.policy": "compact"},
    STAMPED: {"message.timestamp.type": "LogAppendTime"},
    ODD: {},  # for batches that kafka-python can't read, because it is stricter than Kafka
    BOUNDED: {"message.timestamp.before.max.ms": str(HOUR_MS)},
}
"""The topics that the cases are written to: name → settings."""


@dataclass(frozen=True)
class Case:
    """One batch, and the kind of the topic that it is written to."""

    name: str
    codec: Codec
    batch: bytes = field(repr=False)
    expected: Answer
    topic: str = PLAIN
    ottla: Answer | None = None  # None: the same as Apache Kafka's

    @property
    def wanted(self) -> Answer:
        """Ottla's answer."""
        return self.ottla or self.expected

    def __str__(self) -> str:
        return f"{self.codec.name}: {self.name}"


LONG_VARINT = b"\xff" * 10 + b"\x01"

Body = tuple[str, bytes, int, Answer, Answer | None, Answer | None]
"""Name, records before compression, their number in the header; Kafka's answer without compression, and its answer
with compression (None: the same); Ottla's answer (None: the same as Kafka's)."""


def bodies() -> Iterator[Body]:
    """Batches with malformed records under a correct header.

    Kafka doesn't check the stated length of a compressed record, nor the offset of an uncompressed one, and so stores
    batches on which its own consumer fails.
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
    yield (
        "a value that reaches into the next record",
        head + record(1, value_length=9) + record(2),
        3,
        INVALID,
        None,
        None,
    )
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
    yield "offset deltas from 1", record(1) + record(2) + record(3), 3, NONE, UNREADABLE, INVALID
    yield "offset deltas with a gap", record(0) + record(1) + record(3), 3, NONE, UNREADABLE, INVALID
    yield "a record of length 0", head + b"\x00" + record(2), 3, INVALID, None, None
    yield "a record of length 0 behind the last", GOOD + b"\x00", 3, INVALID, None, None
    yield "a record with nothing but attributes", head + b"\x02\x00" + record(2), 3, INVALID, None, None
    yield "the least record", b"\x0c\x00\x00\x00\x01\x01\x00", 1, NONE, None, None
    yield "an empty key, value and header", record(0, key=b"", value=b"", headers=[(b"", b"")]), 1, NONE, None, None
    yield "10,000 headers of one name", record(0, headers=[(b"h", b"v")] * 10_000), 1, NONE, None, None
    yield "a batch in the batch", seal(GOOD, 3, 0), 1, INVALID, None, None
    yield "a length in five bytes", padded(14, 5) + record_of()[1:], 1, NONE, None, None
    yield "a length in six bytes", padded(14, 6) + record_of()[1:], 1, UNREADABLE, INVALID, INVALID
    for size, answer in ((5, NONE), (6, INVALID)):
        yield f"an offset delta in {size} bytes", record_of(delta=padded(0, size)), 1, answer, None, None
        yield f"a key's length in {size} bytes", record_of(key_length=padded(3, size)), 1, answer, None, None
        yield f"a value's length in {size} bytes", record_of(value_length=padded(5, size)), 1, answer, None, None
        yield f"a number of headers in {size} bytes", record_of(headers=padded(0, size)), 1, answer, None, None
    for size, answer in ((10, NONE), (11, INVALID)):
        yield f"a timestamp in {size} bytes", record_of(timestamp=padded(0, size)), 1, answer, None, None
    yield "an offset delta of 35 bits", record_of(delta=b"\x80" * 4 + b"\x70"), 1, NONE, None, INVALID
    yield "a key's length of 35 bits", record_of(key_length=b"\x86" + b"\x80" * 3 + b"\x70"), 1, NONE, None, INVALID
    yield "a timestamp of 70 bits", record_of(timestamp=b"\x80" * 9 + b"\x7e"), 1, NONE, None, INVALID
    yield "a value's length of -2", record(0, value=None, value_length=-2), 1, NONE, None, INVALID
    header = [(b"h", None)]
    yield "a header value's length of -2", record(0, headers=header, header_value_length=-2), 1, NONE, None, INVALID


def body_cases(codec: Codec, now_ms: int) -> Iterator[Case]:
    for name, body, count, plain, packed, ottla in bodies():
        expected = plain if codec == Codec.none or packed is None else packed
        batch = seal(compress(codec, body), count, now_ms, codec=codec)
        yield Case(name, codec, batch, expected, ODD if "UTF-8" in name else PLAIN, ottla)


def topic_cases(codec: Codec, now_ms: int) -> Iterator[Case]:
    """Cases that depend on the topic's settings, or whose answers name single records."""

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
    yield case("a time too late, but not by the header", PLAIN, late, 3, Answer("invalid_timestamp", (1,)))
    yield case("a time too early", BOUNDED, early, 3, Answer("invalid_timestamp", (1,)))
    yield case("a time too early where times aren't bounded", PLAIN, early, 3, NONE)
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
    yield case(
        "a greatest time in the header that no record has", PLAIN, GOOD, 3, NONE, max_timestamp=now_ms + 9 * HOUR_MS
    )
    greatest = 2**63 - 1
    overflow = record(0) + record(1, timestamp_delta=1)
    # Kafka's sum wraps, so Kafka names every record that is out of bounds. Ottla's walk ends at the overflow.
    yield case(
        "a time that overflows",
        PLAIN,
        overflow,
        2,
        Answer("invalid_timestamp", (0, 1)),
        Answer("invalid_timestamp", (1,)),
        base_timestamp=greatest,
    )
    far = record(0) + record(1, timestamp_delta=greatest)
    yield case("a delta that overflows", PLAIN, far, 2, Answer("invalid_timestamp", (1,)))
    yield case(
        "base timestamp -1 and a delta up to now", PLAIN, record(0, timestamp_delta=now_ms), 1, NONE, base_timestamp=-1
    )
    yield case("a delta back to timestamp -1", PLAIN, record(0, timestamp_delta=-now_ms - 1), 1, NONE)
    least = {"base_timestamp": -(2**63), "max_timestamp": -(2**63)}
    yield case("the least time", PLAIN, GOOD, 3, Answer("invalid_timestamp", (0, 1, 2)), **least)
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
    """Batches with malformed headers over correct records."""
    payload = compress(codec, GOOD)

    def case(name: str, expected: Answer, count: int = 3, ottla: Answer | None = None, **header: int) -> Case:
        return Case(name, codec, seal(payload, count, now_ms, codec=codec, **header), expected, ottla=ottla)

    yield case("a control batch", INVALID, attributes=CONTROL)
    yield case("a base offset", INVALID, base_offset=7)
    yield case("a negative count", INVALID, -1)
    yield case("a count of 0", INVALID, 0)
    yield case("2,147,483,647 records, offset delta 2", INVALID, 2**31 - 1, last_offset_delta=2)
    yield case("3 records, offset delta 2,147,483,646", INVALID, 3, last_offset_delta=2**31 - 2)
    yield case("3 records, a negative offset delta", INVALID, 3, last_offset_delta=-3)
    of_codec = 1000 * codec  # each producer id is used once
    yield case("a producer without a sequence", INVALID, producer_id=of_codec + 1, producer_epoch=0)
    yield case("a producer without anything", INVALID, producer_id=of_codec + 2)
    yield case("a producer of epoch -2", EPOCH, producer_id=of_codec + 3, producer_epoch=-2, base_sequence=0)
    # Kafka's clients never send such a batch, and a broker couldn't recognise a duplicate of it
    yield case("a producer without an epoch", NONE, ottla=EPOCH, producer_id=of_codec + 4, base_sequence=0)
    yield case(
        "a producer with the greatest epoch", NONE, producer_id=of_codec + 5, producer_epoch=32767, base_sequence=0
    )
    yield case("a sequence that wraps", NONE, producer_id=of_codec + 6, producer_epoch=0, base_sequence=2**31 - 2)
    yield case("an epoch and a sequence without a producer", NONE, producer_epoch=0, base_sequence=0)
    yield case("producer -2", NONE, producer_id=-2, producer_epoch=0, base_sequence=0)
    unknown = Answer("transactional_id_authorization_failed")  # the request names no transactional id
    state = Answer("invalid_txn_state")
    yield case("a transaction without a producer", unknown, ottla=state, attributes=TRANSACTIONAL)
    yield case("a control batch of a transaction", unknown, ottla=INVALID, attributes=CONTROL | TRANSACTIONAL)
    yield case("a control batch of a producer", INVALID, attributes=CONTROL, producer_id=1, producer_epoch=0)
    yield case("a count of 2, offset delta 2", INVALID, 2, last_offset_delta=2)
    yield case("a count of -1, offset delta -2", INVALID, -1)
    yield Case("no records", codec, seal(compress(codec, b""), 0, now_ms, codec=codec), INVALID)
    yield case("a base offset of -1", INVALID, base_offset=-1)
    yield case("attributes beyond those known", NONE, attributes=0x7F00)
    yield case("attributes below 0", NONE, attributes=-0x8000)
    yield case("a delete horizon", NONE, attributes=DELETE_HORIZON)
    yield case("unknown attributes", NONE, attributes=0x80)
    whole = seal(payload, 3, now_ms, codec=codec)
    damaged = bytearray(whole)
    damaged[-1] ^= 1
    yield Case("a wrong CRC", codec, bytes(damaged), CORRUPT)
    yield Case("cut", codec, whole[:-1], INVALID)
    yield Case("two batches", codec, whole + whole, INVALID)
    yield Case("two batches, one cut", codec, whole + whole[:-1], NONE)
    for size, answer in (
        (1, NONE),
        (11, NONE),
        (12, CORRUPT),
        (61, CORRUPT),
    ):  # Kafka drops trailing bytes that are too few for the start of a batch
        yield Case(f"{size} zeros behind the batch", codec, whole + bytes(size), answer)
    for size in (0, 1, 12, 17, 60, 61):
        yield Case(f"only the batch's first {size} bytes", codec, whole[:size], INVALID)
    for magic, answer in ((-1, CORRUPT), (0, INVALID), (1, INVALID), (3, CORRUPT)):
        yield Case(f"format {magic}", codec, repack(whole, MAGIC_AT, ">b", magic), answer)
    for length in (-(2**31), -1, 0, 13, 14, 48, 49, len(whole) - LOG_OVERHEAD - 1):
        left = len(whole) - LOG_OVERHEAD - length
        name = "a length one less" if left == 1 else f"a length of {length}"
        yield Case(name, codec, repack(whole, LENGTH_AT, ">i", length), CORRUPT)
    # Kafka adds 12 to the length, which overflows
    yield Case("a length of 2 GiB", codec, repack(whole, LENGTH_AT, ">i", 2**31 - 1), UNREADABLE, ottla=INVALID)
    yield Case("a leader epoch", codec, repack(whole, LEADER_EPOCH_AT, ">i", 5), NONE)


def codec_cases(codec: Codec, now_ms: int) -> Iterator[Case]:
    """Payloads that don't have the form that the codec in the attributes demands.

    Kafka takes some payloads that have further bytes after their end, such as a second frame. Of these payloads,
    librdkafka or kafka-python can't read some, except with Zstandard. Ottla refuses all of them.
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
            yield case(f"a payload of {other.name} instead", compress(other, GOOD), UNREADABLE)
    yield case("the first half", good[: len(good) // 2], UNREADABLE)
    yield case("the last byte missing", good[:-1], UNREADABLE)
    behind = by_codec(NONE, NONE, NONE, UNREADABLE)
    yield case("a byte behind the payload", good + b"\x00", behind, ottla=UNREADABLE)
    behind = by_codec(NONE, UNREADABLE, NONE, UNREADABLE)
    yield case("noise behind the payload", good + bytes(range(1, 60)), behind, ottla=UNREADABLE)
    twice = by_codec(INVALID, INVALID, NONE, INVALID)
    yield case("the payload twice", good + good, twice, ottla=UNREADABLE)
    parts = by_codec(NONE, NONE, INVALID, NONE)
    yield case("in two parts", compress(codec, GOOD[:20]) + compress(codec, GOOD[20:]), parts, ottla=UNREADABLE)
    yield case("nothing, then the records", compress(codec, b"") + good, parts, ottla=UNREADABLE)
    bomb = compress(codec, bytes(64 << 20))
    yield case("a bomb of zeros", bomb, INVALID)
    yield case("a bomb that states 2,147,483,647 records", bomb, INVALID, 2**31 - 1)
    large = record(0, value=bytes(32 << 20))
    yield case("one record of 32 MiB", compress(codec, large), NONE, 1)
    yield case("one record of 32 MiB and a byte behind it", compress(codec, large + b"\x00"), INVALID, 1)
    for name, payload, expected, count in OWN[codec]():
        yield case(name, payload, expected, count, OTTLAS.get((codec, name)))


def produced(wire: Wire, topic: str, batch: bytes, version: int = 11) -> tuple[Answer, str | None]:
    """The broker's answer to the batch in partition 0 of the topic, and its error message."""
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
        ours = Answer("unsupported_compression_type")  # the message says what is wrong
        found.append(Case(f"codec {bits}", Codec.none, batch, UNREADABLE, ottla=ours))
    return found
