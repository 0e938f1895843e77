"""Java's string hash, by which Kafka finds the partition of a group or of a transactional id."""

from __future__ import annotations

import pytest

from ottla.protocol.java_hash import java_hash, partition_of


@pytest.mark.parametrize(
    ("text", "code"),
    [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", -(2**31)), ("é", 233), ("😀", 1772899)],
)
def test_javas_string_hash(text: str, code: int) -> None:
    assert java_hash(text) == code


def test_the_smallest_int_has_no_absolute_value() -> None:
    assert partition_of("polygenelubricants", 50) == 0
