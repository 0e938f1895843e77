"""Records as text, as lines and as JSON, in both directions."""

from __future__ import annotations

import json
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli import records
from ottla.cli.errors import UsageError
from ottla.cli.records import Constants, LineFormat, NewRecord


class Consumed(NamedTuple):
    """A record as the Kafka client returns it."""

    topic: str = "t"
    partition: int = 1
    offset: int = 7
    timestamp: int = 1_700_000_000_123
    timestamp_type: int = 0
    key: bytes | None = b"k"
    value: bytes | None = b"v"
    headers: tuple[tuple[str, bytes], ...] = ()


@pytest.mark.parametrize(
    ("key_separator", "header_separator", "line", "expected"),
    [
        (None, None, b"a:b", NewRecord(None, b"a:b", [], None, None)),
        (":", None, b"a:b:c", NewRecord(b"a", b"b:c", [], None, None)),
        (":", None, b"NULL:NULL", NewRecord(None, None, [], None, None)),
        (":", "\\t", b"h:1,i:\ta:b", NewRecord(b"a", b"b", [("h", b"1"), ("i", b"")], None, None)),
        (None, "\\t", b"\tb", NewRecord(None, b"b", [], None, None)),
        (None, None, b"", NewRecord(None, b"", [], None, None)),
    ],
)
def test_lines(key_separator: str | None, header_separator: str | None, line: bytes, expected: NewRecord) -> None:
    assert LineFormat(key_separator, header_separator, b"NULL").parse(line) == expected


@pytest.mark.parametrize(
    ("line", "complaint"),
    [(b"no tab", "no header separator"), (b"h:1\tno colon", "no key separator"), (b"h\ta:b", "is not a header")],
)
def test_lines_that_are_wrong(line: bytes, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        LineFormat(":", "\\t", None).parse(line)


@given(
    key=st.none() | st.binary(max_size=20),
    value=st.none() | st.binary(max_size=20),
    headers=st.lists(st.tuples(st.text(max_size=5), st.binary(max_size=5)), max_size=3),
    timestamp=st.integers(0, 2**40),
)
def test_json_survives_the_way_out_and_in(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]], timestamp: int
) -> None:
    consumed = Consumed(key=key, value=value, headers=tuple(headers), timestamp=timestamp)
    text = json.dumps(records.to_json(consumed)).encode()
    assert records.parse_json(text) == NewRecord(key, value, headers, None, timestamp)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"{", "not JSON"),
        (b"[]", "not an object"),
        (b'{"timestamp": "now"}', "timestamp"),
        (b'{"headers": [1]}', "headers"),
        (b'{"headers": [{"key": "a", "value": null}]}', "has no value"),
        (b'{"value_base64": "?"}', "base64"),
    ],
)
def test_json_that_is_wrong(text: bytes, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        records.parse_json(text)


def test_json_values_need_not_be_text() -> None:
    record = records.parse_json(b'{"value": {"a": 1}, "headers": {"x": "y"}}')
    assert record == NewRecord(None, b'{"a": 1}', [("x", b"y")], None, None)


def test_a_line_shows_what_is_asked_for_in_a_fixed_order() -> None:
    record = Consumed(value=None, headers=(("h", b"1"), ("i", b"2")))
    writer = records.line_writer(["key", "headers", "offset", "timestamp", "topic"], "\\t", "∅")
    assert writer(record) == "t\t7\t2023-11-14T22:13:20.123Z\th:1,i:2\tk\t∅\n".encode()


def test_constants_fill_what_a_record_leaves_open() -> None:
    constants = Constants(key=b"k", headers=[("a", b"1")], partition=3)
    assert constants.complete(NewRecord(None, b"v", [("b", b"2")], None, 5)) == NewRecord(
        b"k", b"v", [("a", b"1"), ("b", b"2")], 3, 5
    )
