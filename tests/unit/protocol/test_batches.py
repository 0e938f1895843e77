"""Record batches are written, read back, patched and damaged."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from ottla.protocol.batches import (
    HEADER_SIZE,
    Record,
    assign,
    build_batch,
    crc_valid,
    iterate_headers,
    read_header,
    records,
    stamp_append_time,
)
from ottla.protocol.codecs import Codec
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.unit.examples import examples

texts = st.text(max_size=8)
fields = st.none() | st.binary(max_size=80)
Content = list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]
contents = st.lists(
    st.tuples(st.integers(0, 2**40), fields, fields, st.lists(st.tuples(texts, fields), max_size=3)),
    min_size=1,
    max_size=70,
)


def made(content: Content, base: int) -> list[Record]:
    return [Record(base + index, *item) for index, item in enumerate(content)]


@given(content=contents, base=st.integers(0, 2**60), codec=st.sampled_from(Codec))
def test_round_trip(content: Content, base: int, codec: Codec) -> None:
    expected = made(content, base)
    batch = build_batch(
        expected, base_offset=base, codec=codec, leader_epoch=3, producer_id=7, producer_epoch=1, base_sequence=9
    )
    header = read_header(batch)
    assert header.size == len(batch)
    assert (header.count, header.last_offset, header.codec) == (len(expected), base + len(expected) - 1, codec)
    assert header.max_timestamp == max(record.timestamp for record in expected)
    assert crc_valid(batch, 0, len(batch))
    assert list(records(batch)) == expected


@given(content=contents, codec=st.sampled_from([Codec.none, Codec.gzip]))
@settings(max_examples=examples(30))
def test_another_client_reads_our_batches(content: Content, codec: Codec) -> None:
    expected = made(content, 5)
    other = DefaultRecordBatch(build_batch(expected, base_offset=5, codec=codec))
    assert other.validate_crc()
    assert [(record.offset, record.timestamp, record.key, record.value) for record in other] == [
        (record.offset, record.timestamp, record.key, record.value) for record in expected
    ]


def sample(count: int = 3) -> bytearray:
    return bytearray(build_batch([Record(index, 1000 + index, b"k", b"value %d" % index) for index in range(count)]))


def test_offset_and_epoch_lie_outside_the_crc() -> None:
    batch = sample()
    assign(batch, 0, 1 << 40, 12)
    header = read_header(batch)
    assert (header.base_offset, header.leader_epoch) == (1 << 40, 12)
    assert crc_valid(batch, 0, len(batch))
    assert [record.offset - (1 << 40) for record in records(batch)] == [0, 1, 2]


def test_append_time_replaces_every_timestamp() -> None:
    batch = sample()
    stamp_append_time(batch, 0, 777)
    assert crc_valid(batch, 0, len(batch))
    assert read_header(batch).log_append_time
    assert {record.timestamp for record in records(batch)} == {777}


@given(st.integers(21, len(sample()) - 1), st.integers(1, 255))
def test_the_crc_sees_any_changed_byte(position: int, change: int) -> None:
    batch = sample()
    batch[position] ^= change
    assert not crc_valid(batch, 0, len(batch))


def test_last_sequence_wraps() -> None:
    batch = build_batch(
        [Record(index, 0, None, None) for index in range(4)], producer_id=1, producer_epoch=0, base_sequence=2**31 - 2
    )
    assert read_header(batch).last_sequence == 1


def test_headers_of_whole_batches_only() -> None:
    first, second = bytes(sample(2)), bytes(sample(4))
    for cut in range(len(second)):
        found = list(iterate_headers(first + second[:cut]))
        assert [position for position, _ in found] == [0]
    assert [header.count for _, header in iterate_headers(first + second)] == [2, 4]


def test_a_length_below_the_header_is_corrupt() -> None:
    batch = sample()
    batch[8:12] = (HEADER_SIZE - 13).to_bytes(4, "big")
    with pytest.raises(KafkaError) as caught:
        list(iterate_headers(batch))
    assert caught.value.code == ErrorCode.corrupt_message


@given(data=st.binary(max_size=120), count=st.integers(-5, 2**31 - 1), codec=st.integers(0, 7))
def test_any_inside_is_read_or_refused(data: bytes, count: int, codec: int) -> None:
    batch = bytearray(build_batch([], codec=0)) + data
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[57:61] = count.to_bytes(4, "big", signed=True)
    batch[22] = codec
    with contextlib.suppress(KafkaError):
        list(records(batch, 1 << 16))


def test_both_ends_of_the_count_are_checked() -> None:
    for wrong in (2, 4):
        batch = sample(3)
        batch[57:61] = wrong.to_bytes(4, "big")
        with pytest.raises(KafkaError):
            list(records(batch))
