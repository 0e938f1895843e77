"""After a truncation that fails half-way, the log is unchanged or unusable. Its files never end before its log end
offset."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from ottla.broker.log.disk import File, RealDisk
from ottla.broker.log.log import Log
from ottla.protocol.markers import Marker
from tests.unit.broker.log.workbench import Workbench, append, batch_of, contents

TO = 30


class Lacking(RealDisk):
    """A disk that can open only `left` more files."""

    left = 1 << 30

    def _count(self) -> None:
        if not self.left:
            raise OSError(errno.EMFILE, "too many open files")
        self.left -= 1

    def open(self, path: str, *, create: bool = False) -> File:
        self._count()
        return super().open(path, create=create)

    def read(self, path: str) -> bytes:
        self._count()
        return super().read(path)


def filled(folder: Path, disk: RealDisk) -> Log:
    log = Workbench(folder, disk=disk).log()
    for index in range(100):
        append(log, batch_of([bytes(100)], producer=(index % 3, 0, index // 3)), epoch=index // 20)
    # a transaction whose end is committed, so that a truncation has to read the log
    log.producers.transaction_ended(2, 0, Marker(True, 0, 1000), log.log_end_offset - 1)
    log.producers.transactions.replicated(log.log_end_offset)
    for segment in log.segments:
        segment.let_go()
    return log


def state(log: Log) -> tuple[object, ...]:
    known = {producer_id: entry.batches for producer_id, entry in log.producers.items()}
    return log.log_end_offset, contents(log), known, log.epochs.entries, log.snapshots, log.active is log.segments[-1]


def test_without_descriptors_a_truncation_does_nothing_or_ends_the_logs_use(tmp_path: Path) -> None:
    ends = []
    for opened in range(40):
        disk = Lacking()
        folder = tmp_path / str(opened)
        log = filled(folder, disk)
        before = state(log)
        for segment in log.segments:
            segment.let_go()
        disk.left = opened
        try:
            log.truncate_to(TO)
        except OSError as error:
            disk.left = 1 << 30
            ends.append(error.errno)
            if error.errno == errno.EMFILE:
                assert state(log) == before
                log.truncate_to(TO)
        disk.left = 1 << 30
        if not ends or ends[-1] == errno.EMFILE:
            assert log.log_end_offset == TO
            assert {id: entry.last_offset for id, entry in log.producers.items()} == {0: 27, 1: 28, 2: 29}
            append(log, batch_of([b"on"], producer=(0, 0, 10)))
    assert errno.EMFILE in ends
    assert len(ends) < 40, "in the end there were enough descriptors"


@pytest.mark.parametrize("at", [TO, 200])
def test_where_no_new_segment_can_be_made_a_log_does_not_start_anew(tmp_path: Path, at: int) -> None:
    class Full(RealDisk):
        full = False

        def open(self, path: str, *, create: bool = False) -> File:
            if self.full and create and path.endswith(".log"):
                raise OSError(errno.ENOSPC, "no room")
            return super().open(path, create=create)

    disk = Full()
    log = filled(tmp_path, disk)
    before = state(log)
    disk.full = True
    with pytest.raises(OSError, match="no room") as caught:
        log.truncate_fully_and_start_at(at)
    assert caught.value.errno == errno.ENOSPC
    assert state(log) == before
    disk.full = False
    log.truncate_fully_and_start_at(at)
    assert (log.log_start_offset, log.log_end_offset, len(log.segments)) == (at, at, 1)
    assert append(log, batch_of([b"on"])) == at
