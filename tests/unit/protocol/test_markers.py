"""Transaction markers, as Apache Kafka writes them, and control batches without one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.batches import NO_SEQUENCE, Record, build_batch, read_header
from ottla.protocol.markers import Marker, marker_batch, read_marker


@given(st.builds(Marker, st.booleans(), st.integers(0, 2**31 - 1), st.integers(0, 2**50)))
def test_a_marker_is_read_as_it_was_written(marker: Marker) -> None:
    batch = marker_batch(7, 3, marker)
    header = read_header(batch)
    assert read_marker(batch) == marker
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 3, NO_SEQUENCE)
    assert header.is_control
    assert header.is_transactional
    assert header.size == len(batch) == 78


def control(*found: Record) -> bytes:
    return build_batch(found, producer_id=7, producer_epoch=0, transactional=True, control=True, last_offset=0)


@pytest.mark.parametrize(
    "batch",
    [
        control(),
        control(Record(0, 5, b"\0\0\0\2", b"leader change")),
        control(Record(0, 5, b"\0\0\0", b"")),
        control(Record(0, 5, None, b"")),
        control(Record(0, 5, b"\0\0\0\1", b""))[:-3],
    ],
)
def test_what_is_no_marker_is_skipped(batch: bytes) -> None:
    assert read_marker(batch) is None


def test_a_marker_without_a_coordinators_epoch_still_ends_a_transaction() -> None:
    assert read_marker(control(Record(0, 5, b"\0\0\0\1", b"\0"))) == Marker(True, -1, 5)
