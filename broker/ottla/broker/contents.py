"""Checks the records of a producer's batch against the batch's header, and packs them in the topic's codec. Pure.

A batch that consumers can't read would stop every consumer of its partition, so no such batch is appended. The records
are unpacked piece by piece, checked (`ottla.protocol.record_walk`) and, where the topic's codec differs, packed again
from the same piece: one decompression, and never more in memory than a piece, the codec's window and the result, which
may not exceed the topic's `max.message.bytes`.

Source: Kafka's LogValidator; KIP-467 for the records that an error names. Where the codec can't unpack the payload, the
answer is UNKNOWN_SERVER_ERROR, as Kafka's: producers don't retry it, unlike CORRUPT_MESSAGE.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator

from crc32c import crc32c

from ottla.broker.admission import AdmissionRules, Admitted
from ottla.broker.loop_quota import HANDED_OVER_BYTES, PLAIN_BATCH_BYTES, LoopQuota
from ottla.protocol import batches
from ottla.protocol.batches import HEADER_SIZE, BatchHeader
from ottla.protocol.codecs import Codec, compress_pieces
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.packed_heads import BLOCK_BYTES_MIN, claimed_bytes, working_bytes
from ottla.protocol.received import Buffer, Memory
from ottla.protocol.record_walk import NAMED_MAX, SLICE_BYTES, RecordWalk, walk_of
from ottla.protocol.unpacking import PIECE_BYTES, pieces

_CODEC_AT = batches.CRC_START + 1
_CODECS = frozenset(codec for codec in Codec if codec)
_LIKELY_RATIO_MAX = 16  # a batch counts as at most so many times its size, because a small one may claim a block
_SMALL = HANDED_OVER_BYTES - PLAIN_BATCH_BYTES
_SHOWN = 3  # how many of the refused records an error's message names


def leaves_loop(batch: memoryview, rules: AdmissionRules, quota: LoopQuota) -> bool:
    """Whether a check of the batch would block the event loop for too long, judged by the unpacked sizes that the
    codec's headers state."""
    return loop_cost(batch, rules, quota, quota.plain_left) is None


def loop_cost(batch: memoryview, rules: AdmissionRules, quota: LoopQuota, plain_left: float) -> tuple[int, int] | None:
    """The codec of the batch, and about how many bytes of the loop's quota its check takes; None where a thread has to
    check it. `plain_left` is the quota for a batch without a codec. A batch that is too large for its topic costs
    nothing, because it is refused unchecked."""
    batch = _alone(batch)
    codec = codec_of(batch)
    if not rules.validate_records or len(batch) > rules.message_bytes_max:
        return codec, 0
    if codec not in _CODECS:
        cost = PLAIN_BATCH_BYTES + len(batch)
        return (Codec.none, cost) if len(batch) <= SLICE_BYTES and cost <= plain_left else None
    left = quota.bytes_left(codec)
    claimed = claimed_bytes(codec, batch[HEADER_SIZE:], left)
    return (codec, min(claimed, _LIKELY_RATIO_MAX * len(batch))) if claimed < left else None


def may_leave_loop(frame: Memory, start: int, end: int, quota: LoopQuota) -> bool:
    """Whether `leaves_loop` has to be called for the batch frame[start:end], which has just arrived: the batch is long,
    names a codec, or isn't small while little of the loop's quota is left."""
    size = end - start
    return (
        size > SLICE_BYTES
        or (size > _CODEC_AT and frame[start + _CODEC_AT] & batches.CODEC_MASK != 0)
        or (size > _SMALL and PLAIN_BATCH_BYTES + size > quota.plain_left)
    )


def codec_of(batch: memoryview) -> int:
    """The codec that a batch's attributes name, which may be an unknown one; 0 where the batch ends before its
    attributes."""
    return batch[_CODEC_AT] & batches.CODEC_MASK if len(batch) > _CODEC_AT else 0


