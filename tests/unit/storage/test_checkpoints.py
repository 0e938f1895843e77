"""Checkpoints have Kafka's format; a torn checkpoint is recognised."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.storage.checkpoints import EpochEntry, parse_epochs, parse_offsets, render_epochs, render_offsets


@given(st.dictionaries(st.tuples(st.from_regex(r"[a-z._-]{1,9}", fullmatch=True), st.integers(0, 99)), st.integers(0)))
def test_offset_checkpoints(offsets: dict[tuple[str, int], int]) -> None:
    text = render_offsets((topic, index, offset) for (topic, index), offset in offsets.items())
    assert parse_offsets(text) == offsets


def test_leader_epoch_checkpoints() -> None:
    assert render_epochs([EpochEntry(0, 0), EpochEntry(3, 17)]) == b"0\n2\n0 0\n3 17\n"
    assert parse_epochs(b"0\n1\n0 0\n") == [(0, 0)]
    whole = render_epochs([EpochEntry(3, 0), EpochEntry(5, 123)])
    for size in range(len(whole)):  # as a loss of power leaves it
        with pytest.raises(ValueError, match=r".*"):
            parse_epochs(whole[:size])
    for damaged in (b"", b"1\n0\n", b"0\n2\n0 0\n", b"0\nx\n"):
        with pytest.raises(ValueError, match=r".*"):
            parse_epochs(damaged)
