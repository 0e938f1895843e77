"""Parses moments, and formats them for people. Pure: the current time is an argument.

A moment is milliseconds since 1970 in UTC, as in Kafka's records.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime

from ottla.cli.errors import UsageError

_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"[+-]?(\d+)([smhd])(?: ago)?")
FORMS = "2026-01-31T12:00:00, 2026-01-31, 1767225600000 (milliseconds), or 90s, 15m, 2h, 7d (before now)"


def parse_moment(text: str, now_ms: int) -> int:
    """A moment in one of the forms of `FORMS`; a date without a zone is UTC."""
    text = text.strip()
    if text.isdecimal():
        return int(text)
    ago = duration_ms(text)
    if ago is not None and text[0] != "+":
        return now_ms - ago
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"'{text}' is not a moment", f"Write {FORMS}.") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def duration_ms(text: str) -> int | None:
    """`15m` in ms, without its sign; None if the text isn't a duration."""
    found = _DURATION.fullmatch(text)
    return int(found[1]) * _UNITS_MS[found[2]] if found else None


def moment_text(timestamp_ms: int) -> str:
    """`2026-01-31T12:00:00.123Z`; `-` for a record without a timestamp; the number itself if it is beyond the
    calendar."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return "-" if timestamp_ms < 0 else moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"
