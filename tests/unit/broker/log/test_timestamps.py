"""Lookups by time while the log changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.log.config import LogConfig
from ottla.broker.log.index import TimeIndex
from ottla.broker.log.log import Log
from ottla.broker.log.segment import DamagedSegment
from tests.unit.broker.log.workbench import Workbench, append, batch_of

BATCHES = 600  # each has an entry in the indexes, so a search reads the first and the last one
KEPT = 50


def filled(folder: Path) -> Log:
    log = Workbench(folder / "t-0", config=LogConfig(index_interval_bytes=1)).log()
    for number in range(BATCHES):
        append(log, batch_of([b"%05d" % number], timestamp=1000 + number))
    log.active.write_out()
    return log


@pytest.mark.parametrize(
    ("look_up", "expected"),
    [
        (lambda log: log.offset_for_timestamp(1020), 20),
        (lambda log: log.offset_for_timestamp(1000 + BATCHES - 1), None),
        (lambda log: log.offset_of_max_timestamp(), KEPT - 1),
    ],
    ids=["of a time that is kept", "of one that is cut", "of the greatest"],
)
def test_a_truncation_during_a_lookup_by_time_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look_up: Callable[[Log], Any], expected: int | None
) -> None:
    """Before the fix, the thread read beyond the index's new end, and the client's connection was closed."""
    log = filled(tmp_path)
    search = TimeIndex._count_stored
    cut: list[int] = []

    def overtaken(self: TimeIndex, *arguments: Any) -> int:
        if not cut:
            cut.append(KEPT)
            assert log.truncate_to(KEPT)
        return search(self, *arguments)

    monkeypatch.setattr(TimeIndex, "_count_stored", overtaken)
    found = look_up(log)
    assert cut
    assert (None if found is None else found.offset) == expected


def test_what_makes_no_sense_without_a_truncation_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(tmp_path)

    def damaged(self: TimeIndex, *arguments: Any) -> int:
        raise DamagedSegment("no batch")

    monkeypatch.setattr(TimeIndex, "_count_stored", damaged)
    with pytest.raises(DamagedSegment):
        log.offset_for_timestamp(1020)
