"""The request by which a broker asks another one for the revision that it has applied, and the answer, as bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis.strategies import integers

from ottla.protocol.applied_revision import (
    AWAIT_REVISION,
    VERSION,
    Question,
    read_answer,
    read_question,
    write_answer,
    write_question,
)
from ottla.protocol.errors import ProtocolError
from ottla.protocol.frames import read_request_header, request_frame, response_body, response_frame

INT64, INT32 = integers(-(2**63), 2**63 - 1), integers(-(2**31), 2**31 - 1)


@given(INT64, INT32)
def test_what_is_asked_arrives(revision: int, wait_ms: int) -> None:
    frame = request_frame(AWAIT_REVISION, VERSION, 5, "me", write_question(Question(revision, wait_ms)))
    key, version, _, _, end = read_request_header(frame, 4)
    assert (key, version) == (AWAIT_REVISION, VERSION)
    assert read_question(frame, end, len(frame)) == (revision, wait_ms)


@given(INT64)
def test_what_is_answered_arrives(applied: int) -> None:
    frame = response_frame(AWAIT_REVISION, VERSION, 5, write_answer(applied))[4:]
    correlation_id, start = response_body(AWAIT_REVISION, VERSION, frame)
    assert correlation_id == 5
    assert read_answer(frame, start, len(frame)) == applied


def test_the_layout_is_what_other_versions_of_a_rolling_upgrade_read() -> None:
    assert write_question(Question(258, 3)) == bytes([0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 3])
    assert write_answer(258) == bytes([0, 0, 0, 0, 0, 0, 1, 2])


def test_what_ends_too_early_is_malformed() -> None:
    for read, whole in ((read_question, write_question(Question(1, 2))), (read_answer, write_answer(1))):
        for end in range(len(whole)):
            with pytest.raises(ProtocolError, match="the frame ends inside"):
                read(whole, 0, end)  # type: ignore[operator]
