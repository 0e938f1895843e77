"""The timestamps that a producer's batch may have: in its header, and in its records where they differ from it."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from ottla.broker.admission import AdmissionRules, admit
from ottla.broker.contents import Inspection
from ottla.protocol.batches import Record, build_batch, read_header, records, stamp_append_time, stamp_create_time
from ottla.protocol.errors import ErrorCode, KafkaError

NOW = 10_000_000
AHEAD, BEHIND = 1000, 5000
RULES = AdmissionRules(timestamp_after_max_ms=AHEAD, timestamp_before_max_ms=BEHIND)


def batch_at(*times: int) -> bytearray:
    return bytearray(build_batch([Record(index, time, b"k", b"v") for index, time in enumerate(times)]))


def admitted(batch: bytearray, rules: AdmissionRules = RULES):
    found = Inspection(*admit(batch, 0, len(batch), rules, 11, NOW), rules, NOW).go_on(1 << 30)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("time", [NOW + AHEAD + 1, NOW - BEHIND - 1])
def test_times_beyond_the_bounds_are_refused(time: int) -> None:
    with pytest.raises(KafkaError) as refused:
        admitted(batch_at(time))
    assert refused.value.code is ErrorCode.invalid_timestamp


def test_a_header_does_not_hide_a_record_that_is_far_ahead() -> None:
    batch = batch_at(NOW + 1_000_000)
    stamp_create_time(batch, 0, NOW)
    with pytest.raises(KafkaError) as refused:
        admitted(batch)
    assert refused.value.code is ErrorCode.invalid_timestamp


def test_a_wrong_greatest_time_is_corrected() -> None:
    batch = batch_at(NOW + 500)
    stamp_create_time(batch, 0, NOW)
    assert admitted(batch).max_timestamp == NOW + 500
    assert read_header(batch).max_timestamp == NOW + 500


def test_the_topic_says_what_kind_of_time_it_is() -> None:
    batch = batch_at(NOW - 7, NOW)
    stamp_append_time(batch, 0, NOW)
    header = admitted(batch)
    assert not header.log_append_time
    assert [record.timestamp for record in records(batch)] == [NOW - 7, NOW]
    assert struct.unpack_from(">q", batch, 35) == (NOW,)


def test_where_nobody_looks_inside_the_header_stands_for_the_records() -> None:
    trusting = replace(RULES, validate_records=False)
    for time in (NOW + AHEAD + 1, NOW - BEHIND - 1):
        with pytest.raises(KafkaError) as refused:
            admitted(batch_at(time), trusting)
        assert refused.value.code is ErrorCode.invalid_timestamp
    stamped = batch_at(NOW - 7, NOW)
    stamp_append_time(stamped, 0, NOW)
    assert not admitted(stamped, trusting).log_append_time


def test_the_brokers_clock_asks_for_nothing() -> None:
    admitted(batch_at(NOW + 1_000_000), AdmissionRules(create_time=False))


@pytest.mark.parametrize("behind", [b"\x00", bytes(11), struct.pack(">qi", 0, 500), struct.pack(">qiib", 0, 500, 0, 2)])
def test_what_is_too_little_for_a_batch_isnt_appended(behind: bytes) -> None:
    batch = batch_at(NOW)
    view, header = admit(batch + behind, 0, len(batch + behind), RULES, 11, NOW)
    assert bytes(view) == batch
    assert header.size == len(batch)


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (batch_at(NOW) + bytes(12), ErrorCode.corrupt_message),
        (batch_at(NOW) + batch_at(NOW), ErrorCode.invalid_record),
        (batch_at(NOW) + struct.pack(">qiib", 0, 500, 0, 3), ErrorCode.corrupt_message),
        (batch_at(NOW)[:-1], ErrorCode.invalid_record),
        (batch_at(NOW)[:16] + b"\x01" + batch_at(NOW)[17:], ErrorCode.invalid_record),
        (batch_at(NOW)[:16] + b"\x03" + batch_at(NOW)[17:], ErrorCode.corrupt_message),
        (batch_at(NOW)[:8] + struct.pack(">i", 14) + batch_at(NOW)[12:], ErrorCode.corrupt_message),
        (bytearray(), ErrorCode.invalid_record),
    ],
)
def test_a_record_set_that_isnt_one_batch_is_refused_as_by_kafka(records: bytearray, code: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refused:
        admit(records, 0, len(records), RULES, 11, NOW)
    assert refused.value.code is code
