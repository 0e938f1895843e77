"""PEM texts: blocks are read back, any text is read or refused, and no text takes long."""

from __future__ import annotations

import base64
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.security.pem import Block, MalformedPem, blocks
from tests.unit.examples import examples

LABELS = st.sampled_from(["CERTIFICATE", "PRIVATE KEY", "ENCRYPTED PRIVATE KEY", "X509 CERTIFICATE"])
PIECES = st.sampled_from(["-----BEGIN ", "-----END ", "A", "B", "-----", "-", " ", "\n", "QUJD", "=", ":", "é"])


@settings(max_examples=examples(200))
@given(
    st.lists(st.tuples(LABELS, st.binary(max_size=60))), st.sampled_from(["\n", " "]), st.sampled_from(["", "text\n"])
)
def test_blocks_are_read_back(written: list[tuple[str, bytes]], line_end: str, between: str) -> None:
    text = between.join(
        f"-----BEGIN {label}-----{line_end}{base64.b64encode(der).decode()}{line_end}-----END {label}-----{line_end}"
        for label, der in written
    )
    assert blocks(text) == [Block(label, der) for label, der in written]


@settings(max_examples=examples(200))
@given(st.lists(PIECES, max_size=20).map("".join) | st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(MalformedPem):
        assert all(block.label.strip() == block.label for block in blocks(text))


def test_an_end_with_another_label_ends_nothing() -> None:
    text = "-----BEGIN A-----\nQUJD\n-----END B-----\n-----BEGIN B-----\nREVG\n-----END B-----\n"
    assert blocks(text) == [Block("B", b"DEF")]


@pytest.mark.parametrize(
    "text",
    [
        "-" * 20_000,
        "-----BEGIN A----- x " * 1000,
        "-----BEGIN A-----\n" + "-" * 20_000,
        "-----BEGIN A" + " " * 20_000,
        "-----BEGIN " + "A " * 10_000,
        "-----BEGIN A----- " + "-----END B " * 2000,
    ],
    ids=["dashes", "beginnings", "dashes in a block", "blanks in a label", "words in a label", "other ends"],
)
def test_no_text_takes_long(text: str) -> None:
    began = time.thread_time()
    assert blocks(text) == []
    assert time.thread_time() - began < 0.1
