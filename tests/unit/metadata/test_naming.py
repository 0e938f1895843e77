"""Topic names and manual assignments, with the messages of Apache Kafka 4.3.1, taken from a running one."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ottla.metadata.naming import check_any_runs, check_assignments, check_topic_name, metric_name
from ottla.protocol.errors import ErrorCode, KafkaError

OTHER_CHARACTERS = " contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "x" * 249, "...", "__consumer_offsets"])
def test_legal_names(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "Topic name is invalid: the empty string is not allowed"),
        (".", "Topic name is invalid: '.' is not allowed"),
        ("..", "Topic name is invalid: '..' is not allowed"),
        ("x" * 250, f"Topic name is invalid: the length of '{'x' * 250}' is longer than the max allowed length 249"),
        (
            "a b",
            "Topic name is invalid: 'a b'" + OTHER_CHARACTERS,
        ),
        (
            "ä",
            "Topic name is invalid: 'ä'" + OTHER_CHARACTERS,
        ),
        (
            "a\n",
            "Topic name is invalid: 'a\n'" + OTHER_CHARACTERS,
        ),
    ],
)
def test_illegal_names(name: str, said: str) -> None:
    with pytest.raises(KafkaError) as raised:
        check_topic_name(name)
    assert (raised.value.code, raised.value.message) == (ErrorCode.invalid_topic_exception, said)


def test_names_that_collide_in_metrics() -> None:
    assert metric_name("a.b") == metric_name("a_b") == "a_b"
    assert metric_name("ab") is None


@pytest.mark.parametrize(
    ("assignments", "said"),
    [
        ([(0, [1]), (2, [1])], "partitions should be a consecutive 0-based integer sequence"),
        ([(1, [1])], "partitions should be a consecutive 0-based integer sequence"),
        ([(0, [1]), (0, [1])], "Found multiple manual partition assignments for partition 0"),
        ([(0, [1, 1])], "The manual partition assignment includes the broker 1 more than once."),
        ([(0, [99])], "The manual partition assignment includes broker 99, but no such broker is registered."),
        ([(0, [])], "The manual partition assignment includes an empty replica list."),
        (
            [(0, [1]), (1, [1, 2])],
            "The manual partition assignment includes a partition with 2 replica(s), but this is not consistent with"
            " previous partitions, which have 1 replica(s).",
        ),
    ],
)
def test_bad_assignments(assignments: Sequence[tuple[int, Sequence[int]]], said: str) -> None:
    with pytest.raises(KafkaError) as raised:
        check_assignments(assignments, {1, 2})
    assert (raised.value.code, raised.value.message) == (ErrorCode.invalid_replica_assignment, said)


def test_good_assignments() -> None:
    assert check_assignments([(1, [2, 1]), (0, [1, 2])], {1, 2}) == ((1, 2), (2, 1))
    check_any_runs([(1, 2)], {1: False, 2: True})
    with pytest.raises(KafkaError, match="partition 7 are fenced or in controlled shutdown"):
        check_any_runs([(1,)], {1: False}, 7)
