"""What producers have left in the log of a stopped broker is found in its producer snapshot and its batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ottla.broker.log.disk import RealDisk
from ottla.broker.log.log import Log
from ottla.broker.log.producer_traces import producer_traces
from ottla.protocol.batches import Record, assign, build_batch, read_header
from ottla.protocol.markers import Marker, marker_batch
from tests.unit.broker.log.workbench import Workbench, append

ABORT, COMMIT = b"\0\0\0\0", b"\0\0\0\1"
Step = tuple[str, int]


def written(folder: Path, steps: Sequence[Step], *, clean: bool) -> Log:
    """A log of one record for each step (kind, producer id), with a snapshot at its end. Kinds: "data", "plain",
    "commit", "abort"."""
    bench = Workbench(folder)
    log = bench.log()
    sequences: dict[int, int] = {}
    for kind, producer in steps:
        offset = log.log_end_offset
        if kind in ("commit", "abort"):
            key = COMMIT if kind == "commit" else ABORT
            frame = build_batch(
                [Record(0, 0, key, b"\0\0\0\0\0\0")], producer_id=producer, producer_epoch=0, base_sequence=-1,
                transactional=True, control=True,
            )  # fmt: skip
        else:
            sequence = sequences.get(producer, 0)
            sequences[producer] = sequence + 1
            frame = build_batch(
                [Record(0, 0, None, b"x")], producer_id=producer, producer_epoch=0, base_sequence=sequence,
                transactional=kind == "data",
            )  # fmt: skip
        batch = bytearray(frame)
        assign(batch, 0, offset, 0)
        log.append(batch, read_header(batch), offset, 0)
    if clean:
        log.close()
    return log


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("steps", "found", "greatest"),
    [
        ([], {}, -1),
        ([("plain", 1), ("plain", 2)], {}, 2),
        ([("data", 1), ("data", 1), ("commit", 1)], {}, 1),
        ([("plain", 9), ("data", 1), ("data", 2), ("commit", 1), ("data", 1)], {2: 2, 1: 4}, 9),
        ([("data", 1), ("commit", 2)], {1: 0}, 2),
        ([("abort", 1), ("commit", 1)], {}, 1),
    ],
)
def test_open_transactions_are_found(
    tmp_path: Path, steps: list[Step], found: dict[int, int], greatest: int, clean: bool
) -> None:
    before = written(tmp_path / "t-0", steps, clean=clean)
    files = {path.name: path.read_bytes() for path in Path(before.directory).iterdir()}
    traces = producer_traces(RealDisk(), before.directory)
    assert (traces.open_transactions, traces.producer_id, traces.end_offset) == (found, greatest, len(steps))
    assert {path.name: path.read_bytes() for path in Path(before.directory).iterdir()} == files, "no file is changed"


def test_a_snapshot_that_is_damaged_is_no_reason_to_believe_in_nothing(tmp_path: Path) -> None:
    log = written(tmp_path / "t-0", [("data", 1), ("plain", 2)], clean=True)
    (snapshot,) = Path(log.directory).glob("*.snapshot")
    assert producer_traces(RealDisk(), log.directory).open_transactions == {1: 0}
    snapshot.write_bytes(snapshot.read_bytes()[:-3] + b"???")
    assert producer_traces(RealDisk(), log.directory).open_transactions == {1: 0}


def test_a_batch_that_was_torn_ends_the_look(tmp_path: Path) -> None:
    log = written(tmp_path / "t-0", [("data", 1), ("data", 1)], clean=False)
    path = Path(log.directory, f"{0:020d}.log")
    path.write_bytes(path.read_bytes()[:-5])
    assert producer_traces(RealDisk(), log.directory).open_transactions == {1: 0}


@pytest.mark.parametrize("clean", [True, False])
def test_the_greatest_epoch_of_a_coordinator_is_found(tmp_path: Path, clean: bool) -> None:
    log = Workbench(tmp_path / "t-0").log()
    for producer, epoch in ((1, 7), (2, 4)):
        append(log, marker_batch(producer, 0, Marker(True, epoch, 1000)))
    if clean:
        log.close()
    assert producer_traces(RealDisk(), log.directory).coordinator_epoch == 7
