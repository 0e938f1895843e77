"""Batches are walked through up to the first that isn't whole."""

from __future__ import annotations

import struct

import pytest

from ottla.protocol.batches import Record, build_batch
from ottla.storage.log_file import whole_batches

BATCHES = [build_batch([Record(offset, 1000, b"k", bytes(offset))], base_offset=offset) for offset in range(3)]
CONTENT = b"".join(BATCHES)


def test_each_batch_is_found_with_its_position() -> None:
    found = list(whole_batches(CONTENT))
    assert [bytes(batch) for _, _, batch in found] == BATCHES
    assert [header.base_offset for _, header, _ in found] == [0, 1, 2]
    assert [position for position, _, _ in found] == [0, len(BATCHES[0]), len(BATCHES[0]) + len(BATCHES[1])]


@pytest.mark.parametrize("size", range(len(CONTENT)))
def test_a_torn_end_does_not_count(size: int) -> None:
    sizes = [sum(map(len, BATCHES[:count])) for count in range(len(BATCHES) + 1)]
    assert len(list(whole_batches(CONTENT[:size]))) == sum(end <= size for end in sizes) - 1


@pytest.mark.parametrize("length", [-1, 0, 48])
def test_a_length_below_a_header_ends_the_walk(length: int) -> None:
    bad = bytearray(BATCHES[1])
    struct.pack_into(">i", bad, 8, length)
    assert len(list(whole_batches(BATCHES[0] + bad + BATCHES[2]))) == 1
