"""After a roll that fails half-way, there is no file that a restart would take for the log's end."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ottla.broker.log.directories import LogDirectories
from ottla.broker.log.disk import File, RealDisk
from tests.unit.broker.log.workbench import ALONE, Workbench, append, batch_of, contents, fill


class NoMoreIndexes(RealDisk):
    """A disk that has room for a new log file, but not for its index."""

    refuses = False

    def open(self, path: str, *, create: bool = False) -> File:
        if self.refuses and create and path.endswith("index") and not os.path.exists(path):
            raise OSError(errno.ENOSPC, "no room")
        return super().open(path, create=create)


@pytest.mark.parametrize("clean", [True, False])
def test_what_follows_a_failed_roll_is_there_after_a_restart(tmp_path: Path, clean: bool) -> None:
    disk = NoMoreIndexes()
    bench = Workbench(tmp_path, disk=disk)
    log = bench.log()
    fill(log, 20)
    append(log, batch_of([bytes(bench.config.segment_bytes - log.active.size - 400)]))
    disk.refuses = True
    with pytest.raises(OSError, match="no room"):
        append(log, batch_of([bytes(1000)]))
    append(log, batch_of([b"this one fits"]))
    before = contents(log)
    if clean:
        log.close()
    disk.refuses = False
    again = bench.log(clean=clean)
    assert again.log_end_offset == log.log_end_offset
    assert contents(again) == before


@pytest.mark.parametrize("clean", [True, False])
def test_an_empty_segment_among_the_offsets_of_another_is_removed(tmp_path: Path, clean: bool) -> None:
    bench = Workbench(tmp_path)
    log = bench.log()
    fill(log, 60)
    before, end = contents(log), log.log_end_offset
    inside = [segment.base_offset + 2 for segment in log.segments]
    log.close()
    for offset in inside:
        for suffix in ("log", "index", "timeindex"):
            (tmp_path / f"{offset:020d}.{suffix}").touch()
    again = bench.log(clean=clean)
    assert again.log_end_offset == end
    assert contents(again) == before
    assert not any((tmp_path / f"{offset:020d}.log").exists() for offset in inside)


def test_what_the_process_lacks_does_not_fail_a_directory(tmp_path: Path) -> None:
    logs = LogDirectories([str(tmp_path)], lambda: 1000, ALONE)
    lack = OSError(errno.EMFILE, "too many open files")
    logs.open("c", 1, lambda topic: Workbench(tmp_path / "x").config)
    logs.directory_failed(str(tmp_path), lack)
    assert (logs.failed, logs.full) == ({}, {})


def test_what_cannot_be_looked_at_when_opening_counts_as_lost(tmp_path: Path) -> None:
    class Lacking(RealDisk):
        def list(self, path: str):
            raise OSError(errno.EMFILE, "too many open files")

    logs = LogDirectories([str(tmp_path)], lambda: 1000, ALONE, disk=Lacking())
    with pytest.raises(OSError, match="every log directory has failed"):
        logs.open("c", 1, lambda topic: Workbench(tmp_path / "x").config)
