"""Format templates: kcat's fields and escapes in output; and text printed by a template is read back by the same
template."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli import template
from ottla.cli.errors import UsageError
from ottla.cli.record_source import Source, by_template
from ottla.cli.records import NewRecord
from ottla.cli.template_reader import Reader
from tests.unit.cli.test_records import Consumed

RECORD = Consumed(headers=(("a", b"1"), ("b", b"2")))


def written(text: str, record: Any = RECORD, null: bytes = b"") -> bytes:
    return template.writer(text, null)(record)


def read(text: str, data: bytes, null_marker: bytes | None = None, file: Path | None = None) -> list[NewRecord]:
    source = Source(io.BytesIO(data), file, interactive=False, advance=lambda size: None)
    return list(by_template(source, Reader(text, null_marker), lambda record: record))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"%k %s\n", b"k v\n"),
        ("%v", b"v"),
        ("%t[%p]@%o %T", b"t[1]@7 1700000000123"),
        ("%K %S %V", b"1 1 1"),
        ("%R%s", b"\0\0\0\x01v"),
        ("%h;%s", b"a=1,b=2;v"),
        ("100%% %k", b"100% k"),
        (r"%k\t\r\n\\\0", b"k\t\r\n\\\0"),
        (r"%k\x1f\xA\033[0m", b"k\x1f\n\x1b[0m"),
        ("%k{hex}", b"k{hex}"),
        ("%d", b"1700000000123"),
        ("%d{strftime[%F %T]} %k", b"2023-11-14 22:13:20 k"),
        ("%d{strftime[[%Y]]} %d{strftime[%f]}", b"[2023] 123000"),
        ("ä%k", "äk".encode()),
        ("\udcff%k", b"\xffk"),
    ],
)
def test_what_a_template_prints(text: str, expected: bytes) -> None:
    assert written(text) == expected


def test_nulls_are_nothing_or_the_marker_and_have_a_length_of_their_own() -> None:
    record = Consumed(key=None, value=None, headers=(("a", None),))  # type: ignore[arg-type]
    assert written("%k|%s|%K|%S|%h", record) == b"||-1|-1|a=NULL"
    assert written("%k|%s|%K", record, b"NULL") == b"NULL|NULL|-1"
    assert written("%R", record) == b"\xff\xff\xff\xff"
    assert written("%k|%s|%K|%S", Consumed(key=b"", value=b""), b"NULL") == b"||0|0"


@pytest.mark.parametrize("timestamp", [-1, 2**62])
def test_a_timestamp_beyond_the_calendar_is_a_number(timestamp: int) -> None:
    assert written("%d{strftime[%F]}", Consumed(timestamp=timestamp)) == b"%d" % timestamp


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("%q", "no field %q"),
        ("%k %", "single %"),
        ("", "no field"),
        ("json", "no field"),
        ("%%", "no field"),
        (r"%k\q", r"no escape \\q"),
        ("%k\\", "no escape"),
        ("%d{go[2006]}", "isn't known"),
        ("%d{strftime[%F]", "isn't closed"),
    ],
)
def test_templates_that_are_wrong(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        written(text)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("%k%v", "where %k ends and %s begins"),
        ("%h%v", "where %h ends"),
        ("%T%v", "where %T ends"),
        ("%K%k", "where %K ends"),
        ("%p0%k", "where the number %p ends"),
        ("%k %k", "given twice"),
        ("%s %v", "given twice"),
        ("%T %d %k", "given twice"),
        ("%S %R%s", "given twice"),
        ("%k %K", "no %k after it"),
        ("%K %v", "no %k after it"),
        ("%o %v", "%o can't be read"),
        ("%t %v", "%t can't be read"),
        ("%d{strftime[%F]} %v", "can't be read"),
    ],
)
def test_templates_that_nobody_can_read_by(text: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        Reader(text, None)


@pytest.mark.parametrize(
    ("text", "data", "expected"),
    [
        (r"%k:%v\n", b"a:b:c\n:\n", [NewRecord(b"a", b"b:c", [], None, None), NewRecord(b"", b"", [], None, None)]),
        ("%k:%v", b"a:b\r\nc:d", [NewRecord(b"a", b"b\r", [], None, None), NewRecord(b"c", b"d", [], None, None)]),
        (r"%k\n%v\n", b"a\nb\nc\nd", [NewRecord(b"a", b"b", [], None, None), NewRecord(b"c", b"d", [], None, None)]),
        ("%v;", b"a;b;", [NewRecord(None, b"a", [], None, None), NewRecord(None, b"b", [], None, None)]),
        ("<%k>", b"<a>", [NewRecord(b"a", None, [], None, None)]),
        ("%p %T %h|%v", b"3 17 a=1,b=|x\n", [NewRecord(None, b"x", [("a", b"1"), ("b", b"")], 3, 17)]),
        ("%T %v", b"-1 x\n", [NewRecord(None, b"x", [], None, None)]),
        ("%K,%S,%k%s", b"-1,2,a\n1,-1,b0,0,", [
            NewRecord(None, b"a\n", [], None, None), NewRecord(b"b", None, [], None, None),
            NewRecord(b"", b"", [], None, None),
        ]),
        ("%S %s", b"3 a\nb2 cd", [NewRecord(None, b"a\nb", [], None, None), NewRecord(None, b"cd", [], None, None)]),
        (r"%S %s\n", b"2 a\n\n", [NewRecord(None, b"a\n", [], None, None)]),
        (r"%v\n--\n", b"a\n--\nb\n--", [NewRecord(None, b"a", [], None, None), NewRecord(None, b"b", [], None, None)]),
        ("%k:%v", b"", []),
        ("%v", b"\n", [NewRecord(None, b"", [], None, None)]),
    ],
)  # fmt: skip
def test_what_a_template_reads(text: str, data: bytes, expected: list[NewRecord]) -> None:
    assert read(text, data) == expected


@pytest.mark.parametrize(
    ("text", "data", "complaint"),
    [
        ("%k:%v", b"a:1\nb\nc:3\n", r"line 2: expected ':' after %k, found 'b\\n'"),
        ("%k:%v", b"a:1\n\n", r"line 2: expected ':' after %k, found '\\n'"),
        ("%k:%v", b"a:1\nb", "line 2: expected ':'"),
        ("<%v>", b"<a>\n", r"line 1: expected '<', found '\\n'"),
        (r"<%v>\n", b"<a> \n", r"line 1: expected '>\\n' after %s"),
        ("%T %v", b"1 a\nnow b\n", "line 2: expected a number for %T, found 'now b"),
        ("%T %v", b"99999999999999999999999999999 b\n", "line 1: %T is a number from -1 to"),
        ("%p %v", b"-1 b\n", "%p is a number from 0"),
        ("%K %k", b"-2 b\n", "%K is a number from -1"),
        ("%K %k\n", b"5 b\n", "line 1: the input ends inside a record, after '5 b"),
        ("%R%s", b"\0\0", "the input ends inside a record"),
        ("%R%s\n", b"\0\0\0\x01ab\n", "line 1: expected .* after %s, found 'b"),
        ("%h %v", b"a=1,b x\n", "line 1: 'b' is not a header"),
        ("%h %v", b"\xff=1 x\n", "is not UTF-8"),
        (r"%k\n%v\n", b"a\nb\nc\n", "line 3: the input ends inside a record, after 'c"),
        (r"%v\n--\n", b"a\n--\nb\n-\n", "line 3: the input ends inside a record"),
        (r"%v\n--\n", b"a\n--\nb\n-\nc\n", "line 3: expected '.*' after %s, found 'b"),
    ],
)
def test_input_that_is_not_what_the_template_says(text: str, data: bytes, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        read(text, data)


def test_the_file_is_named() -> None:
    with pytest.raises(UsageError, match="/data/in, line 2: expected ':'"):
        read("%k:%v", b"a:b\nc\n", file=Path("/data/in"))


def test_a_null_marker_is_null_where_no_length_says_so() -> None:
    assert read("%k:%v", b"N:N\n", b"N") == [NewRecord(None, None, [], None, None)]
    assert read("%k:%v", b"a:\n", b"") == [NewRecord(b"a", None, [], None, None)]
    assert read("%S %s\n", b"1 N\n", b"N") == [NewRecord(None, b"N", [], None, None)]


names = st.text(st.characters(exclude_characters=",=\t\n", exclude_categories=["Cs"]), max_size=4)
words = st.binary(max_size=8).map(lambda word: word.translate(None, b",\t\n"))
by_delimiters = st.builds(
    Consumed,
    partition=st.integers(0, 2**31 - 1),
    timestamp=st.integers(0, 2**63 - 1),
    key=words,
    value=st.binary(max_size=20).map(lambda value: value.replace(b"\n", b"")),
    headers=st.lists(st.tuples(names, words), max_size=3).map(tuple),
)
anything = st.builds(
    Consumed,
    partition=st.integers(0, 2**31 - 1),
    timestamp=st.integers(0, 2**63 - 1),
    key=st.none() | st.binary(max_size=20),
    value=st.none() | st.binary(max_size=20),
    headers=st.just(()),
)


def expected(record: Consumed) -> NewRecord:
    return NewRecord(record.key, record.value, list(record.headers), record.partition, record.timestamp)


@given(st.lists(by_delimiters, max_size=4), st.sampled_from([r"%p %T\t%h\t%k\t%s\n", r"%k\t%p@%T\t%h\t%v\n"]))
def test_there_and_back_by_delimiters(consumed: list[Consumed], text: str) -> None:
    assert read(text, b"".join(written(text, one) for one in consumed)) == [expected(one) for one in consumed]


@given(st.lists(anything, max_size=4), st.sampled_from(["%p,%T,%K,%k%R%s", r"%K %S %k%s%p/%T\n", r"<%R%T|%p|%s%K:%k>"]))
def test_there_and_back_by_lengths(consumed: list[Consumed], text: str) -> None:
    assert read(text, b"".join(written(text, one) for one in consumed)) == [expected(one) for one in consumed]


@given(st.binary(max_size=40), st.sampled_from(["%k:%v", "%R%s", "%K %k;%T", r"%h|%p\n%v\n"]))
def test_any_bytes_are_records_or_an_error_and_none_are_lost(data: bytes, text: str) -> None:
    reader = Reader(text, None)
    try:
        found = read(text, data)
    except UsageError:
        return
    at = 0
    for record in found:
        matched = reader.match(data + b"\n", at)
        assert not isinstance(matched, int)
        assert matched.record == record
        at = matched.end
    assert at in (len(data), len(data) + 1)
