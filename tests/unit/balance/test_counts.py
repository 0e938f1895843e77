"""Plans that balance brokers by numbers of replicas: the result, the number of moves, and the replicas that stay."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import ceil
from typing import Any

import hypothesis.strategies as st
from hypothesis import example, given, settings

from ottla.balance.counts import Target, balanced
from tests.unit.examples import examples


@st.composite
def clusters(draw: st.DrawFn) -> tuple[dict[tuple[str, int], tuple[int, ...]], list[Target]]:
    """Assignments on brokers of which some may be gone, and the target brokers, with or without racks."""
    brokers = list(range(1, draw(st.integers(2, 6)) + 1))
    racks = draw(st.sampled_from([(None,), ("a", "b"), ("a", "b", "c")]))
    targets = [Target(broker, racks[draw(st.integers(0, len(racks) - 1))]) for broker in brokers]
    gone = draw(st.sampled_from([(), (), (7,), (7, 8)]))
    count = draw(st.integers(0, 14))
    factor = draw(st.integers(1, min(3, len(brokers))))
    assignments = {}
    for index in range(count):
        replicas = draw(st.permutations([*brokers, *gone]))[:factor]
        assignments[draw(st.sampled_from("tu")), index] = tuple(replicas)
    return assignments, targets


def applied(assignments: Any, plan: Any) -> Any:
    return {**assignments, **plan}


def moved(assignments: Any, plan: Any) -> int:
    return sum(len(set(replicas) - set(assignments[name])) for name, replicas in plan.items())


@settings(max_examples=examples(300))
@given(clusters())
@example(
    (
        {("t", 0): (1, 2, 3), ("u", 1): (1, 2, 3), **{("t", number): (2, 1, 3) for number in range(2, 12)}},
        [Target(1), Target(2), Target(3), Target(4)],
    )
)
def test_every_plan_is_sound(cluster: Any) -> None:
    assignments, targets = cluster
    rack_of = {target.id: target.rack for target in targets}
    plan = balanced(assignments, targets)
    for name, replicas in plan.items():
        before = assignments[name]
        assert len(replicas) == len(set(replicas)) == len(before)
        assert set(replicas) <= set(rack_of)
        racks_before = {rack_of[broker] for broker in before if broker in rack_of}
        assert len({rack_of[broker] for broker in replicas}) >= len(racks_before)
    after = applied(assignments, plan)
    assert all(set(replicas) <= set(rack_of) for replicas in after.values())
    assert not balanced(after, targets), "a balanced cluster needs no moves"
    if len(set(rack_of.values())) == 1:
        load = Counter(dict.fromkeys(rack_of, 0))
        load.update(broker for replicas in after.values() for broker in replicas)
        assert max(load.values()) - min(load.values()) <= 1
        if {broker for replicas in assignments.values() for broker in replicas} <= set(rack_of):
            assert moved(assignments, plan) == fewest_moves(assignments, list(rack_of))


def fewest_moves(assignments: Any, brokers: list[int]) -> int:
    """How many replicas must leave overfull brokers, or how many must come to underfull ones, whichever is more."""
    load = Counter(dict.fromkeys(brokers, 0))
    load.update(broker for replicas in assignments.values() for broker in replicas)
    average = sum(load.values()) / len(brokers)
    too_much = sum(max(0, count - ceil(average)) for count in load.values())
    too_little = sum(max(0, int(average) - count) for count in load.values())
    return max(too_much, too_little)


def test_a_new_broker_gets_its_share_by_as_few_moves_as_can_be() -> None:
    assignments = {("t", index): (1 + index % 3, 1 + (index + 1) % 3) for index in range(12)}
    plan = balanced(assignments, [Target(broker) for broker in (1, 2, 3, 4)])
    assert moved(assignments, plan) == 6
    after = applied(assignments, plan)
    assert Counter(broker for replicas in after.values() for broker in replicas) == {1: 6, 2: 6, 3: 6, 4: 6}
    assert Counter(replicas[0] for replicas in after.values()) == {1: 3, 2: 3, 3: 3, 4: 3}


def test_a_drained_broker_loses_everything_and_the_racks_stay_apart() -> None:
    targets = [Target(2, "a"), Target(3, "b"), Target(4, "b")]
    assignments = {("t", index): replicas for index, replicas in enumerate(((1, 3), (3, 1), (2, 3), (4, 2), (1, 4)))}
    after = applied(assignments, balanced(assignments, targets))
    rack_of = {target.id: target.rack for target in targets}
    assert all(len({rack_of[broker] for broker in replicas}) == 2 for replicas in after.values())


def test_leaders_are_balanced_by_order_alone() -> None:
    assignments = {("t", index): replicas for index, replicas in enumerate(((1, 2), (1, 3), (2, 3)) * 2)}
    plan = balanced(assignments, [Target(broker) for broker in (1, 2, 3)], movable={"t"})
    assert moved(assignments, plan) == 0
    leads = Counter(replicas[0] for replicas in applied(assignments, plan).values())
    assert leads == {1: 2, 2: 2, 3: 2}


def test_topics_that_may_not_move_count_as_load() -> None:
    assignments: Any = {("fixed", index): (1,) for index in range(4)} | {("t", index): (2,) for index in range(4)}
    assert not balanced(assignments, [Target(1), Target(2)], movable={"t"})
    plan = balanced(assignments, [Target(1), Target(2), Target(3)], movable={"t"})
    assert {name[0] for name in plan} == {"t"}
    assert moved(assignments, plan) == 2


def test_small_clusters_against_every_assignment_there_is() -> None:
    targets = [Target(broker) for broker in (1, 2, 3)]
    for leaders in product((1, 2, 3), repeat=4):
        assignments = {("t", index): (leader,) for index, leader in enumerate(leaders)}
        best = min(
            sum(one != other for one, other in zip(leaders, wanted, strict=True))
            for wanted in product((1, 2, 3), repeat=4)
            if max(Counter(wanted).values()) <= 2 and len(set(wanted)) == 3
        )
        assert moved(assignments, balanced(assignments, targets)) == best
