"""The walk over a batch's records refuses what Kafka refuses, wherever the pieces of the records are cut."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol import record_walk
from ottla.protocol.batches import HEADER_SIZE, Record, build_batch, read_header, records, write_record
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.record_walk import NAMED_MAX, RecordWalk, walk_of
from ottla.protocol.record_walk_twin import RecordWalk as Twin
from ottla.protocol.varints import write_varint
from tests.unit.examples import examples

FORMS = [pytest.param(Twin, id="twin")]
if record_walk.NATIVE:
    FORMS.append(pytest.param(RecordWalk, id="native"))
both_forms = pytest.mark.parametrize("form", FORMS)

LEAST, GREATEST = -(2**63), 2**63 - 1
Form = type[Twin] | type[RecordWalk]
Verdict = str | tuple[int, int, int, list[tuple[int, int]]]


def verdict(
    form: Form,
    body: bytes,
    count: int,
    *,
    last: int | None = None,
    base: int = 0,
    append_time: bool = False,
    compacted: bool = False,
    oldest: int = LEAST,
    newest: int = GREATEST,
    cuts: int | list[int] = 0,
) -> Verdict:
    """The walk's result for `body`: (greatest timestamp, bad keys, bad timestamps, bad records), or its refusal.

    The walk is fed the whole body, or pieces of `cuts` bytes, or pieces that end at the offsets `cuts`."""
    last = max(count - 1, -(2**31)) if last is None else last
    walk = form(count, last, base, append_time, compacted, oldest, newest)
    edges = list(range(0, len(body), cuts)) if isinstance(cuts, int) and cuts else cuts or []
    edges = sorted({0, len(body), *(min(edge, len(body)) for edge in edges)})
    try:
        for start, end in itertools.pairwise(edges):
            walk.feed(body[start:end])
        greatest = walk.finish()
    except KafkaError as error:
        code = ErrorCode.invalid_timestamp if error.record_errors else ErrorCode.invalid_record
        assert error.code == code  # noqa: PT017
        with pytest.raises(KafkaError, match=code.name):
            walk.feed(b"\x00")
        with pytest.raises(KafkaError, match=code.name):
            walk.finish()
        return error.message
    assert greatest == walk.max_timestamp
    return greatest, walk.bad_keys, walk.bad_timestamps, list(walk.bad)


def number(value: int) -> bytes:
    out = bytearray()
    write_varint(out, value)
    return bytes(out)


def framed(fields: bytes) -> bytes:
    return number(len(fields)) + fields


def fields(index: int = 0, key: bytes = b"\x02k", value: bytes = b"\x02v", headers: bytes = b"\x00") -> bytes:
    """A record's fields after its length; key, value and headers are given as encoded."""
    return b"\x00" + number(5) + number(index) + key + value + headers


def body_of(*items: Record, base: int = 0) -> bytes:
    out = bytearray()
    for item in items:
        write_record(out, item, 0, base)
    return bytes(out)


SOUND = body_of(*(Record(i, 100 + i, b"k", bytes(i), (("h", b"x"), ("n", None))) for i in range(70)))
"""Seventy records, so that there are offset deltas of one byte and of two bytes."""


@both_forms
@pytest.mark.parametrize("cuts", [0, 1, 2, 3, 7, 64])
def test_sound_records_pass_however_they_are_cut(form: Form, cuts: int) -> None:
    assert verdict(form, SOUND, 70, cuts=cuts, compacted=True) == (169, 0, 0, [])


@both_forms
@pytest.mark.parametrize("end", range(0, len(SOUND), 11))
def test_a_batch_that_ends_early_is_refused(form: Form, end: int) -> None:
    said = verdict(form, SOUND[:end], 70)
    assert "ends before record" in str(said)
    assert said == verdict(form, SOUND[:end], 70, cuts=1)


@both_forms
@pytest.mark.parametrize("count", [2**31 - 1, 71, 69, 1, 0, -1, -(2**31)])
def test_a_count_that_does_not_match_is_refused(form: Form, count: int) -> None:
    assert f"the batch states {count} records" in str(verdict(form, SOUND, count))


@both_forms
def test_a_batch_of_no_records_is_empty(form: Form) -> None:
    assert verdict(form, b"", 0, last=5) == (-1, 0, 0, [])


