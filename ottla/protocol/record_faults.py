"""The faults that the records of a batch may have, and the sentence for each fault. Pure.

Both forms of the walk (`ottla.protocol.record_walk`) raise the error that `refusal` makes, so that a producer gets the
same sentence from both. Source: the cases in which Kafka's DefaultRecord and DefaultRecordBatch throw
InvalidRecordException.
"""

from __future__ import annotations

from enum import IntEnum

from .errors import ErrorCode, KafkaError


class Fault(IntEnum):
    """A fault of the whole batch: nothing after it can be read. `_record_walk.c` uses the same numbers."""

    number = 1
    record_short = 2
    record_long = 3
    offset = 4
    timestamp = 5
    length = 6
    header_key = 7
    header_count = 8
    more_bytes = 9
    ends_early = 10


_SENTENCES = {
    Fault.number: "a number in record {index} takes more bits than its field has",
    Fault.record_short: "record {index} is shorter than its fields",
    Fault.record_long: "record {index} holds bytes after its fields",
    Fault.offset: "the offset delta of record {index} doesn't fit its place in the batch",
    Fault.timestamp: "the timestamp of record {index} takes more than 64 bits",
    Fault.length: "the key, the value or a header of record {index} states a length below -1",
    Fault.header_key: "a header of record {index} has no key",
    Fault.header_count: "record {index} states a number of headers that its bytes can't hold",
    Fault.more_bytes: "the batch states {count} records and holds bytes after them",
    Fault.ends_early: "the batch states {count} records and ends before record {index} does",
}


def refusal(fault: int, index: int, count: int) -> KafkaError:
    """The error for `fault`, found at record `index` (from 0) of a batch whose header states `count` records.

    For `Fault.timestamp` the error is INVALID_TIMESTAMP, with the record among its `record_errors`. For every other
    fault it is INVALID_RECORD.
    """
    sentence = _SENTENCES[Fault(fault)].format(index=index, count=count)
    if fault == Fault.timestamp:
        return KafkaError(ErrorCode.invalid_timestamp, sentence, [(index, sentence)])
    return KafkaError(ErrorCode.invalid_record, sentence)
