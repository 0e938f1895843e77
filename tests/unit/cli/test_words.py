"""Texts that users type (moments, partitions, addresses), and texts and exit codes that they get (error messages)."""

from __future__ import annotations

import pytest

from ottla.cli.connection import parse_bootstrap
from ottla.cli.dev import parse_topics
from ottla.cli.errors import CommandError, ExitCode, UsageError, explain_code, nearest, sentences
from ottla.cli.lookup import parse_partitions, parse_topic
from ottla.cli.output import cell
from ottla.cli.times import moment_text, parse_moment
from ottla.wording import size_text

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "moment_ms"),
    [
        ("1700000000000", NOW_MS),
        ("90s", NOW_MS - 90_000),
        ("2h ago", NOW_MS - 7_200_000),
        ("-7d", NOW_MS - 604_800_000),
        ("2023-11-14T22:13:20", NOW_MS),
        ("2023-11-14T23:13:20+01:00", NOW_MS),
        ("2023-11-14", 1_699_920_000_000),
    ],
)
def test_moments(text: str, moment_ms: int) -> None:
    assert parse_moment(text, NOW_MS) == moment_ms


@pytest.mark.parametrize("text", ["yesterday", "", "3 parsecs", "2023-13-01"])
def test_no_moments(text: str) -> None:
    with pytest.raises(UsageError, match="is not a moment"):
        parse_moment(text, NOW_MS)


@pytest.mark.parametrize(("moment_ms", "text"), [(0, "1970-01-01T00:00:00.000Z"), (-1, "-"), (10**18, str(10**18))])
def test_moment_text(moment_ms: int, text: str) -> None:
    assert moment_text(moment_ms) == text


def test_partitions() -> None:
    assert parse_partitions("0,2-4,3") == [0, 2, 3, 4]
    assert parse_topic("flights") == ("flights", None)
    assert parse_topic("flights:1") == ("flights", [1])


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "0-999999999"])
def test_no_partitions(text: str) -> None:
    with pytest.raises(UsageError):
        parse_partitions(text)


def test_addresses() -> None:
    assert parse_bootstrap("a:1, b ,[::1]:3") == [("a", 1), ("b", 9092), ("::1", 3)]


@pytest.mark.parametrize("text", ["", "a:", "a:x", "a:0", "a:65536", ":9092", "kafka://a:1", "::1:9092"])
def test_no_addresses(text: str) -> None:
    with pytest.raises(UsageError):
        parse_bootstrap(text)


def test_wished_topics() -> None:
    assert parse_topics("a, b:3,c:3:2,") == [("a", -1, -1), ("b", 3, -1), ("c", 3, 2)]
    for text in ("a:x", ":3", "a:1:2:3"):
        with pytest.raises(UsageError):
            parse_topics(text)


def test_every_known_error_code_is_a_sentence_with_its_subject() -> None:
    from ottla.cli.errors import _SENTENCES

    for code in _SENTENCES:
        error = explain_code(code, "topic 'x'")
        assert "\n" not in error.line()
        assert "{" not in error.line()
        assert error.kafka_code == code


def test_the_brokers_own_words_win() -> None:
    assert explain_code(40, "topic 'x'", "Invalid value abc.").message == "topic 'x': Invalid value abc"
    assert explain_code(40, "topic 'a'", "Invalid values.").message == "topic 'a': Invalid values"
    assert explain_code(40, "topic 'a'", "Topic a is full.").message == "Topic a is full"
    assert "exists already" in explain_code(36, "topic 'x'", "Topic 'x' already exists.").message
    assert explain_code(999, "topic 'x'", code_name="Odd").message == "topic 'x': the broker answered Odd"


def test_sentences() -> None:
    assert sentences("a", "b.", "c?") == "a. b. c?"
    assert sentences("a", "") == "a"
    assert CommandError("two\nlines", "do it").line() == "two lines. do it."
    assert nearest("retention.mss", ["retention.ms", "segment.ms"]) == " Did you mean 'retention.ms'?"
    assert nearest("zzz", ["retention.ms"]) == ""


def test_exit_codes_keep_their_numbers() -> None:
    numbers = {code.name: code.value for code in ExitCode}
    assert numbers == {
        "ok": 0,
        "failed": 1,
        "usage": 2,
        "unreachable": 3,
        "not_found": 4,
        "timed_out": 5,
        "interrupted": 130,
        "pipe_closed": 141,
        "terminated": 143,
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), ("", "-"), (True, "yes"), ([1, 2], "1,2"), ([], "-"), ({"a": 1}, "a=1"), (3, "3")],
)
def test_cells(value: object, text: str) -> None:
    assert cell(value) == text


def test_sizes() -> None:
    assert [size_text(size) for size in (0, 1023, 1536, 3 * 2**30)] == ["0 B", "1023 B", "1.5 KiB", "3.0 GiB"]