BROKEN = {
    "a record of a negative length": (number(-1) + fields(), "shorter than its fields"),
    "a record of no bytes": (number(0) + fields(), "shorter than its fields"),
    "a record that ends inside its timestamp": (number(2) + b"\x00\x80\x01\x00\x01\x01\x00", "shorter than its fields"),
    "a record that ends before its headers": (number(len(fields()) - 1) + fields(), "shorter than its fields"),
    "a record with bytes after its fields": (framed(fields() + b"\x00"), "after its fields"),
    "a length of six bytes": (b"\x80\x80\x80\x80\x80\x00", "more bits"),
    "a length of 33 bits": (b"\x80\x80\x80\x80\x10", "more bits"),
    "a record of 2 GiB in a small batch": (number(2**31 - 1) + fields(), "after its fields"),
    "a record and a value of 2 GiB": (number(2**31 - 1) + fields(value=number(2**31 - 99)), "ends before record 0"),
    "a timestamp of eleven bytes": (framed(b"\x00" + b"\x80" * 10 + b"\x00\x00\x01\x01\x00"), "more bits"),
    "a timestamp of 65 bits": (framed(b"\x00" + b"\x80" * 9 + b"\x02\x00\x01\x01\x00"), "more bits"),
    "an offset delta of 33 bits": (framed(b"\x00\x00\x80\x80\x80\x80\x10\x01\x01\x00"), "more bits"),
    "a wrong offset delta": (framed(fields(index=1)), "offset delta of record 0"),
    "a negative offset delta": (framed(fields(index=-1)), "offset delta of record 0"),
    "a key beyond its record": (framed(fields(key=number(9) + b"k")), "shorter than its fields"),
    "a key of 2 GiB": (framed(fields(key=number(2**31 - 1) + b"k")), "shorter than its fields"),
    "a key of a length below -1": (framed(fields(key=number(-2))), "below -1"),
    "a value beyond its record": (framed(fields(value=number(4) + b"v")), "shorter than its fields"),
    "a value of a length below -1": (framed(fields(value=number(-(2**31)))), "below -1"),
    "a negative number of headers": (framed(fields(headers=number(-1))), "number of headers"),
    "more headers than bytes": (framed(fields(headers=number(3) + b"\x02h\x01")), "number of headers"),
    "2,147,483,647 headers": (framed(fields(headers=number(2**31 - 1))), "number of headers"),
    "a header without a key": (framed(fields(headers=b"\x02\x01\x02v")), "a header of record 0 has no key"),
    "a header key below -1": (framed(fields(headers=b"\x02" + number(-7) + b"\x02v")), "below -1"),
    "a header key beyond its record": (framed(fields(headers=b"\x02\x08h\x01")), "shorter than its fields"),
    "a header value beyond its record": (framed(fields(headers=b"\x02\x02h\x08v")), "shorter than its fields"),
    "a header value below -1": (framed(fields(headers=b"\x02\x02h" + number(-2))), "below -1"),
    "a second record": (framed(fields()) * 2, "states 1 records and holds bytes after them"),
    "half a number after the record": (framed(fields()) + b"\x80", "states 1 records and holds bytes after them"),
    "a missing last header value": (framed(fields(headers=b"\x02\x02h\x04vv"))[:-1], "ends before record 0"),
}


@both_forms
@pytest.mark.parametrize("case", BROKEN)
@pytest.mark.parametrize("cuts", [0, 1, 2, 5])
def test_broken_records_are_refused(form: Form, case: str, cuts: int) -> None:
    body, sentence = BROKEN[case]
    assert sentence in str(verdict(form, body, 1, cuts=cuts))


@both_forms
def test_the_record_that_is_broken_is_named(form: Form) -> None:
    good = framed(fields()) + framed(fields(index=1))
    assert "record 2 is shorter" in str(verdict(form, good + number(2) + bytes(3), 4))
    assert "the offset delta of record 2 " in str(verdict(form, good + framed(fields(index=1)), 4))


@both_forms
@pytest.mark.parametrize("size", [0, 1, 63, 64, 8191, 8192, 2**20 - 1, 2**20])
@pytest.mark.parametrize("cuts", [0, 1000])
def test_lengths_of_one_to_four_bytes(form: Form, size: int, cuts: int) -> None:
    content = bytes(size)
    rows = [Record(i, 5, content, content, ((content.decode(), content),)) for i in range(3)]
    assert verdict(form, body_of(*rows), 3, cuts=cuts) == (5, 0, 0, [])


@both_forms
def test_a_batch_of_ten_thousand_records(form: Form) -> None:
    """The batch has offset deltas of one to three bytes, and timestamps that rise and fall."""
    body = body_of(*(Record(i, 10**12 + i * 7919 % 20_000, b"k", b"v") for i in range(10_000)), base=10**12)
    assert verdict(form, body, 10_000, base=10**12) == (10**12 + 19_999, 0, 0, [])


