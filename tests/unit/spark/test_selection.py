"""A read selects batches by their offsets, and leaves out control batches and the batches of aborted transactions."""

from __future__ import annotations

import pytest

from ottla.protocol.batches import Record, build_batch
from ottla.protocol.errors import KafkaError
from ottla.spark.headers import H_BASE_OFFSET
from ottla.spark.selection import select

COMMIT, ABORT = b"\x00\x00\x00\x01", b"\x00\x00\x00\x00"


def data(offset: int, count: int = 1, producer: int = -1) -> bytes:
    records = [Record(offset + index, 0, None, b"v") for index in range(count)]
    return build_batch(records, base_offset=offset, producer_id=producer, producer_epoch=0, transactional=producer >= 0)


def marker(offset: int, producer: int, key: bytes) -> bytes:
    record = Record(offset, 0, key, b"\x00\x00\x00\x00\x00\x00")
    return build_batch(
        [record], base_offset=offset, producer_id=producer, producer_epoch=0, transactional=True, control=True
    )


def chosen(record_set: bytes, start: int = 0, end: int = 100, aborted: tuple = ()) -> list[int]:
    return list(select(record_set, start, end, aborted=aborted)[:, H_BASE_OFFSET])


def test_batches_outside_the_range_are_left_out() -> None:
    record_set = data(0, 3) + data(3, 3) + data(6, 3)
    assert chosen(record_set, 4, 6) == [3]
    assert chosen(record_set, 2, 7) == [0, 3, 6]
    assert chosen(record_set, 9, 100) == []


def test_control_batches_are_never_rows() -> None:
    assert chosen(data(0, 2, producer=5) + marker(2, 5, COMMIT) + data(3)) == [0, 3]


def test_aborted_transactions_are_left_out_until_their_marker() -> None:
    record_set = (
        data(0, producer=5)
        + data(1, producer=6)
        + data(2)
        + marker(3, 5, ABORT)
        + data(4, producer=5)
        + marker(5, 6, COMMIT)
        + marker(6, 5, COMMIT)
    )
    assert chosen(record_set, aborted=((5, 0),)) == [1, 2, 4]
    assert chosen(record_set) == [0, 1, 2, 4]


def test_old_formats_are_refused() -> None:
    old = bytearray(data(0))
    old[16] = 1
    with pytest.raises(KafkaError, match="magic 1"):
        chosen(bytes(old))
