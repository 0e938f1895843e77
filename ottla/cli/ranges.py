"""Parses the start and the end of a read: `100`, `-5`, `10:20`, `@2h:`, `@2026-01-01:@2026-02-01`. Pure.

Owns the syntax of `consume --offset` and `--until`. The forms of offsets and ranges are rpk's; those of moments are in
`times`. An end is exclusive. If a form has one meaning in rpk and another one in the other commands of `ottla`, it is
refused, and the error names both meanings (`@DATE:1h`: an hour from the date, or an hour ago?).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from ottla.cli.errors import UsageError
from ottla.cli.times import FORMS, duration_ms, parse_moment

START_FORMS = "N, -N (before the end), +N (after the first), @MOMENT, earliest, latest"
END_FORMS = "N, @MOMENT"
_MOMENT_DIGITS_MIN = 9
_OFFSET_MAX = 2**63 - 1


@dataclass(frozen=True)
class Offset:
    """The position at this offset of a partition."""

    number: int


@dataclass(frozen=True)
class FromStart:
    """The position this number of offsets after the partition's first offset; 0 is the first offset."""

    count: int


@dataclass(frozen=True)
class FromEnd:
    """The position this number of offsets before the partition's end; 0 is the end."""

    count: int


@dataclass(frozen=True)
class Moment:
    """The position of the first record at or after a time, in ms since 1970."""

    ms: int


Start = Offset | FromStart | FromEnd | Moment
End = Offset | FromEnd | Moment


class Range(NamedTuple):
    """The range to read of each partition; without an end, reading doesn't end."""

    start: Start
    end: End | None


EARLIEST, LATEST = FromStart(0), FromEnd(0)
_WORDS: dict[str, Start] = {"earliest": EARLIEST, "latest": LATEST}


def parse_range(text: str, now_ms: int) -> Range:
    """The value of `--offset`: START, START:, :END or START:END."""
    if text.startswith("@"):
        found = _times(text, now_ms)
    else:
        first, colon, last = text.partition(":")
        start = _start(first) if first or not colon else EARLIEST
        found = Range(start, parse_end(last, now_ms) if last else None)
    match found:
        case Range(Offset(begin), Offset(end)) | Range(Moment(begin), Moment(end)) if end <= begin:
            raise UsageError(f"nothing lies in the range '{text}'", "The end is exclusive: 10:20 reads 10 to 19.")
    return found


def parse_end(text: str, now_ms: int) -> End:
    """The end of a range: the value of `--until`, or END in START:END."""
    if text == "end":
        return LATEST
    if text.isascii() and text.isdigit():
        return Offset(_number(text))
    if re.fullmatch(r"[+-]\d+", text):
        raise UsageError(f"'{text}' is not the end of a range", f"Write one of: {END_FORMS}.")
    return _moment(text.removeprefix("@"), now_ms)


def _start(text: str) -> Start:
    if text in _WORDS:
        return _WORDS[text]
    if re.fullmatch(r"[+-]?[0-9]+", text) is None:
        raise UsageError(
            f"'{text}' is not an offset", f"Write one of: {START_FORMS}. After a colon, write an end: {END_FORMS}."
        )
    number = _number(text.lstrip("+-"))
    return FromEnd(number) if text[0] == "-" else FromStart(number) if text[0] == "+" else Offset(number)


def _number(digits: str) -> int:
    if len(digits) > 19 or int(digits) > _OFFSET_MAX:
        raise UsageError(f"'{digits}' is not an offset", f"Offsets are at most {_OFFSET_MAX}.")
    return int(digits)


def _times(text: str, now_ms: int) -> Range:
    """The range of `@MOMENT`, `@MOMENT:`, `@:END` or `@MOMENT:END`. Moments may contain colons, too."""
    rest = text[1:]
    first, between, last = rest.partition(":@")
    if between:
        return Range(_moment(first, now_ms) if first else EARLIEST, _moment(last, now_ms))
    if rest.startswith(":"):
        return Range(EARLIEST, _end_of_time(rest[1:], None, now_ms))
    if _is_moment(rest.removesuffix(":")):
        return Range(_moment(rest.removesuffix(":"), now_ms), None)
    for colon in (index for index, character in enumerate(rest) if character == ":"):
        first, last = rest[:colon], rest[colon + 1 :]
        if _is_moment(first) and (last == "end" or _is_moment(last.removeprefix("+"))):
            return Range(_moment(first, now_ms), _end_of_time(last, first, now_ms))
    raise UsageError(f"'{text}' has no moment that can be read", f"A moment is {FORMS}; a range is @MOMENT:@MOMENT.")


def _end_of_time(text: str, first: str | None, now_ms: int) -> End:
    """The end of a time range that begins at `first`. As in rpk, a number is a timestamp here, not an offset."""
    if text == "end":
        return LATEST
    length_ms = duration_ms(text)
    if first is None or duration_ms(first) is not None or length_ms is None or text[0] == "-":
        return _moment(text, now_ms)
    if text[0] != "+":
        raise UsageError(
            f"'{text}' after a date can mean two things", f"Say +{text} (after the date) or -{text} (before now)."
        )
    return Moment(parse_moment(first, now_ms) + length_ms)


def _moment(text: str, now_ms: int) -> Moment:
    return Moment(parse_moment(text, now_ms))


def _is_moment(text: str) -> bool:
    """Whether the text is certainly a moment. A text of a few digits isn't: it may be the hours of a time of day."""
    if text.isdigit() and len(text) < _MOMENT_DIGITS_MIN:
        return False
    try:
        parse_moment(text, 0)
    except UsageError:
        return False
    return True
