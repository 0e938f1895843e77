"""Plans that level measured loads: the result, the moves that they never make, the bytes that they copy, the time they
take."""

from __future__ import annotations

import random
import time
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from ottla.balance.loads import FULLEST, BrokerLoad, Goal, LoadPlan, PartitionLoad, levelled
from tests.unit.examples import examples

GB = 1e9


@st.composite
def clusters(draw: st.DrawFn) -> tuple[dict[tuple[str, int], PartitionLoad], list[BrokerLoad]]:
    """Partitions of all sizes on brokers of which some may be gone, with or without racks and capacities."""
    ids = list(range(draw(st.integers(2, 6))))
    racks = draw(st.sampled_from([(None,), ("a", "b"), ("a", "b", "c")]))
    capacity = draw(st.sampled_from([None, 500.0, 5000.0]))
    brokers = [BrokerLoad(broker, racks[draw(st.integers(0, len(racks) - 1))], capacity) for broker in ids]
    gone = draw(st.sampled_from([(), (), (17,)]))
    factor = draw(st.integers(1, min(3, len(ids))))
    partitions = {}
    for index in range(draw(st.integers(0, 16))):
        replicas = tuple(draw(st.permutations([*ids, *gone]))[:factor])
        following = float(draw(st.integers(0, 50)))
        leading = following * len(replicas) + draw(st.integers(0, 50))
        size = float(draw(st.integers(0, 100)))
        partitions[draw(st.sampled_from("tu")), index] = PartitionLoad(replicas, size, leading, following)
    return partitions, brokers


def applied(partitions: Any, plan: LoadPlan) -> dict[tuple[str, int], PartitionLoad]:
    return {name: one._replace(replicas=plan.targets.get(name, one.replicas)) for name, one in partitions.items()}


def borne(partitions: Any, broker: int, goal: Goal) -> float:
    """A broker's load, added up independently of the plan."""
    whole = 0.0
    for one in partitions.values():
        if broker in one.replicas:
            leads = one.replicas[0] == broker
            work = one.leading if leads else one.following
            whole += {Goal.disk: one.size_bytes, Goal.cpu: work, Goal.replicas: 1, Goal.leaders: leads}[goal]
    return whole


def racks_of(one: PartitionLoad, brokers: list[BrokerLoad]) -> int:
    rack = {broker.id: broker.rack for broker in brokers}
    return len({rack[broker] for broker in one.replicas if broker in rack})


@settings(max_examples=examples(300), deadline=None)
@given(clusters())
def test_every_plan_is_sound(cluster: Any) -> None:
    partitions, brokers = cluster
    ids = {broker.id for broker in brokers}
    plan = levelled(partitions, brokers)
    after = applied(partitions, plan)
    for name, one in partitions.items():
        target = after[name].replicas
        assert len(set(target)) == len(target) == len(one.replicas)
        assert racks_of(after[name], brokers) >= racks_of(one, brokers)
        assert set(target) - ids <= set(one.replicas) - ids
    for goal, bands in plan.after.items():
        for broker, band in bands.items():
            assert band.load == pytest.approx(borne(after, broker, goal), abs=1e-6)
    for broker in brokers:
        if broker.capacity_bytes is not None:
            before, now = (borne(each, broker.id, Goal.disk) for each in (partitions, after))
            assert now <= max(FULLEST * broker.capacity_bytes, before)
    copied = sum(
        one.size_bytes * len(set(after[name].replicas) - set(one.replicas)) for name, one in partitions.items()
    )
    assert plan.bytes_to_copy == pytest.approx(copied)


@settings(max_examples=examples(200), deadline=None)
@given(clusters())
def test_brokers_that_are_level_in_an_earlier_goal_stay_so(cluster: Any) -> None:
    partitions, brokers = cluster
    only = [Goal.disk, Goal.cpu, Goal.leaders]
    plan = levelled(partitions, brokers, only)
    if all(band.holds for band in plan.before[Goal.disk].values()) and {
        broker for one in partitions.values() for broker in one.replicas
    } <= {broker.id for broker in brokers}:
        assert all(band.holds for band in plan.after[Goal.disk].values())


@settings(max_examples=examples(100), deadline=None)
@given(clusters())
def test_the_same_input_gives_the_same_plan_and_a_level_cluster_none(cluster: Any) -> None:
    partitions, brokers = cluster
    plan = levelled(partitions, brokers)
    assert levelled(dict(reversed(partitions.items())), brokers[::-1]).targets == plan.targets
    if all(band.holds for bands in plan.after.values() for band in bands.values()):
        again = levelled(applied(partitions, plan), brokers)
        assert not again.targets


