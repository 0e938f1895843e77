"""Checks a producer's batch by its header, against Kafka's rules and the topic's settings, before it is appended. Pure.

The rules are those of Kafka's `ProduceRequest.validateRecords`, `LogValidator` and `UnifiedLog` that need the batch's
61-byte header and its CRC only. `ottla.broker.contents` looks at the records.
"""

from __future__ import annotations

from dataclasses import dataclass

from crc32c import crc32c

from ottla.protocol import batches
from ottla.protocol.batches import BatchHeader
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.received import Memory

ZSTD = 4
FIRST_ZSTD_VERSION = 7
NO_BOUND = 2**63 - 1

_MAGIC_AT = 16
_OLD_LENGTH_MIN = 14  # bytes of a message of format 0 or 1
_LENGTH_MIN = batches.HEADER_SIZE - batches.LOG_OVERHEAD


Admitted = tuple[memoryview, BatchHeader]


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """The bounds that a topic's settings set for a batch; times are in ms."""

    message_bytes_max: int = 1048588
    timestamp_before_max_ms: int = NO_BOUND
    timestamp_after_max_ms: int = 3600000
    create_time: bool = True
    compacted: bool = False
    validate_records: bool = True


def admit(buffer: Memory, start: int, end: int, rules: AdmissionRules, version: int, now_ms: int) -> Admitted:
    """Checks the record set buffer[start:end] of a Produce request of `version`; returns its batch, which stays in
    place, and the batch's header. The first few bytes of another batch may follow the batch; they aren't appended.

    Raises KafkaError with the error code for the producer, in most cases also with a message.
    """
    size = end - start
    if size < batches.HEADER_SIZE:
        raise _not_one_batch(buffer, start, end)
    header = batches.read_header(buffer, start)
    if header.magic != batches.MAGIC or batches.LOG_OVERHEAD + header.length != size:
        rest = start + batches.LOG_OVERHEAD + header.length
        if (
            header.magic != batches.MAGIC
            or header.length < _LENGTH_MIN
            or rest > end
            or _batch_bytes(buffer, rest, end)
        ):
            raise _not_one_batch(buffer, start, end)
        size, end = rest - start, rest  # the rest is too short for a batch: it isn't appended, as in Kafka
    if size > rules.message_bytes_max:
        raise KafkaError(
            ErrorCode.message_too_large,
            f"a batch of {size} bytes exceeds the topic's max.message.bytes, {rules.message_bytes_max}",
        )
    batch = memoryview(buffer)[start:end]
    if crc32c(batch[batches.CRC_START :]) != header.crc:
        raise KafkaError(ErrorCode.corrupt_message, "the batch's CRC doesn't match its bytes")
    _check_header(header, version)
    if rules.create_time and not rules.validate_records:
        _check_times(header, rules, now_ms)
        if header.attributes & batches.LOG_APPEND_TIME:  # the topic decides the timestamp type, as in Kafka
            batches.stamp_create_time(batch, 0, header.max_timestamp)
            header = batches.read_header(batch)
    return batch, header


def _batch_bytes(buffer: Memory, start: int, end: int) -> int:
    """The size in bytes of the batch, or of the message of an old format, that begins at `start`; 0 where
    buffer[start:end] ends before the batch does. Raises KafkaError CORRUPT_MESSAGE where no batch begins at `start`.
    Source: Kafka's ByteBufferLogInputStream."""
    if end - start < batches.LOG_OVERHEAD:
        return 0
    length = int.from_bytes(buffer[start + 8 : start + 12], "big", signed=True)
    if length < _OLD_LENGTH_MIN:
        raise KafkaError(
            ErrorCode.corrupt_message,
            f"byte {start} of the record set states an impossible batch length, {length}",
        )
    if end - start <= _MAGIC_AT:
        return 0
    magic = buffer[start + _MAGIC_AT]
    if magic > batches.MAGIC:
        raise KafkaError(ErrorCode.corrupt_message, f"unknown message format {magic}")
    size = batches.LOG_OVERHEAD + length
    return size if size <= end - start else 0


def _not_one_batch(buffer: Memory, start: int, end: int) -> KafkaError:
    """The error for a record set that isn't exactly one batch of the present format."""
    size = end - start
    if size <= 0:
        return KafkaError(ErrorCode.invalid_record, "a Produce request must hold one record batch per partition")
    first = _batch_bytes(buffer, start, end)
    if not first:
        return KafkaError(ErrorCode.invalid_record, f"the record set ends inside its batch, after {size} bytes")
    magic = buffer[start + _MAGIC_AT]
    if magic < batches.MAGIC:
        sentence = f"message format {magic} isn't supported any more, only format {batches.MAGIC}"
        return KafkaError(ErrorCode.invalid_record, sentence)
    if _batch_bytes(buffer, start + first, end):
        return KafkaError(ErrorCode.invalid_record, "a Produce request may hold only one record batch per partition")
    return KafkaError(ErrorCode.corrupt_message, f"a batch of {first} bytes is shorter than its header")


def _check_header(header: BatchHeader, version: int) -> None:
    attributes = header.attributes
    if header.base_offset:
        raise KafkaError(
            ErrorCode.invalid_record, f"the batch states the base offset {header.base_offset} instead of 0"
        )
    codec = attributes & batches.CODEC_MASK
    if codec > ZSTD:
        raise KafkaError(ErrorCode.unsupported_compression_type, f"the batch states the unknown codec {codec}")
    if codec == ZSTD and version < FIRST_ZSTD_VERSION:
        raise KafkaError(ErrorCode.unsupported_compression_type, "zstd needs Produce version 7 or later")
    if header.count <= 0 or header.count != header.last_offset_delta + 1:
        raise KafkaError(
            ErrorCode.invalid_record,
            f"the batch states {header.count} records, but a last offset delta of {header.last_offset_delta}",
        )
    if attributes & batches.CONTROL:
        raise KafkaError(ErrorCode.invalid_record, "clients may not write control records")
    if attributes & batches.TRANSACTIONAL and header.producer_id < 0:
        raise KafkaError(ErrorCode.invalid_txn_state, "a transactional batch states no producer id")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        code = ErrorCode.invalid_record if header.base_sequence < 0 else ErrorCode.invalid_producer_epoch
        sentence = f"sequence {header.base_sequence} or epoch {header.producer_epoch} of the batch is negative"
        raise KafkaError(code, sentence)


def _check_times(header: BatchHeader, rules: AdmissionRules, now_ms: int) -> None:
    """Checks the greatest and the first timestamp that the header states against the topic's bounds. Raises KafkaError
    INVALID_TIMESTAMP. The records' own timestamps aren't read."""
    newest, oldest = header.max_timestamp, header.base_timestamp
    if newest - now_ms > rules.timestamp_after_max_ms:
        raise KafkaError(
            ErrorCode.invalid_timestamp,
            f"timestamp {newest} is more than {rules.timestamp_after_max_ms} ms ahead of the broker's {now_ms}",
        )
    if rules.timestamp_before_max_ms != NO_BOUND and 0 <= oldest < now_ms - rules.timestamp_before_max_ms:
        raise KafkaError(
            ErrorCode.invalid_timestamp,
            f"timestamp {oldest} is more than {rules.timestamp_before_max_ms} ms behind the broker's {now_ms}",
        )