def memory_bytes(batch: memoryview, wanted_codec: int | None, message_bytes_max: int) -> int:
    """The most bytes of memory that an `Inspection` of the batch takes, without the batch's own bytes."""
    batch = _alone(batch)
    if len(batch) < HEADER_SIZE:
        return 0
    codec = codec_of(batch)
    needed = 0
    if codec != Codec.none:
        needed = PIECE_BYTES + working_bytes(codec, batch[HEADER_SIZE:])
    if wanted_codec not in (None, codec):
        needed += PIECE_BYTES + message_bytes_max
    return needed


def _alone(batch: memoryview) -> memoryview:
    """The batch without the bytes that may follow it in its record set, which `admit` cuts off."""
    if len(batch) < HEADER_SIZE:
        return batch
    size = batches.LOG_OVERHEAD + int.from_bytes(batch[8:12], "big", signed=True)
    return batch[:size] if HEADER_SIZE <= size < len(batch) else batch


def inspect(
    batch: memoryview, header: BatchHeader, rules: AdmissionRules, now_ms: int, quota: LoopQuota, arriving: bool = False
) -> Admitted | None:
    """Checks a batch on the event loop, within `quota`, where `leaves_loop` is False. Returns the result of an
    `Inspection`, or None where the codec's headers stated too small a size and records remain unchecked. A batch that
    is `arriving`, small and without a codec takes nothing from the quota."""
    if header.codec:
        left = max(quota.bytes_left(header.codec), BLOCK_BYTES_MIN)
        inspection = Inspection(batch, header, rules, now_ms, piece_bytes=min(left, PIECE_BYTES))
        try:
            return inspection.go_on(left)
        finally:  # the check of a refused batch took time, too
            quota.spend(header.codec, max(inspection.unpacked_bytes, BLOCK_BYTES_MIN))
    if len(batch) > _SMALL or not arriving:
        quota.spend_plain(PLAIN_BATCH_BYTES + len(batch))
    walk = _walk(header, rules, now_ms)
    walk.feed(batch, HEADER_SIZE, len(batch))
    return _judged(batch, header, walk, rules, now_ms)


