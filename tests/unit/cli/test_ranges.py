"""Where a read starts and where it ends, in the notation that people type."""

from __future__ import annotations

import re

import pytest

from ottla.cli.errors import UsageError
from ottla.cli.ranges import EARLIEST, LATEST, FromEnd, FromStart, Moment, Offset, Range, parse_end, parse_range

HOUR = 3_600_000
NEW_YEAR = 1_767_225_600_000  # 2026-01-01T00:00:00Z
NOW = NEW_YEAR + 1000 * HOUR


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", Range(Offset(7), None)),
        ("-7", Range(FromEnd(7), None)),
        ("+7", Range(FromStart(7), None)),
        ("earliest", Range(EARLIEST, None)),
        ("latest", Range(LATEST, None)),
        ("7:", Range(Offset(7), None)),
        (":7", Range(EARLIEST, Offset(7))),
        (":end", Range(EARLIEST, LATEST)),
        ("10:20", Range(Offset(10), Offset(20))),
        ("-5:end", Range(FromEnd(5), LATEST)),
        ("earliest:20", Range(EARLIEST, Offset(20))),
        ("10:@1h", Range(Offset(10), Moment(NOW - HOUR))),
        ("10:2026-01-01", Range(Offset(10), Moment(NEW_YEAR))),
        ("@2h", Range(Moment(NOW - 2 * HOUR), None)),
        ("@-2h", Range(Moment(NOW - 2 * HOUR), None)),
        ("@2h:", Range(Moment(NOW - 2 * HOUR), None)),
        ("@-2h:-1h", Range(Moment(NOW - 2 * HOUR), Moment(NOW - HOUR))),
        ("@2h:@1h", Range(Moment(NOW - 2 * HOUR), Moment(NOW - HOUR))),
        ("@2h:end", Range(Moment(NOW - 2 * HOUR), LATEST)),
        ("@:1h", Range(EARLIEST, Moment(NOW - HOUR))),
        ("@:@1h", Range(EARLIEST, Moment(NOW - HOUR))),
        ("@1767225600000", Range(Moment(NEW_YEAR), None)),
        ("@1767225600000:1767229200000", Range(Moment(NEW_YEAR), Moment(NEW_YEAR + HOUR))),
        ("@2026-01-01", Range(Moment(NEW_YEAR), None)),
        ("@2026-01-01T00:00:00Z", Range(Moment(NEW_YEAR), None)),
        ("@2026-01-01T00:00:00Z:", Range(Moment(NEW_YEAR), None)),
        ("@2026-01-01T01:00:00+01:00", Range(Moment(NEW_YEAR), None)),
        ("@2026-01-01T00:00:00Z:@2026-01-01T01:00:00Z", Range(Moment(NEW_YEAR), Moment(NEW_YEAR + HOUR))),
        ("@2026-01-01T00:00:2026-01-01T01:00:00", Range(Moment(NEW_YEAR), Moment(NEW_YEAR + HOUR))),
        ("@2026-01-01:+1h", Range(Moment(NEW_YEAR), Moment(NEW_YEAR + HOUR))),
        ("@2026-01-01T00:00:+1h", Range(Moment(NEW_YEAR), Moment(NEW_YEAR + HOUR))),
        ("@2026-01-01:-1h", Range(Moment(NEW_YEAR), Moment(NOW - HOUR))),
    ],
)
def test_ranges(text: str, expected: Range) -> None:
    assert parse_range(text, NOW) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("first", "is not an offset"),
        ("", "is not an offset"),
        ("-", "is not an offset"),
        ("1.5", "is not an offset"),
        ("٣", "is not an offset"),
        ("99999999999999999999", "is not an offset"),
        ("20:10", "nothing lies in the range"),
        ("10:10", "nothing lies in the range"),
        ("@1h:2h", "nothing lies in the range"),
        ("10:-5", "is not the end of a range"),
        ("10:20:30", "is not a moment"),
        ("@2026-01-01:1h", r"two things. Say \+1h"),
        ("@tomorrow", "no moment"),
        ("@12:30", "no moment"),
        ("@", "no moment"),
        ("@2h:tomorrow", "no moment"),
    ],
)
def test_ranges_that_are_wrong(text: str, complaint: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_range(text, NOW)
    assert re.search(complaint, refused.value.line())


@pytest.mark.parametrize(
    ("text", "expected"),
    [("20", Offset(20)), ("1h", Moment(NOW - HOUR)), ("@1767225600000", Moment(NEW_YEAR)), ("end", LATEST)],
)
def test_ends(text: str, expected: object) -> None:
    assert parse_end(text, NOW) == expected
    with pytest.raises(UsageError, match="is not the end of a range"):
        parse_end("-3", NOW)
