"""What the header of a producer's batch must state, and what its topic asks of it, before it is appended. Pure.

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


Admitted = tuple[memoryview, BatchHeader]


@dataclass(frozen=True, slots=True)
class AdmissionRules:
    """What a topic's settings ask of a batch; times in ms."""

    message_bytes_max: int = 1048588
    timestamp_before_max_ms: int = NO_BOUND
    timestamp_after_max_ms: int = 3600000
    create_time: bool = True
    compacted: bool = False
    validate_records: bool = True


def admit(buffer: Memory, start: int, end: int, rules: AdmissionRules, version: int, now_ms: int) -> Admitted:
    """Checks the record set buffer[start:end] of a Produce request of `version`; returns its batch, which stays in
    place, and the batch's header.

    Raises KafkaError with the code and, where it helps, the sentence that the producer gets.
    """
    size = end - start
    if size < batches.HEADER_SIZE:
        if size >= 17 and buffer[start + 16] < batches.MAGIC:
            raise _old_format(buffer[start + 16])
        if size <= 0:
            raise KafkaError(ErrorCode.invalid_record, "a Produce request must hold one record batch per partition")
        raise KafkaError(ErrorCode.invalid_record, "the record set ends inside the batch header")
    header = batches.read_header(buffer, start)
    if header.magic != batches.MAGIC:
        raise _old_format(header.magic)
    batch_size = batches.LOG_OVERHEAD + header.length
    if batch_size != size:
        if batches.HEADER_SIZE <= batch_size < size:
            raise KafkaError(ErrorCode.invalid_record, "a Produce request may hold only one record batch per partition")
        code = ErrorCode.invalid_record if batch_size > size else ErrorCode.corrupt_message
        raise KafkaError(code, f"a batch of {batch_size} bytes in a record set of {size}")
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
        if header.attributes & batches.LOG_APPEND_TIME:  # the type is the topic's to say, and corrected, as by Kafka
            batches.stamp_create_time(batch, 0, header.max_timestamp)
            header = batches.read_header(batch)
    return batch, header


def _old_format(magic: int) -> KafkaError:
    if magic < batches.MAGIC:
        return KafkaError(
            ErrorCode.unsupported_for_message_format,
            f"message format {magic} was retired; only record batches of format {batches.MAGIC} are taken",
        )
    return KafkaError(ErrorCode.corrupt_message, f"unknown message format {magic}")


def _check_header(header: BatchHeader, version: int) -> None:
    attributes = header.attributes
    if header.base_offset:
        raise KafkaError(ErrorCode.invalid_record, f"a producer's batch that states base offset {header.base_offset}")
    codec = attributes & batches.CODEC_MASK
    if codec > ZSTD:
        raise KafkaError(ErrorCode.unsupported_compression_type, f"unknown compression {codec}")
    if codec == ZSTD and version < FIRST_ZSTD_VERSION:
        raise KafkaError(ErrorCode.unsupported_compression_type, "zstd needs Produce version 7 or later")
    if header.count <= 0 or header.count != header.last_offset_delta + 1:
        raise KafkaError(
            ErrorCode.invalid_record,
            f"a batch that states {header.count} records and a last offset delta of {header.last_offset_delta}",
        )
    if attributes & batches.CONTROL:
        raise KafkaError(ErrorCode.invalid_record, "clients may not write control records")
    if attributes & batches.TRANSACTIONAL:
        raise KafkaError(ErrorCode.invalid_txn_state, "this broker has no transactions yet")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise KafkaError(
            ErrorCode.invalid_record,
            f"producer {header.producer_id} sent sequence {header.base_sequence} in epoch {header.producer_epoch}",
        )


def _check_times(header: BatchHeader, rules: AdmissionRules, now_ms: int) -> None:
    """The header's greatest and first time stand for all records where nobody looks at these."""
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
