"""Placement: valid, spread over brokers and racks, and with Kafka's errors."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ottla.placement import Candidate, place
from ottla.protocol.errors import ErrorCode, KafkaError

brokers = st.lists(
    st.builds(Candidate, st.integers(0, 30), st.sampled_from([None, "a", "b", "c"]), st.booleans()),
    min_size=1,
    max_size=9,
    unique_by=lambda candidate: candidate.id,
).filter(lambda candidates: any(candidate.live for candidate in candidates))


@given(brokers, st.integers(1, 30), st.integers(0, 10_000), st.data())
def test_every_assignment_is_valid(candidates: list[Candidate], count: int, start: int, data: st.DataObject) -> None:
    factor = data.draw(st.integers(1, len(candidates)))
    live = {candidate.id for candidate in candidates if candidate.live}
    rack_of = {candidate.id: candidate.rack for candidate in candidates}
    placed = place(candidates, count, factor, start)
    assert len(placed) == count
    for replicas in placed:
        assert len(set(replicas)) == len(replicas) == factor
        assert replicas[0] in live
        assert len(live & set(replicas)) == min(factor, len(live))
        if factor <= len(live):
            racks = {rack_of[broker] for broker in live}
            assert len({rack_of[broker] for broker in replicas}) == min(factor, len(racks))
    leaders = Counter(replicas[0] for replicas in placed)
    assert max(leaders.values()) - min(leaders.get(broker, 0) for broker in live) <= 1
    assert placed == place(list(reversed(candidates)), count, factor, start)


def test_growing_goes_on_where_creation_stopped() -> None:
    candidates = [Candidate(number) for number in range(5)]
    assert place(candidates, 4, 2, 3) + place(candidates, 6, 2, 3, first_index=4) == place(candidates, 10, 2, 3)


def test_followers_of_one_broker_spread_over_the_others() -> None:
    placed = place([Candidate(number) for number in range(4)], 12, 2)
    followers = Counter(replicas[1] for replicas in placed if replicas[0] == 0)
    assert set(followers.values()) == {1}
    assert len(followers) == 3


@pytest.mark.parametrize(
    ("candidates", "factor", "said"),
    [
        ([Candidate(1)], 2, "because only 1 broker\\(s\\) are registered"),
        ([], 1, "because only 0 broker\\(s\\) are registered"),
        ([Candidate(1, None, False)], 1, "All brokers are currently fenced"),
    ],
)
def test_too_few_brokers(candidates: list[Candidate], factor: int, said: str) -> None:
    with pytest.raises(KafkaError, match=said) as raised:
        place(candidates, 1, factor)
    assert raised.value.code is ErrorCode.invalid_replication_factor
