"""The follower's and the leader's side of a fetch session together: both know the same partitions and positions."""

from __future__ import annotations

from collections import OrderedDict
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.fetch_session_cache import FetchSessionCache
from ottla.broker.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, FetchPartition, FetchSession
from ottla.broker.replica.fetch_session import FollowerSession, Position, Request
from ottla.protocol.errors import ErrorCode, KafkaError

TOPIC = b"0123456789abcdef"


def position(offset: int) -> Position:
    return Position(offset, 1, 1, 0)


class Leader:
    """Serves a session's requests as `api.fetch` does."""

    def __init__(self, slots: int = 10) -> None:
        self.cache = FetchSessionCache(slots, 120.0, Random(1))
        self.session: FetchSession | None = None

    def serve(self, request: Request) -> tuple[int, int, dict[tuple[bytes, int], int]]:
        """(error, session id, the offset that the leader would read for each partition)."""
        session_id, epoch = request.session
        asked = [FetchPartition(*key, where.offset, 1) for key, where in request.asked.items()]
        if epoch not in (INITIAL_EPOCH, FINAL_EPOCH):
            try:
                self.session = self.cache.resume(session_id, epoch, True, 0.0)
            except KafkaError as error:
                return error.code, 0, {}
            self.session.update(asked, list(request.forgotten))
        else:
            self.cache.remove(session_id)
            by_key = OrderedDict(((each.topic, each.index), each) for each in asked)
            self.session = self.cache.create(by_key, True, True, 0.0)
            if self.session is None:
                return 0, 0, {key: each.fetch_offset for key, each in by_key.items()}
        return 0, self.session.id, {key: each.fetch_offset for key, each in self.session.partitions.items()}


def exchange(follower: FollowerSession, leader: Leader) -> Request:
    request = follower.request()
    error, session_id, served = leader.serve(request)
    if follower.answered(error, session_id):
        assert served == {key: where.offset for key, where in follower.wanted.items()}
        assert follower.in_force == follower.wanted
    return request


steps = st.one_of(
    st.tuples(st.just("want"), st.integers(0, 4), st.integers(0, 3)),
    st.tuples(st.just("want"), st.integers(0, 4), st.integers(0, 3)),
    st.tuples(st.just("drop"), st.integers(0, 4), st.just(0)),
    st.tuples(st.just("unheard"), st.integers(0, 4), st.just(0)),
    st.tuples(st.just("exchange"), st.just(0), st.just(0)),
    st.tuples(st.just("lose"), st.just(0), st.just(0)),
    st.tuples(st.just("restart"), st.just(0), st.just(0)),
)


@given(st.lists(steps, max_size=60), st.sampled_from([10, 0]))
def test_both_sides_have_the_same_idea_whatever_happens(history, slots):
    follower, leader = FollowerSession(), Leader(slots)
    for name, index, offset in history:
        match name:
            case "want":
                follower.want((TOPIC, index), position(offset))
            case "drop":
                follower.drop((TOPIC, index))
            case "unheard":
                follower.unheard((TOPIC, index))
            case "exchange":
                exchange(follower, leader)
            case "lose":  # the request arrives, but its answer is lost
                leader.serve(follower.request())
                follower.begin_anew()
            case "restart":
                leader = Leader(slots)
    for _ in range(2):
        exchange(follower, leader)
    request = exchange(follower, leader)
    assert (len(request.asked), list(request.forgotten)) == (0 if slots else len(follower.wanted), [])


def test_only_changes_are_sent() -> None:
    follower, leader = FollowerSession(), Leader()
    for index in range(1000):
        follower.want((TOPIC, index), position(0))
    assert len(exchange(follower, leader).asked) == 1000
    assert exchange(follower, leader).asked == {}
    follower.want((TOPIC, 7), position(1))
    follower.want((TOPIC, 8), position(0))  # unchanged
    follower.drop((TOPIC, 9))
    request = exchange(follower, leader)
    assert (request.asked, list(request.forgotten)) == ({(TOPIC, 7): position(1)}, [(TOPIC, 9)])


def test_what_went_by_is_asked_and_told_again() -> None:
    follower, leader = FollowerSession(), Leader()
    for index in range(3):
        follower.want((TOPIC, index), position(0))
    exchange(follower, leader)
    assert leader.session is not None
    for partition in leader.session.partitions.values():
        assert partition.news(0, 0, 5, 0)
    follower.unheard((TOPIC, 1))
    assert exchange(follower, leader).asked == {(TOPIC, 1): position(0)}
    told = [partition.index for partition in leader.session.partitions.values() if partition.news(0, 0, 5, 0)]
    assert told == [1]
    follower.unheard((TOPIC, 2))
    follower.drop((TOPIC, 2))
    follower.want((TOPIC, 2), position(0))  # the position that the leader has, although its answer was lost
    assert exchange(follower, leader).asked == {(TOPIC, 2): position(0)}
    assert exchange(follower, leader).asked == {}


def test_a_session_that_the_leader_forgot_begins_anew() -> None:
    follower = FollowerSession()
    follower.want((TOPIC, 0), position(0))
    exchange(follower, Leader())
    other = Leader()
    error, *_ = other.serve(follower.request())
    assert error == ErrorCode.fetch_session_id_not_found
    assert not follower.answered(error, 0)
    assert exchange(follower, other).session == (0, 0)


def test_epochs_wrap() -> None:
    follower = FollowerSession()
    follower.id, follower.epoch = 3, 2**31 - 1
    follower.answered(0, 3)
    assert follower.epoch == 1


def test_without_a_session_nobody_is_named_first_for_ever() -> None:
    session = FollowerSession()
    for index in range(3):
        session.want((TOPIC, index), position(0))
    served = []
    for offset in range(1, 7):
        first = next(iter(session.request().asked))
        served.append(first[1])
        assert session.answered(0, 0), "the answer of a leader without room for a session"
        session.want(first, position(offset))  # this partition had more records than fit into an answer
    assert served == [0, 1, 2, 0, 1, 2]
