"""Maintenance windows: a begin in cron's notation, and a duration. Pure.

Fields: minute, hour, day of month, month, day of week (0 and 7 are Sunday), each `*`, a number, a range, a list or a
step. As in cron, if both day fields are restricted, a day matches when either of them does. All times are UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 31), ("month", 1, 12), ("day of week", 0, 7))
_NAMES = {
    name: number
    for names, first in (("jan feb mar apr may jun jul aug sep oct nov dec", 1), ("sun mon tue wed thu fri sat", 0))
    for number, name in enumerate(names.split(), first)
}


@dataclass(frozen=True)
class Window:
    """A recurring window: the minutes at which it may begin, and how long it lasts."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    either_day: bool  # both fields of days are restricted
    duration: timedelta

    def open_at(self, now: datetime) -> bool:
        """Whether the window is open at `now` (UTC): its last begin is less than its duration ago."""
        begin = now.replace(second=0, microsecond=0)
        earliest = now - self.duration
        while begin > earliest:
            if not self._day_matches(begin):
                begin = begin.replace(hour=0, minute=0) - timedelta(minutes=1)
            elif begin.hour not in self.hours:
                begin = begin.replace(minute=0) - timedelta(minutes=1)
            elif begin.minute in self.minutes:
                return True
            else:
                begin -= timedelta(minutes=1)
        return False

    def _day_matches(self, moment: datetime) -> bool:
        day, weekday = moment.day in self.days, moment.isoweekday() % 7 in self.weekdays
        return moment.month in self.months and (day or weekday if self.either_day else day and weekday)


def parse_window(cron: str, duration_minutes: int) -> Window:
    """The window that begins as `cron` says. Raises ValueError, whose text says what is wrong."""
    texts = cron.split()
    if len(texts) != len(_FIELDS):
        raise ValueError(f"{cron!r} needs five fields: minute, hour, day of month, month, day of week")
    fields = [_field(text, *field) for text, field in zip(texts, _FIELDS, strict=True)]
    restricted = not texts[2].startswith("*") and not texts[4].startswith("*")
    weekdays = frozenset(day % 7 for day in fields[4])
    return Window(fields[0], fields[1], fields[2], fields[3], weekdays, restricted, timedelta(minutes=duration_minutes))


def _field(text: str, name: str, least: int, most: int) -> frozenset[int]:
    found: set[int] = set()
    for part in text.lower().split(","):
        span, _, step = part.partition("/")
        first, dash, last = span.partition("-")
        try:
            begin = least if span == "*" else _number(first)
            end = most if span == "*" or (step and not dash) else _number(last) if dash else begin
            stride = int(step) if step else 1
        except ValueError:
            raise ValueError(f"{text!r} is no {name}") from None
        if not least <= begin <= end <= most or stride < 1:
            raise ValueError(f"{text!r} is no {name}: it has to be between {least} and {most}")
        found.update(range(begin, end + 1, stride))
    return frozenset(found)


def _number(text: str) -> int:
    return _NAMES[text] if text in _NAMES else int(text)
