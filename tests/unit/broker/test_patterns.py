"""Regular expressions of clients: those that RE2 knows, in linear time."""

from __future__ import annotations

from time import perf_counter

import pytest

from ottla.broker.patterns import PATTERN_LENGTH_MAX, matcher
from ottla.protocol.errors import ErrorCode, KafkaError


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("id", ["id"], ["ID", "id1", "an id", ""]),
        ("id-.*", ["id-", "id-7"], ["an id-7", "id"]),
        ("a|b", ["a", "b"], ["ab"]),
        ("(?i)id", ["ID"], []),
        (r"\Qa.b\E", ["a.b"], ["axb"]),
        (r"\Q\C\E", [r"\C"], []),
        (r"\\C", [r"\C"], []),
        (r"\pL+", ["äö"], ["1"]),
        ("[[:digit:]]{2}", ["12"], ["1", "123"]),
        (".", ["ö", "😀"], ["\n", "ab"]),
        ("(?s).", ["\n"], []),
        ("^id$", ["id"], ["id\n"]),
        (r"\é\-\Q\é\E", [r"é-\é"], ["é-é"]),
        ("(?P<name>a)", ["a"], []),
        ("", [""], ["a"]),
    ],
)
def test_what_matches(pattern: str, matching: list[str], others: list[str]) -> None:
    matches = matcher(pattern)
    assert [text for text in matching + others if matches(text)] == matching


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "[",
        "a**",
        "a{1001}",
        r"\C",
        r"a\Q.\E\C",
        "(?=a)",
        "(?<!a)b",
        r"(a)\1",
        r"\Z",
        "(?P<a",
        "\\",
        r"\x{110000}",
    ],
)
def test_what_is_refused(pattern: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KafkaError) as refusal:
        matcher(pattern)
    assert refusal.value.code is ErrorCode.invalid_regular_expression
    assert capfd.readouterr() == ("", ""), "the library writes to the standard error output if nobody tells it not to"


def test_patterns_that_are_too_large_are_refused() -> None:
    assert matcher("a" * PATTERN_LENGTH_MAX)("a" * PATTERN_LENGTH_MAX)
    for pattern in ("a" * (PATTERN_LENGTH_MAX + 1), r"((\pL\pN){30}){30}"):
        with pytest.raises(KafkaError) as refusal:
            matcher(pattern)
        assert refusal.value.code is ErrorCode.invalid_regular_expression


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|aa)+b", "(a*)*b", "(.*a){20}b"])
def test_patterns_that_would_stop_a_backtracking_matcher(pattern: str) -> None:
    begun = perf_counter()
    assert not matcher(pattern)("a" * 10_000)
    assert perf_counter() - begun < 5
