"""Whether the snapshots of etcd are late."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ottla.operator.plan.snapshots import late

HOURLY = "17 * * * *"
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("last", "minutes", "is_late"),
    [
        ("2026-05-01T11:18:00Z", 0, False),
        ("2026-05-01T11:18:00Z", 17 + 29, False),  # due at 12:17, and may still be under way
        ("2026-05-01T11:18:00Z", 17 + 31, True),
        ("2026-05-01T12:18:00Z", 17 + 31, False),
        ("2026-05-01T11:18:00Z", 60 + 20, True),  # still late, although the next snapshot is due by now
        (None, 0, True),
        (None, -115, False),
    ],
)
def test_half_an_hour_after_one_was_due(last: str | None, minutes: int, is_late: bool) -> None:
    job = {
        "metadata": {"name": "k-etcd-snapshots", "creationTimestamp": "2026-05-01T10:00:00Z"},
        "status": {"lastSuccessfulTime": last} if last else {},
    }
    said = late(job, HOURLY, NOON + timedelta(minutes=minutes))
    assert bool(said) is is_late
    since = last or "2026-05-01T10:00:00Z"
    assert said in ("", f"no snapshot of etcd since {since}: see the Jobs of the CronJob k-etcd-snapshots")


def test_nothing_is_late_where_there_is_no_job_yet() -> None:
    assert late(None, HOURLY, NOON) == ""
