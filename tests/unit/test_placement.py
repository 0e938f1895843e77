"""The placement of replicas: it is valid, spread over brokers and racks, and fails with Kafka's errors."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ottla.placement import Candidate, place, resized
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


@given(brokers, st.integers(1, 9), st.integers(1, 9), st.data())
def test_another_factor_only_adds_or_only_takes_away(
    candidates: list[Candidate], before: int, after: int, data: st.DataObject
) -> None:
    live = [candidate for candidate in candidates if candidate.live]
    before = min(before, len(candidates))
    present = {("t", index): replicas for index, replicas in enumerate(place(candidates, 8, before))}
    in_sync = {
        name: data.draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True))
        for name, replicas in present.items()
    }
    dead = {candidate.id for candidate in candidates if not candidate.live}
    possible = all(after <= len(set(replicas) | {one.id for one in live}) for replicas in present.values())
    if not possible:
        with pytest.raises(KafkaError) as refused:
            resized(present, present, candidates, after, in_sync)
        assert refused.value.code == ErrorCode.invalid_replication_factor
        return
    changed = resized(present, present, candidates, after, in_sync)
    assert set(changed) == (set(present) if before != after else set())
    rack_of = {candidate.id: candidate.rack for candidate in candidates}
    for name, replicas in changed.items():
        assert len(set(replicas)) == len(replicas) == after
        if after > before:
            assert replicas[:before] == present[name]
            added = set(replicas[before:])
            assert not added & dead
            free_racks = {rack_of[one.id] for one in live} - {rack_of[broker] for broker in present[name]}
            assert len({rack_of[broker] for broker in added} & free_racks) == min(len(added), len(free_racks))
        else:
            kept = [broker for broker in present[name] if broker in replicas]
            assert list(replicas) == kept
            assert len(set(replicas) & set(in_sync[name])) == min(after, len(in_sync[name]))
            first_in_sync = next(broker for broker in present[name] if broker in in_sync[name])
            assert first_in_sync in replicas


def test_replicas_are_added_where_there_are_fewest() -> None:
    present = {("t", index): (0,) for index in range(6)} | {("u", 0): (1, 2), ("u", 1): (1, 0)}
    changed = resized(present, [("t", index) for index in range(6)], map(Candidate, range(4)), 2, present)
    assert Counter(replicas[1] for replicas in changed.values()) == {3: 3, 2: 2, 1: 1}
