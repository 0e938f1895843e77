"""The fields of the records of internal topics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.errors import ProtocolError
from ottla.protocol.stored_fields import FieldReader, FieldWriter

integers = st.integers(-(2**31), 2**31 - 1)


@given(st.booleans(), integers, st.text(max_size=200), st.lists(integers, max_size=200), st.binary(max_size=200))
def test_what_is_written_is_read(flexible: bool, number: int, text: str, numbers: list[int], tagged: bytes) -> None:
    writer = FieldWriter()
    writer.flexible = flexible
    writer.int64(number)
    writer.text(text)
    writer.count(len(numbers))
    for each in numbers:
        writer.int32(each)
    writer.count(None)
    writer.tags({3: tagged})
    writer.int8(-1)
    writer.int16(-2)
    reader = FieldReader(bytes(writer.out), "topic")
    reader.flexible = flexible
    assert reader.int64() == number
    assert reader.text() == text
    assert [reader.int32() for _ in range(reader.count())] == numbers
    assert reader.count() == 0
    assert reader.tags() == ({3: tagged} if flexible else {})
    assert (reader.int8(), reader.int16()) == (-1, -2)
    with pytest.raises(ProtocolError, match="topic"):
        reader.int8()


def test_a_null_string_is_malformed_where_a_text_is_due() -> None:
    assert FieldReader(b"\xff\xff", "topic").nullable_text() is None
    with pytest.raises(ProtocolError, match="a null string in topic"):
        FieldReader(b"\xff\xff", "topic").text()


def test_a_text_that_is_not_utf_8_is_malformed() -> None:
    with pytest.raises(ProtocolError, match="not UTF-8"):
        FieldReader(b"\x00\x01\xff", "topic").text()
