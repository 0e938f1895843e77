"""The leader's view of its replicas: tables of the rules, and random histories, compared with a model that keeps every
replica's log.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.broker.replica.leader import LeaderState
from tests.unit.examples import examples


def leader(replicas: tuple[int, ...] = (0, 1, 2), isr: tuple[int, ...] = (0, 1, 2), start: int = 0) -> LeaderState:
    return LeaderState(0, replicas, isr, start, 0.0)


def test_nothing_is_committed_before_every_member_was_heard_of() -> None:
    state = leader()
    assert state.advance(0, 10) == 0
    state.fetched(1, 5, 10, 0, 10, 1.0)
    assert state.advance(0, 10) == 0
    state.fetched(2, 6, 7, 0, 10, 1.0)
    assert state.advance(0, 10) == 7


def test_the_high_watermark_never_falls() -> None:
    state = leader()
    state.fetched(1, 5, 3, 0, 10, 1.0)
    state.fetched(2, 5, 3, 0, 10, 1.0)
    assert state.advance(8, 10) == 8


def test_who_joins_counts_from_the_proposal_on_and_until_its_outcome_is_known() -> None:
    state = leader(isr=(0,))
    state.fetched(1, 5, 6, 0, 10, 1.0)
    assert state.has_committed(1, 6)
    assert not state.has_committed(1, 7)
    state.proposed((0, 1))
    assert state.advance(6, 10) == 6
    state.proposed((0, 2))  # the first proposal may still be written
    assert state.maximal_isr == {0, 1, 2}
    state.refused()
    assert state.maximal_isr == {0}
    state.proposed((0, 1))
    state.committed((0, 1, 2), (0, 2), 2.0)
    assert state.maximal_isr == {0, 2}
    assert not state.undecided


def test_who_leaves_counts_until_that_is_committed() -> None:
    state = leader()
    state.fetched(1, 5, 10, 0, 10, 1.0)
    state.proposed((0, 1))
    assert state.advance(0, 10) == 0
    state.committed((0, 1, 2), (0, 1), 2.0)
    assert state.advance(0, 10) == 10


def test_a_follower_joins_at_the_start_of_the_epoch_only() -> None:
    state = leader(isr=(0,), start=8)
    state.fetched(1, 5, 7, 0, 10, 1.0)
    assert not state.has_committed(1, 5)
    state.fetched(1, 5, 8, 0, 10, 1.0)
    assert state.has_committed(1, 5)


def test_a_fetch_of_an_earlier_registration_counts_for_nothing() -> None:
    state = leader()
    assert state.fetched(1, 9, 4, 0, 10, 1.0)
    assert not state.fetched(1, 8, 10, 0, 10, 2.0)
    assert state.followers[1].end_offset == 4
    assert not state.fetched(7, 1, 10, 0, 10, 2.0), "broker 7 isn't a replica"


def test_a_fetch_of_no_registration_counts_for_nothing() -> None:
    state = LeaderState(0, (0, 1), (0, 1), 0, 0.0)
    assert not state.fetched(1, -1, 10, 0, 10, 1.0)
    assert state.advance(0, 10) == 0
    state.was_caught_up(1, -1, 5.0)
    assert state.followers[1].caught_up_at == 0.0
    assert state.fetched(1, 0, 10, 0, 10, 1.0)
    assert state.advance(0, 10) == 10
    state.was_caught_up(1, 0, 5.0)
    assert state.followers[1].caught_up_at == 5.0


def test_who_keeps_up_with_the_end_as_it_was_at_the_fetch_before_is_caught_up() -> None:
    state = leader()
    for replica in (1, 2):
        state.fetched(replica, 1, 0, 0, 0, 0.0)
    for second in range(1, 100):  # each fetch asks for ten records less than the leader has by then
        state.fetched(1, 1, 10 * second, 0, 10 * second + 10, float(second))
    assert state.lagging(1000, 99.5, 30.0) == [2]


def test_who_asks_for_less_than_the_end_of_the_fetch_before_falls_behind() -> None:
    state = leader(replicas=(0, 1), isr=(0, 1))
    state.fetched(1, 1, 0, 0, 0, 0.0)
    for second in range(1, 40):
        state.fetched(1, 1, second, 0, 100 * second, float(second))
    assert state.lagging(4000, 40.0, 30.0) == [1]
    state.fetched(1, 1, 4000, 0, 4000, 41.0)
    assert state.lagging(4000, 100.0, 30.0) == [], "a follower at the end isn't behind, however long ago its fetch"


def test_a_member_that_never_showed_up_has_as_long_as_the_others() -> None:
    state = leader()
    assert state.lagging(10, 30.0, 30.0) == []
    assert state.lagging(10, 30.1, 30.0) == [1, 2]


def test_who_stands_still_is_not_thrown_in_and_out() -> None:
    state = LeaderState(0, (0, 1, 2), (0,), 0, 0.0)
    state.fetched(1, 7, 10, 0, 10, 1.0)
    assert state.present(1, 10, 900.0, 30.0), "there are no records to fetch"
    assert state.present(1, 20, 31.0, 30.0)
    assert not state.present(1, 20, 31.1, 30.0)
    assert not state.present(2, 20, 31.1, 30.0)
    state.committed((0, 1, 2), (0, 1), 60.0)
    assert state.lagging(20, 90.0, 30.0) == []
    assert state.lagging(20, 90.1, 30.0) == [1]
    state.committed((0, 1, 2), (0, 1), 80.0)
    assert state.lagging(20, 90.1, 30.0) == [1], "only for a new member does the time of joining count"


def test_replicas_come_and_go() -> None:
    state = leader()
    state.committed((0, 2, 3), (0, 2), 5.0)
    assert set(state.followers) == {2, 3}
    assert state.fetched(3, 1, 10, 0, 10, 6.0)
    assert state.has_committed(3, 10)


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5)),
        st.tuples(st.just("fetch"), st.sampled_from((1, 2, 3))),
        st.tuples(st.just("propose"), st.frozensets(st.sampled_from((1, 2, 3)))),
        st.tuples(st.just("commit"), st.integers(0, 3)),
        st.tuples(st.just("refuse"), st.just(0)),
        st.tuples(st.just("wait"), st.frozensets(st.sampled_from((1, 2, 3)))),
    ),
    max_size=60,
)


@settings(max_examples=examples(300), deadline=None)
@given(MOVES)
def test_what_is_committed_is_on_every_isr_that_may_hold(moves: list[tuple[str, object]]) -> None:
    """The model has each replica's log end, and every proposal of an ISR that may have been written."""
    state = leader(replicas=(0, 1, 2, 3), isr=(0, 1))
    ends = {0: 0, 1: 0, 2: 0, 3: 0}
    isr = frozenset({0, 1})
    proposals: list[frozenset[int]] = []
    high_watermark = 0
    for what, value in moves:
        if what == "append":
            assert isinstance(value, int)
            ends[0] += value
        elif what == "fetch":
            assert isinstance(value, int)
            # the follower asks from its own end, and then appends
            state.fetched(value, 1, ends[value], 0, ends[0], 0.0)
            ends[value] = ends[0]
        elif what == "propose":
            assert isinstance(value, frozenset)
            # only brokers that may join are proposed; leaving is always possible
            wished = frozenset({0}) | {r for r in value if r in isr or state.has_committed(r, high_watermark)}
            proposals.append(wished)
            state.proposed(wished)
        elif what == "commit" and proposals:
            assert isinstance(value, int)
            isr = proposals[value % len(proposals)]
            proposals = []
            state.committed((0, 1, 2, 3), sorted(isr), 0.0)
        elif what == "refuse":
            proposals = []
            state.refused()
        elif what == "wait":
            assert isinstance(value, frozenset)
            state.candidates = value - isr
        before, high_watermark = high_watermark, state.advance(high_watermark, ends[0])
        assert high_watermark >= before
        for possible in (isr, *proposals):
            assert all(ends[member] >= high_watermark for member in possible)
        if high_watermark > before:
            assert all(ends[candidate] >= high_watermark for candidate in state.candidates)
        assert state.alone == (state.maximal_isr == {0} and not state.candidates)


def test_what_people_are_told_of_who_lags() -> None:
    state = LeaderState(0, (0, 1, 2), (0, 1, 2), 0, 100.0)
    state.fetched(1, 7, 10, 0, 10, 101.0)
    state.fetched(1, 7, 10, 0, 12, 103.0)
    assert state.lag_of(1, 12, 133.5) == (
        "broker 1 has the records below offset 10 of 12, fetched 30.5 s ago, had all records 32.5 s ago"
    )
    assert state.lag_of(2, 12, 133.5) == "broker 2 hasn't fetched in this epoch, for 33.5 s"
