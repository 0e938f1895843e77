"""Maintenance windows."""

from datetime import UTC, datetime

import pytest

from ottla.operator.spec.windows import parse_window


@pytest.mark.parametrize(
    ("cron", "minutes", "moment", "is_open"),
    [
        ("0 2 * * 6", 240, "2026-05-02 02:00", True),  # a Saturday
        ("0 2 * * 6", 240, "2026-05-02 05:59", True),
        ("0 2 * * 6", 240, "2026-05-02 06:00", False),
        ("0 2 * * sat", 240, "2026-05-03 03:00", False),
        ("0 23 * * *", 120, "2026-05-03 00:30", True),  # across midnight
        ("0 23 * * *", 120, "2026-05-03 01:30", False),
        ("*/15 * * * *", 5, "2026-05-03 01:33", True),
        ("*/15 * * * *", 5, "2026-05-03 01:36", False),
        ("0 0 1 * 0", 60, "2026-05-03 00:10", True),  # the first of the month or a Sunday
        ("0 0 1 * 7", 60, "2026-05-02 00:10", False),
        ("0 0 1 jan *", 10080, "2027-01-07 12:00", True),
        ("0 0 30 2 *", 10080, "2026-03-01 00:00", False),  # February has no 30th
        ("0 8-10/2 * * 1-5", 30, "2026-05-04 10:10", True),
    ],
)
def test_open(cron: str, minutes: int, moment: str, is_open: bool) -> None:
    now = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    assert parse_window(cron, minutes).open_at(now) is is_open


@pytest.mark.parametrize("cron", ["* * * *", "60 * * * *", "* * 0 * *", "x * * * *", "*/0 * * * *", "5-1 * * * *"])
def test_refused(cron: str) -> None:
    with pytest.raises(ValueError, match=r"is no|needs five fields"):
        parse_window(cron, 60)
