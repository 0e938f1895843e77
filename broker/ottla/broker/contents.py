"""What a producer's batch holds, against what its header states, and in the codec that the topic wants. Pure.

A batch that some reader can't read stops every reader of its topic, so nothing of the kind is appended. The records are
unpacked piece by piece, walked over (`ottla.protocol.record_walk`) and, where the topic asks for another codec, packed
again from the same piece: one decompression, and never more in memory than a piece, the codec's window and the result,
which may not exceed the topic's `max.message.bytes`.

Source: Kafka's LogValidator; KIP-467 for the records that are named. Where the payload isn't what the codec makes,
Kafka answers UNKNOWN_SERVER_ERROR, which producers, unlike CORRUPT_MESSAGE, don't try again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from crc32c import crc32c

from ottla.broker.admission import AdmissionRules, Admitted
from ottla.protocol import batches
from ottla.protocol.batches import HEADER_SIZE, BatchHeader
from ottla.protocol.codecs import Codec, compress_pieces
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.received import Buffer
from ottla.protocol.record_walk import NAMED_MAX, SLICE_BYTES, RecordWalk, walk_of
from ottla.protocol.unpacking import PIECE_BYTES, links_blocks, pieces, working_bytes

LOOP_BYTES = {Codec.gzip: 64 << 10, Codec.snappy: 256 << 10, Codec.lz4: 256 << 10, Codec.zstd: 256 << 10}
"""What is unpacked on the event loop of one batch: about a quarter of a millisecond's work. A thread costs a tenth of
one, and the batches behind it their way without a task."""

SMALLEST_IN_TURN_BYTES = min(LOOP_BYTES.values()) // 4
"""No smaller batch leaves the event loop for its size."""

_PACKED = 4  # how many times smaller a batch is taken to be than what it holds
_CODECS = frozenset(LOOP_BYTES)
_NO_QUOTA = 1 << 62
_SHOWN = 3  # records that an error's sentence names


def leaves_loop(codec: int, size_bytes: int) -> bool:
    """Whether a batch of that size and codec takes longer to look at than others on the event loop should wait."""
    return size_bytes > (_loop_bytes(codec) // _PACKED if codec else SLICE_BYTES)


def memory_bytes(batch: Buffer, wanted_codec: int | None, message_bytes_max: int) -> int:
    """What `inspect` takes beside the batch, in bytes, at most."""
    if len(batch) < HEADER_SIZE:
        return 0
    codec = batch[batches.CRC_START + 1] & batches.CODEC_MASK
    needed = 0
    if codec != Codec.none:
        needed = PIECE_BYTES + working_bytes(codec, memoryview(batch)[HEADER_SIZE:])
    if wanted_codec not in (None, codec):
        needed += PIECE_BYTES + message_bytes_max
    return needed


def inspect(
    batch: memoryview,
    header: BatchHeader,
    rules: AdmissionRules,
    now_ms: int,
    wanted_codec: int | None = None,
    on_loop: bool = False,
) -> Admitted | None:
    """`batch` as it may be appended: looked at, its greatest timestamp put right, and in `wanted_codec`, unless None.

    None where it holds more than may be unpacked `on_loop`: nothing has happened then. Raises KafkaError:
    INVALID_RECORD and INVALID_TIMESTAMP, which may name records; UNKNOWN_SERVER_ERROR for what can't be unpacked;
    MESSAGE_TOO_LARGE where the batch in `wanted_codec` exceeds the topic's `max.message.bytes`.
    """
    walk = _walk(header, rules, now_ms) if rules.validate_records else None
    if wanted_codec == header.codec:
        wanted_codec = None
    try:
        if wanted_codec is not None:
            batch, header = _packed(batch, header, walk, wanted_codec, rules.message_bytes_max)
        elif walk is not None:
            if not header.codec and len(batch) <= SLICE_BYTES:
                walk.feed(batch, HEADER_SIZE, len(batch))
            else:
                quota_bytes = _loop_bytes(header.codec) if on_loop else _NO_QUOTA
                for _ in _walked(batch, header, walk, quota_bytes):
                    pass
    except _OverQuota:
        return None
    if walk is None:
        return batch, header
    return _judged(batch, header, walk, rules, now_ms)


def _loop_bytes(codec: int) -> int:
    return LOOP_BYTES[Codec(codec)] if codec in _CODECS else SLICE_BYTES


class _OverQuota(Exception):
    """More is to be unpacked than the caller waits for."""


def _walk(header: BatchHeader, rules: AdmissionRules, now_ms: int) -> RecordWalk:
    if not rules.create_time:
        return walk_of(header, compacted=rules.compacted)
    return walk_of(
        header,
        compacted=rules.compacted,
        oldest=now_ms - rules.timestamp_before_max_ms,
        newest=now_ms + rules.timestamp_after_max_ms,
    )


def _walked(batch: memoryview, header: BatchHeader, walk: RecordWalk | None, quota_bytes: int) -> Iterator[Buffer]:
    """The records in pieces, of which each has been looked at."""
    payload = batch[HEADER_SIZE:]
    left = quota_bytes
    try:
        if walk is not None and links_blocks(header.codec, payload):
            raise KafkaError(ErrorCode.corrupt_message, "its LZ4 blocks aren't independent of one another")
        for piece in pieces(header.codec, payload, min(PIECE_BYTES, quota_bytes), one_frame=walk is not None):
            left -= len(piece)
            if left < 0:
                raise _OverQuota
            if walk is not None:
                walk.feed(piece)
            yield piece
    except KafkaError as error:
        if error.code == ErrorCode.corrupt_message:
            raise KafkaError(ErrorCode.unknown_server_error, error.message) from error
        raise


def _packed(
    batch: memoryview, header: BatchHeader, walk: RecordWalk | None, codec: int, size_max: int
) -> tuple[memoryview, BatchHeader]:
    out = bytearray(batch[:HEADER_SIZE])
    for piece in compress_pieces(codec, _walked(batch, header, walk, _NO_QUOTA)):
        out += piece
        if len(out) > size_max:
            raise KafkaError(
                ErrorCode.message_too_large,
                f"a batch of {len(batch)} bytes exceeds the topic's max.message.bytes, {size_max}, with its records "
                f"in the topic's compression.type, {Codec(codec).name}",
            )
    struct.pack_into(">i", out, 8, len(out) - batches.LOG_OVERHEAD)
    struct.pack_into(">h", out, batches.CRC_START, header.attributes & ~batches.CODEC_MASK | codec)
    struct.pack_into(">I", out, 17, crc32c(memoryview(out)[batches.CRC_START :]))
    return memoryview(out), batches.read_header(out)


def _judged(batch: memoryview, header: BatchHeader, walk: RecordWalk, rules: AdmissionRules, now_ms: int) -> Admitted:
    """The batch, if all of its records may be appended."""
    greatest = walk.finish()
    if walk.bad:
        raise _refused(walk, header, rules, now_ms)
    if header.log_append_time and (not rules.create_time or greatest < 0):
        message = "a producer doesn't set the timestamp's type to LogAppendTime"
        named = [(index, message) for index in range(min(header.count, NAMED_MAX))]
        raise KafkaError(ErrorCode.invalid_timestamp, message, named)
    if rules.create_time and (greatest != header.max_timestamp or header.log_append_time):
        batches.stamp_create_time(batch, 0, greatest)  # put right in place, as by Kafka
        header = batches.read_header(batch)
    return batch, header


def _refused(walk: RecordWalk, header: BatchHeader, rules: AdmissionRules, now_ms: int) -> KafkaError:
    oldest, newest = now_ms - rules.timestamp_before_max_ms, now_ms + rules.timestamp_after_max_ms
    sentences = {
        ErrorCode.invalid_record: "a compacted topic takes no record without a key",
        ErrorCode.invalid_timestamp: f"the record's timestamp isn't within {oldest} and {newest}",
    }
    named = [(index, sentences[ErrorCode(code)]) for index, code in walk.bad]
    count = walk.bad_keys + walk.bad_timestamps
    shown = "; ".join(f"record {index}: {sentence}" for index, sentence in named[:_SHOWN])
    code = ErrorCode.invalid_timestamp if walk.bad_timestamps else ErrorCode.invalid_record
    more = f"; and {count - _SHOWN} more" if count > _SHOWN else ""
    return KafkaError(code, f"{count} of the batch's {header.count} records are refused: {shown}{more}", named)
