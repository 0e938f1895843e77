"""Java's .properties syntax. The table was checked against java.util.Properties of Java 17."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.settings.properties import parse_properties

ESCAPED = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f", "\\": "\\\\"}
CASES = [
    ("", {}),
    ("a=1", {"a": "1"}),
    ("a:1", {"a": "1"}),
    ("a 1", {"a": "1"}),
    ("a\t=\t1", {"a": "1"}),
    ("a = = 1", {"a": "= 1"}),
    ("a=1 \n", {"a": "1 "}),
    ("a", {"a": ""}),
    ("=1", {"": "1"}),
    ("a=1\na=2", {"a": "2"}),
    ("# a=1\n  ! b=2\nc=3#4", {"c": "3#4"}),
    ("a=1\rb=2\r\nc=3\n", {"a": "1", "b": "2", "c": "3"}),
    ("a=1,\\\n    2,\\\r\n\t3", {"a": "1,2,3"}),
    ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
    ("a=1\\", {"a": "1"}),
    ("# comment \\\na=1", {"a": "1"}),
    ("a=1\\\n#2", {"a": "1#2"}),
    ("a\\=b\\:c\\ d=1", {"a=b:c d": "1"}),
    ("a=\\t\\n\\r\\f\\q\\\\", {"a": "\t\n\r\fq\\"}),
    ("a=\\u00e9\\u20AC", {"a": "é€"}),
    ("a=\\ud83d\\ude00", {"a": "😀"}),
    ("a=\\ b", {"a": " b"}),
    ("\\#a=1", {"#a": "1"}),
    ("\f a\f=\f1", {"a": "1"}),
]


@pytest.mark.parametrize(("text", "pairs"), CASES)
def test_syntax(text: str, pairs: dict[str, str]) -> None:
    assert parse_properties(text) == pairs


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\u12xz", "a=\\u 123"])
def test_malformed_escape_names_its_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"^line 2: .* is not .u and four hexadecimal digits$"):
        parse_properties("x=1\n" + text)


@given(st.dictionaries(st.text(), st.text()))
def test_what_is_written_is_read_back(properties: dict[str, str]) -> None:
    assert parse_properties(written(properties)) == properties


@given(st.text(alphabet="ab =:\\#!\t\f\n\ru0041"))
def test_any_text_is_read_or_refused_and_reading_is_stable(text: str) -> None:
    try:
        pairs = parse_properties(text)
    except ValueError:
        return
    assert parse_properties(written(pairs)) == pairs


def written(properties: Mapping[str, str]) -> str:
    """A .properties text with these pairs, escaped as necessary."""
    return "".join(f"{escaped(name, '=:#! ')}={escaped_value(value)}\n" for name, value in properties.items())


def escaped(text: str, special: str) -> str:
    return "".join(
        ESCAPED.get(character) or ("\\" + character if character in special else character) for character in text
    )


def escaped_value(value: str) -> str:
    blanks = len(value) - len(value.lstrip(" "))
    return "\\ " * blanks + escaped(value[blanks:], "")
