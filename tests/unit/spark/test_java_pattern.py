"""Java's regular expressions for topics: the names that each matches, and the refused expressions.

In tests/spark/test_names.py a real Java runtime confirms the table.
"""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.spark.java_pattern import Untranslatable, compiled

NAMES = ("events", "Events", "ev-1", "ev_22", "a.b", "axb", "abcabc", "xx", "xy", "AB", "aB", "c", "C", "9", "t-123")
# (pattern, the names of NAMES that it matches)
MATCHED = [
    (r"ev.*", "events ev-1 ev_22"),
    (r"\p{Alnum}+", "events Events axb abcabc xx xy AB aB c C 9"),
    (r"\P{Lower}+", "AB C 9"),
    (r"\p{javaUpperCase}.*|\pN", "Events AB C 9"),
    (r"[\p{L}&&[^a-m]]+", "xx xy AB C"),
    (r"[a-c[x-z]]+", "axb abcabc xx xy c"),
    (r"[^a-z&&[^x]]", "9 C"),
    (r"(?<one>x)\k<one>\z", "xx"),
    (r"(abc)\1", "abcabc"),
    (r"\Qa.b\E", "a.b"),
    (r"\QAB\E|\Qx\E+", "AB xx"),
    (r"(?i)EVENTS", "events Events"),
    (r"a(?i)b|c", "aB c C"),
    (r"(?i:e)vents|(?i)ab(?-i)", "events Events AB aB"),
    (r"(?i)[^c]", "9"),
    (r"\Aev[-_]\d{1,2}+$", "ev-1 ev_22"),
    (r"t-\x31\u0032\0063", "t-123"),
    (r"(?=ev)(?!ev-)\w+(?<=s)", "events"),
    (r"(?>ev)\W\d", "ev-1"),
    (r"(?sdmu)C\b|[]]", "C"),
    (r"\h|\R|c", "c"),
    (r"[a-c&&]+|[&&x-y]{2}", "xx xy abcabc c"),
    (r"\b*AB$?", "AB"),
]
REFUSED = [
    "(",
    ")",
    "[a",
    "*",
    "a**",
    "a{2",
    "{2}",
    r"\j",
    r"\k",
    "(?x)a b",
    r"\p{Klingon}",
    "(?<a",
    "[b-a]",
    "(?<=a+)b",
    r"\b{g}",
    "a{2,1}",
]


@pytest.mark.parametrize(("pattern", "matched"), MATCHED)
def test_what_a_pattern_matches(pattern: str, matched: str) -> None:
    assert {name for name in NAMES if compiled(pattern).fullmatch(name)} == set(matched.split())


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_is_refused(pattern: str) -> None:
    with pytest.raises(Untranslatable):
        compiled(pattern)


@given(st.text(max_size=12))
def test_any_text_is_a_pattern_or_refused(text: str) -> None:
    with suppress(Untranslatable):
        assert isinstance(compiled(text), re.Pattern)


@given(st.text("abc-._9", max_size=12))
def test_what_is_quoted_matches_itself(text: str) -> None:
    assert compiled(rf"\Q{text}\E").fullmatch(text)
