"""The list of the bytes that recovery cut off has the logs that lost bytes, and no other log."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from uuid import UUID

from ottla.broker.log.config import LogConfig
from ottla.broker.log.cuts import KEPT_MAX, Cut, Cuts
from tests.unit.broker.log.workbench import fill, open_directories

CONFIG = LogConfig(segment_bytes=1000)
opened = partial(open_directories, config=CONFIG)


def test_a_log_that_is_cut_is_kept_with_what_it_lacks(tmp_path: Path) -> None:
    logs = opened(tmp_path)
    whole, torn = (logs.open_or_create("t", index, UUID(int=7), CONFIG) for index in (0, 1))
    for log in (whole, torn):
        fill(log, 100)
    end = torn.log_end_offset
    logs.close()
    (tmp_path / ".kafka_cleanshutdown").unlink()
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    last = sorted((tmp_path / "t-1").glob("*.log"))[-1]
    size = last.stat().st_size
    with last.open("r+b") as file:
        file.truncate(size - 1)

    again = opened(tmp_path)
    (cut,) = again.cuts.kept
    now = again.logs[UUID(int=7), 1].log_end_offset
    assert (cut.topic, cut.partition, cut.offset, cut.missing) == ("t", 1, now, end - now)
    assert 0 < cut.bytes_dropped < size
    assert (again.cuts.logs, again.cuts.bytes_dropped) == (1, cut.bytes_dropped)
    again.close()
    assert opened(tmp_path).cuts.logs == 0, "only the cuts of this start count"


def test_the_first_ones_are_kept_and_all_are_counted() -> None:
    cuts = Cuts()
    for index in range(KEPT_MAX + 5):
        cuts.add(Cut("t", index, 0, 10, 0, 0, "torn"))
    assert (cuts.logs, cuts.bytes_dropped, len(cuts.kept)) == (KEPT_MAX + 5, 10 * (KEPT_MAX + 5), KEPT_MAX)