@both_forms
@pytest.mark.parametrize("width", range(1, 6))
def test_a_number_may_be_written_longer_than_it_needs(form: Form, width: int) -> None:
    padded = b"\x80" * (width - 1) + b"\x00"
    assert verdict(form, framed(b"\x00" + padded * 5), 1) == (0, 0, 0, [])


@both_forms
def test_a_record_may_use_any_attributes(form: Form) -> None:
    assert verdict(form, framed(b"\xff" + fields()[1:]), 1) == (5, 0, 0, [])


@both_forms
def test_a_value_of_many_pieces_is_passed_over(form: Form) -> None:
    size = 5 << 20
    body = framed(fields(value=number(size) + bytes(size))) + framed(fields(index=1))
    assert verdict(form, body, 2, cuts=1 << 20) == verdict(form, body, 2) == (5, 0, 0, [])


@both_forms
def test_null_keys_are_named_on_a_compacted_topic_only(form: Form) -> None:
    body = b"".join(framed(fields(index=i, key=b"\x01" if i in (1, 3) else b"\x00")) for i in range(5))
    assert verdict(form, body, 5) == (5, 0, 0, [])
    assert verdict(form, body, 5, compacted=True) == (5, 2, 0, [(1, 87), (3, 87)])


@both_forms
def test_timestamps_out_of_bounds_are_named(form: Form) -> None:
    body = body_of(*(Record(i, time, b"k", b"v") for i, time in enumerate([9, 10, 20, 21, -1, -2])))
    bad = [(0, 32), (3, 32), (5, 32)]
    assert verdict(form, body, 6, oldest=10, newest=20) == (21, 0, 3, bad)
    assert verdict(form, body, 6, oldest=11, newest=9) == (21, 0, 5, [(i, 32) for i in (0, 1, 2, 3, 5)])


@both_forms
def test_a_record_without_a_key_is_named_for_its_key_not_its_timestamp(form: Form) -> None:
    body = body_of(Record(0, 50, None, b"v"), Record(1, 50, b"k", b"v"))
    assert verdict(form, body, 2, compacted=True, newest=40) == (50, 1, 1, [(0, 87), (1, 32)])


@both_forms
def test_no_timestamp_is_the_least_maximum(form: Form) -> None:
    assert verdict(form, body_of(Record(0, -5, b"k", b"v"), Record(1, -9, b"k", b"v")), 2) == (-1, 0, 0, [])


@both_forms
def test_a_timestamp_that_overflows_is_refused_and_its_record_is_named(form: Form) -> None:
    walk = form(2, 1, GREATEST - 4, False, False, LEAST, GREATEST)
    with pytest.raises(KafkaError, match="invalid_timestamp") as refused:
        walk.feed(framed(fields()) + framed(fields(index=1)))
    assert [index for index, _ in refused.value.record_errors] == [0]
    body = framed(fields())
    assert verdict(form, body, 1, base=GREATEST - 5) == (GREATEST, 0, 0, [])
    assert "more than 64 bits" in str(verdict(form, body, 1, base=GREATEST - 4))
    under = framed(b"\x00" + number(-1) + number(0) + b"\x01\x01\x00")
    assert verdict(form, under, 1, base=LEAST + 1) == (-1, 0, 0, [])
    assert "more than 64 bits" in str(verdict(form, under, 1, base=LEAST))
    assert verdict(form, under, 1, base=LEAST, append_time=True) == (-1, 0, 0, [])


@both_forms
def test_records_of_log_append_time_have_the_batchs_time(form: Form) -> None:
    assert verdict(form, SOUND, 70, base=42, append_time=True, newest=50) == (42, 0, 0, [])
    said = verdict(form, SOUND, 70, base=42, append_time=True, newest=41)
    assert not isinstance(said, str)
    assert said[2] == 70


@both_forms
def test_more_bad_records_than_are_named_are_counted(form: Form) -> None:
    count = NAMED_MAX + 10
    body = b"".join(framed(fields(index=i, key=b"\x01")) for i in range(count))
    named = [(index, 87) for index in range(NAMED_MAX)]
    assert verdict(form, body, count, compacted=True) == (5, count, 0, named)