class Inspection:
    """Checks a batch in steps of a given size, so that a batch that unpacks to GBs doesn't keep a thread for itself.

    The result is the batch as it may be appended: checked, with its greatest timestamp corrected, and packed in
    `wanted_codec` (None: in its own codec).
    """

    __slots__ = ("_header", "_piece_bytes", "_steps", "unpacked_bytes")

    def __init__(
        self,
        batch: memoryview,
        header: BatchHeader,
        rules: AdmissionRules,
        now_ms: int,
        wanted_codec: int | None = None,
        *,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self._header = header
        self._piece_bytes = piece_bytes
        self._steps = self._look(batch, rules, now_ms, None if wanted_codec == header.codec else wanted_codec)
        self.unpacked_bytes = 0
        """The bytes that were unpacked so far. A piece that is smaller than a block counts as a block."""

    @property
    def codec(self) -> int:
        """The batch's own codec."""
        return self._header.codec

    def go_on(self, quota_bytes: int) -> Admitted | None:
        """Continues the check by `quota_bytes` of unpacked records, exceeded by at most one piece of the unpacked
        content. Returns None while records remain unchecked.

        Raises KafkaError: INVALID_RECORD and INVALID_TIMESTAMP, which may name records; UNKNOWN_SERVER_ERROR where the
        payload can't be unpacked; MESSAGE_TOO_LARGE where the batch in the wanted codec exceeds the topic's
        `max.message.bytes`.
        """
        until = self.unpacked_bytes + quota_bytes
        try:
            while self.unpacked_bytes <= until:
                next(self._steps)
        except StopIteration as end:
            found: Admitted = end.value
            return found
        return None

    def _look(
        self, batch: memoryview, rules: AdmissionRules, now_ms: int, wanted_codec: int | None
    ) -> Generator[None, None, Admitted]:
        header = self._header
        walk = _walk(header, rules, now_ms) if rules.validate_records else None
        records = self._walked(batch, walk)
        if wanted_codec is not None:
            batch, header = yield from _packed(batch, header, records, wanted_codec, rules.message_bytes_max)
        elif walk is not None:
            for _ in records:
                yield
        return (batch, header) if walk is None else _judged(batch, header, walk, rules, now_ms)

    def _walked(self, batch: memoryview, walk: RecordWalk | None) -> Iterator[Buffer]:
        """The unpacked records in pieces, each of which has been checked."""
        codec = self._header.codec
        payload = batch[HEADER_SIZE:]
        try:
            for piece in pieces(codec, payload, self._piece_bytes, one_frame=walk is not None):
                self.unpacked_bytes += max(len(piece), BLOCK_BYTES_MIN)
                if walk is not None:
                    walk.feed(piece)
                yield piece
        except KafkaError as error:
            if error.code == ErrorCode.corrupt_message:
                raise KafkaError(ErrorCode.unknown_server_error, error.message) from error
            raise


def _walk(header: BatchHeader, rules: AdmissionRules, now_ms: int) -> RecordWalk:
    if not rules.create_time:
        return walk_of(header, compacted=rules.compacted)
    return walk_of(
        header,
        compacted=rules.compacted,
        oldest=now_ms - rules.timestamp_before_max_ms,
        newest=now_ms + rules.timestamp_after_max_ms,
    )


def _packed(
    batch: memoryview, header: BatchHeader, records: Iterator[Buffer], codec: int, size_max: int
) -> Generator[None, None, tuple[memoryview, BatchHeader]]:
    out = bytearray(batch[:HEADER_SIZE])
    for piece in compress_pieces(codec, records):
        yield
        out += piece
        if len(out) > size_max:
            raise KafkaError(
                ErrorCode.message_too_large,
                f"a batch of {len(batch)} bytes, compressed anew with the topic's compression.type "
                f"({Codec(codec).name}), exceeds the topic's max.message.bytes, {size_max}",
            )
    struct.pack_into(">i", out, 8, len(out) - batches.LOG_OVERHEAD)
    struct.pack_into(">h", out, batches.CRC_START, header.attributes & ~batches.CODEC_MASK | codec)
    struct.pack_into(">I", out, 17, crc32c(memoryview(out)[batches.CRC_START :]))
    return memoryview(out), batches.read_header(out)


def _judged(batch: memoryview, header: BatchHeader, walk: RecordWalk, rules: AdmissionRules, now_ms: int) -> Admitted:
    """The batch and its header, if all of its records may be appended. Raises KafkaError otherwise."""
    greatest = walk.finish()
    if walk.bad:
        raise _refused(walk, header, rules, now_ms)
    if header.log_append_time and (not rules.create_time or greatest < 0):
        message = "a producer may not set the batch's timestamp type to LogAppendTime"
        named = [(index, message) for index in range(min(header.count, NAMED_MAX))]
        raise KafkaError(ErrorCode.invalid_timestamp, message, named)
    if rules.create_time and (greatest != header.max_timestamp or header.log_append_time):
        batches.stamp_create_time(batch, 0, greatest)  # corrected in place, as by Kafka
        header = batches.read_header(batch)
    return batch, header


def _refused(walk: RecordWalk, header: BatchHeader, rules: AdmissionRules, now_ms: int) -> KafkaError:
    oldest, newest = now_ms - rules.timestamp_before_max_ms, now_ms + rules.timestamp_after_max_ms
    sentences = {
        ErrorCode.invalid_record: "a compacted topic accepts no record without a key",
        ErrorCode.invalid_timestamp: f"the record's timestamp isn't within {oldest} and {newest}",
    }
    named = [(index, sentences[ErrorCode(code)]) for index, code in walk.bad]
    count = walk.bad_keys + walk.bad_timestamps
    shown = "; ".join(f"record {index}: {sentence}" for index, sentence in named[:_SHOWN])
    code = ErrorCode.invalid_timestamp if walk.bad_timestamps else ErrorCode.invalid_record
    more = f"; and {count - _SHOWN} more" if count > _SHOWN else ""
    return KafkaError(code, f"{count} of the batch's {header.count} records are refused: {shown}{more}", named)