def test_work_is_levelled_by_other_leaders_before_anything_is_copied() -> None:
    partitions = {("t", index): PartitionLoad((0, 1, 2), GB, 300.0, 100.0) for index in range(12)}
    plan = levelled(partitions, [BrokerLoad(broker) for broker in range(3)])
    assert plan.bytes_to_copy == 0
    assert all(band.holds for bands in plan.after.values() for band in bands.values())
    assert {len(target) for target in plan.targets.values()} == {3}


def test_large_replicas_are_exchanged_for_small_ones_where_all_have_as_many() -> None:
    sizes = {index: float(1 + index) for index in range(12)}
    pairs = {index: (0, 1) if index >= 6 else (2, 3) for index in sizes}
    partitions = {("t", index): PartitionLoad(pairs[index], size) for index, size in sizes.items()}
    plan = levelled(partitions, [BrokerLoad(broker) for broker in range(4)], [Goal.replicas, Goal.disk])
    assert not all(band.holds for band in plan.before[Goal.disk].values())
    assert all(band.holds for bands in plan.after.values() for band in bands.values())


def test_a_larger_broker_bears_more() -> None:
    partitions = {("t", index): PartitionLoad((0,), GB) for index in range(40)}
    brokers = [BrokerLoad(0, capacity_bytes=100 * GB), BrokerLoad(1, capacity_bytes=300 * GB)]
    plan = levelled(partitions, brokers, [Goal.disk])
    after = applied(partitions, plan)
    assert borne(after, 0, Goal.disk) == pytest.approx(10 * GB, rel=0.11)


def test_no_more_is_copied_than_what_is_out_of_the_band() -> None:
    partitions = {("t", index): PartitionLoad((index % 2,), GB) for index in range(200)}
    brokers = [BrokerLoad(broker) for broker in range(4)]
    plan = levelled(partitions, brokers, [Goal.disk])
    # Two brokers have 100 GB each; in the end each broker has 45 to 55 GB.
    assert plan.bytes_to_copy == pytest.approx(90 * GB, abs=GB)
    assert all(band.holds for band in plan.after[Goal.disk].values())


def test_a_broker_that_is_to_have_nothing_is_emptied_and_other_topics_are_left_alone() -> None:
    partitions = {(topic, index): PartitionLoad((0, 1), GB) for topic in "ab" for index in range(6)}
    brokers = [BrokerLoad(broker) for broker in (1, 2, 3)]
    plan = levelled(partitions, brokers, movable=["a"])
    assert set(plan.targets) == {("a", index) for index in range(6)}
    assert not any(0 in target for target in plan.targets.values())


def test_what_differs_by_less_than_the_slack_is_level() -> None:
    partitions = {("t", 0): PartitionLoad((0,), 100.0, 10.0)}
    brokers = [BrokerLoad(0), BrokerLoad(1)]
    plan = levelled(partitions, brokers, [Goal.disk, Goal.cpu], slack={Goal.disk: 50.0, Goal.cpu: 5.0})
    assert all(band.holds for bands in plan.before.values() for band in bands.values())


def test_without_a_broker_there_is_no_plan() -> None:
    with pytest.raises(ValueError, match="no broker"):
        levelled({}, [])


def test_fifty_brokers_with_twenty_thousand_partitions_are_levelled_in_ten_seconds() -> None:
    """Ten of the brokers have five times the load of the others; sizes and traffic are spread as widely as in real
    clusters."""
    chance = random.Random(1)
    weights = [5 if broker < 10 else 1 for broker in range(50)]
    partitions = {}
    for number in range(20_000):
        replicas: list[int] = []
        while len(replicas) < 3:
            broker = chance.choices(range(50), weights)[0]
            if broker % 3 not in {other % 3 for other in replicas}:
                replicas.append(broker)
        following = min(chance.paretovariate(1.1) * 1e4, 5e6)
        leading = following * (3 + chance.choice([0, 1, 2, 3]))
        size = min(chance.paretovariate(1.2) * 2e8, 2e10)
        partitions[f"t{number % 200}", number // 200] = PartitionLoad(tuple(replicas), size, leading, following)
    brokers = [BrokerLoad(broker, f"rack-{broker % 3}", 4e12) for broker in range(50)]
    begun = time.process_time()
    plan = levelled(partitions, brokers)
    assert time.process_time() - begun < 10
    assert any(not band.holds for band in plan.before[Goal.disk].values())
    assert all(band.holds for bands in plan.after.values() for band in bands.values())
    surplus = sum(max(0.0, band.load - band.high) for band in plan.before[Goal.disk].values())
    assert plan.bytes_to_copy < 1.05 * surplus, "the plan copies hardly more bytes than it must"
