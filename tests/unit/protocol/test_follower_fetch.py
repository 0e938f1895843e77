"""The follower's writer of Fetch requests and its reader of answers, against kio and against the leader's code."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol import fetch, fetch_request, follower_fetch
from ottla.protocol.errors import ProtocolError
from ottla.protocol.follower_fetch import FetchLimits
from ottla.protocol.frames import response_body
from ottla.protocol.messages import milliseconds, read_request, write_response

ids = st.binary(min_size=16, max_size=16)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
count = st.integers(0, 2**31 - 1)
asked = st.lists(st.tuples(count, int64, int32, int32, int32, int64), max_size=4)


@given(
    st.tuples(count, int64),
    st.builds(FetchLimits, count, count, count),
    st.tuples(int32, int32),
    st.lists(st.tuples(ids, asked), max_size=3),
    st.lists(st.tuples(ids, st.lists(count, max_size=3)), max_size=3),
)
def test_requests_read_as_they_were_written(replica, limits, session, topics, forgotten):
    body = follower_fetch.write_follower_fetch(replica, limits, session, topics, forgotten)
    ours = fetch_request.read_fetch_request(follower_fetch.VERSION, body, 0, len(body))
    assert (ours.replica_id, ours.replica_epoch) == replica
    assert (ours.max_wait_ms, ours.min_bytes, ours.max_bytes) == limits
    assert (ours.session_id, ours.session_epoch) == session
    assert ours.topics == topics
    assert ours.forgotten == forgotten
    theirs = read_request(1, follower_fetch.VERSION, body)
    assert (theirs.replica_state.replica_id, theirs.replica_state.replica_epoch) == replica
    assert milliseconds(theirs.max_wait) == limits.max_wait_ms
    assert [(t.topic_id or UUID(int=0)).bytes for t in theirs.topics] == [topic for topic, _ in topics]


def answers(index: int, error: int, mark: int, start: int, diverging: tuple[int, int] | None, data: bytes):
    tags = fetch.NO_TAGS if diverging is None else fetch.diverging_epoch_tags(*diverging)
    return fetch.PartitionAnswer(index, error, mark, mark, start, [data] if data else (), len(data), tags=tags)


partition_answers = st.builds(
    answers,
    count,
    st.integers(-1, 130),
    int64,
    int64,
    st.none() | st.tuples(count, st.integers(0, 2**63 - 1)),
    st.binary(max_size=300),
)
topic_answers = st.lists(st.tuples(ids, st.lists(partition_answers, max_size=4)), max_size=3)


@given(st.integers(-1, 130), count, topic_answers)
def test_answers_read_as_the_leader_wrote_them(error, session_id, topics):
    parts = fetch.write_fetch_answer(follower_fetch.VERSION, 7, error, session_id, topics)
    frame = bytearray(b"".join(parts)[4:])
    correlation_id, position = response_body(1, follower_fetch.VERSION, frame)
    head = follower_fetch.read_fetch_answer(frame, position, len(frame))
    assert (correlation_id, head.error, head.session_id) == (7, error, session_id)
    found = list(follower_fetch.read_fetched_partitions(frame, head.topics_at, len(frame)))
    written = [(topic, answer) for topic, partitions in topics for answer in partitions]
    assert len(found) == len(written)
    for read, (topic, answer) in zip(found, written, strict=True):
        assert (read.topic, read.index, read.error) == (topic, answer.index, answer.error)
        assert (read.high_watermark, read.log_start_offset) == (answer.high_watermark, answer.log_start_offset)
        assert frame[slice(*read.records)] == b"".join(answer.records)
        tags = fetch.NO_TAGS if read.diverging is None else fetch.diverging_epoch_tags(*read.diverging)
        assert tags == answer.tags


def kafkas_answer() -> bytearray:
    """An answer with parts that Ottla's leaders don't write: aborted transactions, other tags, no record set."""
    partition = {
        "partition_index": 3,
        "error_code": 0,
        "high_watermark": 9,
        "last_stable_offset": 8,
        "log_start_offset": 2,
        "diverging_epoch": {"epoch": 4, "end_offset": 5},
        "current_leader": {"leader_id": 1, "leader_epoch": 6},
        "snapshot_id": {"end_offset": 1, "epoch": 1},
        "aborted_transactions": [{"producer_id": 1, "first_offset": 2}, {"producer_id": 3, "first_offset": 4}],
        "preferred_read_replica": -1,
        "records": b"abc",
    }
    topics = [
        {"topic_id": UUID(int=1), "partitions": [partition, partition | {"records": None}]},
        {"topic_id": UUID(int=2), "partitions": [partition]},
    ]
    message = {"throttle_time": 0, "error_code": 0, "session_id": 5, "responses": topics}
    return bytearray(write_response(1, follower_fetch.VERSION, message))


def test_fields_that_our_leaders_dont_write_are_read_over() -> None:
    frame = kafkas_answer()
    head = follower_fetch.read_fetch_answer(frame, 0, len(frame))
    found = list(follower_fetch.read_fetched_partitions(frame, head.topics_at, len(frame)))
    assert [bytes(frame[slice(*each.records)]) for each in found] == [b"abc", b"", b"abc"]
    assert {(each.index, each.high_watermark, each.log_start_offset, each.diverging) for each in found} == {
        (3, 9, 2, (4, 5))
    }


@given(st.integers(0, 400), st.integers(0, 255), st.integers(0, 400))
def test_damaged_answers_are_read_or_refused(place, value, length):
    frame = kafkas_answer()
    frame[place % len(frame)] = value
    end = min(length, len(frame))
    try:
        head = follower_fetch.read_fetch_answer(frame, 0, end)
        for found in follower_fetch.read_fetched_partitions(frame, head.topics_at, end):
            assert 0 <= found.records[0] <= found.records[1] <= end
    except ProtocolError:
        return


def test_a_head_that_is_cut_off_is_refused() -> None:
    with pytest.raises(ProtocolError):
        follower_fetch.read_fetch_answer(bytearray(5), 0, 5)