@both_forms
def test_a_compacted_batch_keeps_its_offsets(form: Form) -> None:
    """Gaps are valid in a log: offset deltas only have to rise, up to the header's last one."""
    body = b"".join(framed(fields(index=i)) for i in (2, 5, 9))
    assert verdict(form, body, 3, last=9) == verdict(form, body, 3, last=12) == (5, 0, 0, [])
    assert "offset delta of record 2" in str(verdict(form, body, 3, last=8))
    assert "offset delta of record 1" in str(
        verdict(form, b"".join(framed(fields(index=i)) for i in (2, 2)), 2, last=9)
    )


@both_forms
def test_any_buffer_is_taken_and_bounds_are_held(form: Form) -> None:
    for wrap in (bytes, bytearray, memoryview):
        walk = form(70, 69, 0, False, False, LEAST, GREATEST)
        walk.feed(wrap(b"\xff" * 9 + SOUND + b"\xff"), 9, 9 + len(SOUND))
        assert walk.finish() == 169
    walk = form(70, 69, 0, False, False, LEAST, GREATEST)
    walk.feed(SOUND, 0, 40)
    walk.feed(SOUND, 40)
    assert walk.finish() == 169


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, int]:
    """A batch's records, often with damaged bytes, and a count of records, often the right one."""
    content = st.none() | st.binary(max_size=3) | (st.integers(60, 70) | st.integers(8190, 8193)).map(bytes)
    headers = st.lists(st.tuples(st.text(max_size=2), st.none() | st.binary(max_size=3)), max_size=3)
    rows = draw(st.lists(st.tuples(st.integers(-3, 2**40), content, content, headers), min_size=1, max_size=8))
    body = bytearray(body_of(*(Record(i, t, k, v, h) for i, (t, k, v, h) in enumerate(rows))))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(body) - 1))
        body[at : at + draw(st.integers(0, 1))] = draw(st.binary(max_size=2))
        if not body:
            break
    return bytes(body), draw(st.just(len(rows)) | st.integers(-1, 10))


@both_forms
@given(case=bodies() | st.tuples(st.binary(max_size=60), st.integers(0, 4)), data=st.data())
@settings(max_examples=examples(300))
def test_both_forms_judge_any_bytes_alike_however_cut(form: Form, case: tuple[bytes, int], data: st.DataObject) -> None:
    body, count = case
    judge = partial(
        verdict,
        body=body,
        count=count,
        base=data.draw(st.sampled_from([0, 7, LEAST, GREATEST])),
        compacted=data.draw(st.booleans()),
        oldest=data.draw(st.integers(-2, 9)),
        newest=data.draw(st.integers(0, 2**40)),
    )
    cuts = data.draw(st.integers(0, 3) | st.lists(st.integers(0, 80), max_size=5))
    assert judge(form, cuts=cuts) == judge(Twin)


@both_forms
@given(case=bodies())
@settings(max_examples=examples(300))
def test_what_passes_can_be_read_and_what_can_be_read_with_right_offsets_passes(
    form: Form, case: tuple[bytes, int]
) -> None:
    """The walk is compared with the reader of records, which doesn't use the walk (and accepts varints that are too
    long).
    """
    body, count = case
    batch = bytearray(build_batch([], base_offset=0) + body)
    batch[8:12] = (len(batch) - 12).to_bytes(4, "big")
    batch[57:61] = count.to_bytes(4, "big", signed=True)
    said = verdict(form, body, count, compacted=True)
    try:
        seen = list(records(bytes(batch)))
        times = [record.timestamp - read_header(batch).base_timestamp for record in seen]
    except (KafkaError, UnicodeDecodeError):
        seen, times = None, []
    if isinstance(said, tuple) and seen is not None:
        assert [record.offset for record in seen] == list(range(count))
        assert said[0] == max([-1, *times])
        assert said[3] == [(index, 87) for index, record in enumerate(seen) if record.key is None]
    if seen is not None and [record.offset for record in seen] == list(range(count)):
        assert isinstance(said, tuple) or "more bits" in said or "below -1" in said or "holds bytes after" in said, said


def test_a_header_says_what_the_walk_looks_for() -> None:
    batch = build_batch([Record(7, 1000, b"k", b"v"), Record(8, 3000, b"k", b"v")], base_offset=7)
    walk = walk_of(read_header(batch), compacted=True, newest=2000)
    walk.feed(batch, HEADER_SIZE)
    assert (walk.finish(), walk.bad) == (3000, [(1, 32)])
    stamped = build_batch([Record(0, 1000, b"k", b"v")], log_append_time=5000)
    walk = walk_of(read_header(stamped), compacted=False, oldest=-(2**70), newest=2**70)
    walk.feed(stamped, HEADER_SIZE)
    assert walk.finish() == 5000
