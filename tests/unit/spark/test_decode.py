"""The decoding kernel is compared with a plain implementation in Python, on record sets of every shape."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.batches import Record, build_batch
from ottla.protocol.codecs import Codec
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.spark import decode, decode_python, headers, kernel, selection
from ottla.spark.schema import ARROW_TYPES
from ottla.spark.selection import select
from tests.unit.examples import examples

FULL = pa.schema(list(ARROW_TYPES.items()))
NAMES = st.sampled_from(["", "trace-id", "größe"])
RECORDS = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.integers(-5, 10**12),
        st.none() | st.binary(max_size=40),
        st.none() | st.binary(max_size=400),
        st.lists(st.tuples(NAMES, st.none() | st.binary(max_size=20)), max_size=3),
    ),
    min_size=1,
    max_size=20,
)


def record_set(batches: list[tuple[int, int | None, list[tuple]]]) -> bytes:
    """Consecutive batches, each given as (codec, append time, rows).

    The first item of a row is the distance to the next row's offset. Distances above 1 are gaps, as compaction leaves
    them.
    """
    out, offset = b"", 7
    for codec, append_time, rows in batches:
        base, records = offset, []
        for gap, timestamp, key, value, entries in rows:
            records.append(Record(offset, timestamp, key, value, entries))
            offset += gap
        out += build_batch(records, base_offset=base, codec=codec, log_append_time=append_time)
    return out


def table(module, data: bytes, start: int, end: int, schema: pa.Schema) -> pa.Table:
    made = pa.Table.from_batches(module.decode(data, select(data, start, end), start, end, "t", 3, schema), schema)
    made.validate(full=True)
    return made


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.none() | st.just(1_700_000_000_000), RECORDS), min_size=1, max_size=4),
    st.integers(0, 60),
    st.integers(0, 60),
)
def test_kernel_equals_twin(batches: list, first: int, size: int) -> None:
    assert decode.kernel is not None
    data = record_set(batches)
    for start, end in ((0, 10**6), (first, first + size)):
        assert table(decode, data, start, end, FULL).equals(table(decode_python, data, start, end, FULL))


@pytest.mark.parametrize("columns", [["value"], ["offset", "key"], ["timestamp"], ["headers"], ["topic", "partition"]])
def test_fewer_columns(columns: list[str]) -> None:
    data = record_set([(0, None, [(1, 5, b"k", b"v", [("h", None)])])])
    schema = pa.schema([(name, ARROW_TYPES[name]) for name in columns])
    assert table(decode, data, 0, 100, schema).equals(table(decode, data, 0, 100, FULL).select(columns))


def test_a_cut_off_last_batch_is_left_out() -> None:
    data = record_set([(0, None, [(1, 5, b"k", b"v", [])]), (0, None, [(1, 5, b"k", b"v", [])])])
    assert table(decode, data[:-1], 0, 100, FULL).num_rows == 1


def test_values_of_a_megabyte_in_many_groups() -> None:
    rows = [(1, 5, None, bytes([index]) * (1 << 20), []) for index in range(40)]
    data = record_set([(0, None, rows[:20]), (4, None, rows[20:])])
    made = table(decode, data, 0, 100, FULL)
    assert [value[:1] for value in made["value"].to_pylist()] == [bytes([index]) for index in range(40)]
    assert made["value"].num_chunks > 1


def test_a_malformed_record_is_reported() -> None:
    data = bytearray(record_set([(0, None, [(1, 5, b"key", b"value", [])])]))
    data[61] = 0x7E  # the record claims to be longer than its batch
    batches = select(bytes(data), 0, 100, check_crc=False)
    with pytest.raises(KafkaError) as caught:
        list(decode.decode(bytes(data), batches, 0, 100, "t", 3, FULL))
    assert caught.value.code == ErrorCode.invalid_record


@settings(max_examples=examples(300), deadline=None)
@given(RECORDS, st.data())
def test_damaged_records_never_crash_the_kernel(rows: list, data: st.DataObject) -> None:
    damaged = bytearray(record_set([(0, None, rows)]))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(61, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    raw = bytes(damaged)
    try:
        made = list(decode.decode(raw, select(raw, 0, 10**6, check_crc=False), 0, 10**6, "t", 3, FULL))
    except KafkaError:
        return
    for batch in made:
        batch.validate()


def test_a_wrong_crc_is_reported() -> None:
    data = bytearray(record_set([(0, None, [(1, 5, b"key", b"value", [])])]))
    data[-2] ^= 1
    with pytest.raises(KafkaError, match=r"offset 7 has a wrong CRC"):
        list(select(bytes(data), 0, 100))


@given(st.lists(st.tuples(st.integers(0, 4), st.none() | st.just(1_700_000_000_000), RECORDS), max_size=4), st.data())
def test_batch_headers_are_scanned_as_the_twin_does(batches: list, data: st.DataObject) -> None:
    whole = bytearray(record_set(batches))
    raw = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    source = np.frombuffer(raw, np.uint8)
    expected = headers.table(raw)
    found = np.empty((len(expected), headers.HEADER_COLUMNS), np.int64)
    assert kernel.scan(source, found) == len(expected)
    assert (found == expected).all()


def test_a_batch_shorter_than_its_header_is_reported() -> None:
    data = bytearray(record_set([(0, None, [(1, 5, b"k", b"v", [])])]))
    data[8:12] = (20).to_bytes(4, "big")
    with pytest.raises(KafkaError, match="length of 20"):
        select(bytes(data), 0, 100)


def test_without_numba_the_twins_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    data = record_set([(3, None, [(1, 5, b"k", b"v", [("h", None)])]), (0, None, [(1, 6, None, None, [])])])
    expected = table(decode, data, 0, 100, FULL)
    monkeypatch.setattr(selection, "kernel", None)
    monkeypatch.setattr(decode, "kernel", None)
    assert table(decode, data, 0, 100, FULL).equals(expected)


@pytest.mark.parametrize("module", [decode, decode_python])
def test_a_batch_of_more_than_128_mib_is_read(module) -> None:
    """Before the fix, such a batch stopped a stream for good. Spark gets its rows in several pieces."""
    value = bytes(1 << 20)
    data = build_batch([Record(offset, 0, None, value, ()) for offset in range(130)], codec=Codec.zstd)
    schema = pa.schema([("offset", ARROW_TYPES["offset"]), ("value", ARROW_TYPES["value"])])
    offsets, largest = [], 0
    for made in module.decode(data, select(data, 0, 130), 0, 130, "t", 0, schema):
        offsets += made.column("offset").to_pylist()
        largest = max(largest, made.num_rows)
        assert all(len(each) == 1 << 20 for each in made.column("value").to_pylist())
    assert offsets == list(range(130))
    if module is decode:
        assert largest <= 16
