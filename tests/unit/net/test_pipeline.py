"""The order and bounds of one connection's requests, without a socket."""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.net.pending import Part, Pending
from ottla.net.pipeline import Pipeline, api_key_of, frame_bytes, frame_end
from ottla.protocol.errors import ProtocolError

PRODUCE, FETCH, METADATA = 0, 1, 3


@dataclass
class Bounds:
    unanswered_max: int = 100
    unanswered_bytes_max: int = 1000


class Connection:
    """A stand-in for the connection whose methods a Pending calls. These methods do nothing."""

    def answered(self) -> None:
        pass

    def may_go_on(self) -> None:
        pass

    def close(self) -> None:
        pass


def pending(api_key: int) -> Pending:
    return Pending(Connection(), api_key)


def test_only_pipelined_requests_start_behind_one_another() -> None:
    pipeline = Pipeline(Bounds(), {PRODUCE})
    assert all(pipeline.may_start(key) for key in (PRODUCE, FETCH, METADATA)), "no earlier request waits"
    pipeline.waits(pending(PRODUCE), 10)
    assert pipeline.may_start(PRODUCE)
    assert not pipeline.may_start(FETCH)
    pipeline.waits(pending(METADATA), 10)
    assert not pipeline.may_start(PRODUCE), "an earlier request isn't a pipelined one"


def test_pipelined_requests_start_behind_one_that_lets_them() -> None:
    pipeline = Pipeline(Bounds(), {PRODUCE})
    waiting = pending(METADATA)
    pipeline.waits(waiting, 10)
    waiting.let_others_start()
    assert pipeline.may_start(PRODUCE)
    assert not pipeline.may_start(METADATA)


def test_as_many_requests_and_bytes_wait_as_the_bounds_say() -> None:
    bounds = Bounds(unanswered_max=2, unanswered_bytes_max=100)
    pipeline = Pipeline(bounds, {PRODUCE})
    first, second = pending(PRODUCE), pending(PRODUCE)
    pipeline.waits(first, 10)
    assert pipeline.may_start(PRODUCE)
    pipeline.waits(second, 90)
    assert not pipeline.may_start(PRODUCE)
    bounds.unanswered_max = 3
    assert not pipeline.may_start(PRODUCE), "the bytes have reached their bound"
    first.answer([b"a"])
    assert pipeline.move_answers(deque())
    assert pipeline.may_start(PRODUCE)


def test_who_stands_in_the_way_hears_of_it_and_an_empty_pipeline_has_nobody() -> None:
    pipeline = Pipeline(Bounds(), {PRODUCE})
    pipeline.hurry(FETCH)
    first, second = pending(METADATA), pending(PRODUCE)
    heard: list[int | None] = []
    first.hurry = lambda: heard.append(first.behind)
    pipeline.waits(first, 10)
    pipeline.waits(second, 10)
    pipeline.hurry(FETCH)
    assert heard == [FETCH]
    assert second.behind is None


def test_who_waits_is_told_that_nobody_wants_its_answer_any_more() -> None:
    pipeline = Pipeline(Bounds(), {PRODUCE})
    told: list[str] = []
    one = pending(PRODUCE)
    one.abandoned = lambda: told.append("abandoned")
    pipeline.waits(one, 10)
    pipeline.forget()
    assert told == ["abandoned"]
    assert not pipeline
    assert not one.wanted


@given(st.permutations(range(6)), st.integers(0, 63))
def test_answers_leave_in_the_order_of_the_requests(order: list[int], silent: int) -> None:
    """This holds in whatever order the answers come. A request without an answer delays no other one."""
    pipeline = Pipeline(Bounds(), {PRODUCE})
    waiting = [pending(PRODUCE) for _ in range(6)]
    for one in waiting:
        pipeline.waits(one, 10)
    queue: deque[Part] = deque()
    for number in order:
        waiting[number].answer([] if silent >> number & 1 else [b"%d" % number])
        done = len(pipeline)
        moved = pipeline.move_answers(queue)
        assert moved == (len(pipeline) < done)
    assert list(queue) == [b"%d" % number for number in range(6) if not silent >> number & 1]
    assert not pipeline
    assert not pipeline.waits_for_pipelined()


@given(st.integers(10, 50), st.integers(0, 20), st.integers(0, 80))
def test_a_frame_is_served_when_all_of_it_is_there(size: int, position: int, arrived: int) -> None:
    buffer = bytes(position) + struct.pack(">ih", size, FETCH) + bytes(80)
    end = position + arrived
    whole = position + 4 + size
    assert frame_end(buffer, position, end, 50) == (whole if arrived >= 4 + size else 0)
    assert frame_bytes(buffer, position, end) == (4 + size if arrived >= 4 else 4)
    assert api_key_of(buffer, position + 4) == FETCH


@pytest.mark.parametrize(
    ("start", "says"),
    [
        (struct.pack(">i", 9), "a frame of 9 bytes: allowed are 10 to 100"),
        (struct.pack(">i", 101), "a frame of 101 bytes"),
        (struct.pack(">i", -1), "a frame of -1 bytes"),
        (b"\x16\x03\x01\x02", "the peer speaks TLS"),
        (b"GET /", "the peer speaks HTTP"),
    ],
)
def test_a_size_that_makes_no_sense_is_said(start: bytes, says: str) -> None:
    with pytest.raises(ProtocolError, match=says):
        frame_end(start + bytes(20), 0, 24, 100)


def test_nothing_starts_while_the_connection_is_muted() -> None:
    pipeline = Pipeline(Bounds(), {PRODUCE})
    pipeline.mute(10.0)
    assert not any(pipeline.may_start(key) for key in (PRODUCE, FETCH, METADATA))
    assert pipeline.unmute(9.0) == 1.0
    assert not pipeline.may_start(METADATA)
    assert pipeline.unmute(10.0) == 0.0
    assert pipeline.may_start(METADATA)


def test_the_later_end_of_two_mutes_counts() -> None:
    pipeline = Pipeline(Bounds(), {PRODUCE})
    pipeline.mute(10.0)
    pipeline.mute(5.0)
    assert pipeline.unmute(6.0) == 4.0
    pipeline.mute(12.0)
    assert pipeline.unmute(10.0) == 2.0
    assert pipeline.unmute(12.0) == 0.0
    assert not pipeline.muted


def test_answers_are_sent_while_the_connection_is_muted() -> None:
    pipeline = Pipeline(Bounds(), {PRODUCE})
    waiting = pending(PRODUCE)
    pipeline.waits(waiting, 10)
    pipeline.mute(10.0)
    waiting.answer([b"late"])
    queue: deque[Part] = deque()
    assert pipeline.move_answers(queue)
    assert list(queue) == [b"late"]
