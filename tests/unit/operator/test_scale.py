"""Drains and the balance of replicas: the moves when brokers are removed and added. A simulated cluster carries
out each plan."""

from collections import Counter
from dataclasses import replace
from random import Random
from uuid import UUID

import pytest

from ottla.operator.plan.scale import (
    PARTITIONS_AT_ONCE,
    ScalePlan,
    absent,
    drain,
    only_on,
    spread,
    throttles,
    undrain,
    unthrottled,
)
from ottla.operator.plan.topic import KafkaCluster, KafkaPartition, KafkaTopic, Move


def _cluster(brokers: int, topics: dict[str, list[tuple[int, ...]]], racks: int = 1) -> KafkaCluster:
    made = {
        name: KafkaTopic(
            name,
            UUID(int=number),
            {index: KafkaPartition(replicas, frozenset(replicas)) for index, replicas in enumerate(partitions)},
        )
        for number, (name, partitions) in enumerate(topics.items(), 1)
    }
    return _counted(KafkaCluster({broker: f"r{broker % racks}" for broker in range(brokers)}, made))


def _counted(cluster: KafkaCluster) -> KafkaCluster:
    load = Counter(b for topic in cluster.topics.values() for one in topic.partitions.values() for b in one.target)
    return replace(cluster, load=load)


def _asked(cluster: KafkaCluster, moves: tuple[Move, ...]) -> KafkaCluster:
    """The cluster right after these moves were requested: all of them are under way."""
    topics = dict(cluster.topics)
    for move in moves:
        partitions = dict(topics[move.topic].partitions)
        for index, target in move.targets.items():
            before = partitions[index]
            if target is None:
                partitions[index] = KafkaPartition(before.original, before.in_sync)
                continue
            was = before.original
            adding, removing = frozenset(target) - frozenset(was), frozenset(was) - frozenset(target)
            gone = tuple(broker for broker in was if broker in removing)
            partitions[index] = KafkaPartition((*target, *gone), before.in_sync, adding, removing)
        topics[move.topic] = replace(topics[move.topic], partitions=partitions)
    return _counted(replace(cluster, topics=topics))


def _done(cluster: KafkaCluster) -> KafkaCluster:
    topics = {
        name: replace(
            topic,
            partitions={
                index: KafkaPartition(one.target, frozenset(one.target)) for index, one in topic.partitions.items()
            },
        )
        for name, topic in cluster.topics.items()
    }
    return _counted(replace(cluster, topics=topics))


def _random(seed: int, brokers: int) -> KafkaCluster:
    random = Random(seed)
    topics = {
        f"t{number}": [
            tuple(random.sample(range(brokers), random.randint(1, min(3, brokers - 1))))
            for _ in range(random.randint(1, 60))
        ]
        for number in range(random.randint(1, 6))
    }
    return _cluster(brokers, topics, racks=random.choice([1, 2, 3]))


@pytest.mark.parametrize("seed", range(20))
def test_a_drain_ends_with_nothing_left_and_moves_nothing_else(seed: int) -> None:
    before = cluster = _random(seed, 5)
    leaving, staying = {3, 4}, {0, 1, 2}
    for _ in range(200):
        plan = drain(cluster, leaving, staying)
        assert not plan.refusal
        if not plan.remaining:
            break
        cluster = _asked(cluster, plan.moves)
        moving = sum(one.moving for topic in cluster.topics.values() for one in topic.partitions.values())
        assert moving <= PARTITIONS_AT_ONCE
        cluster = _done(cluster)
    for name, topic in cluster.topics.items():
        for index, one in topic.partitions.items():
            was = before.topics[name].partitions[index].replicas
            assert leaving.isdisjoint(one.replicas)
            assert len(one.replicas) == len(was)
            assert set(was) - leaving <= set(one.replicas)


def test_a_drain_that_leaves_too_few_brokers_is_refused_and_moves_nothing() -> None:
    plan = drain(_cluster(3, {"a": [(0, 1)], "orders": [(0, 1, 2)]}), {2}, {0, 1})
    assert plan.refusal.startswith("topic orders has 3 replicas, and 2 brokers would stay")
    assert not plan.moves


def test_the_brokers_own_topics_get_along_with_fewer_replicas() -> None:
    plan = drain(_cluster(3, {"__consumer_offsets": [(2, 0, 1), (0, 1, 2)]}), {2}, {0, 1})
    assert plan.moves == (Move("__consumer_offsets", {0: (0, 1), 1: (0, 1)}),)


def test_a_drain_waits_for_a_broker_that_is_wanted_and_does_not_run() -> None:
    cluster = _cluster(4, {"a": [(0, 1, 3)]})
    cluster = replace(cluster, racks=dict.fromkeys((0, 1, 3)))
    plan = drain(cluster, {3}, {0, 1, 2})
    assert (plan.moves, plan.remaining, plan.waits_for) == ((), 1, "another broker to run, for partition a-0")


def test_replicas_of_a_broker_that_is_gone_and_not_wanted_are_copied_from_the_others() -> None:
    """A Cluster was created again with fewer brokers, and the missing brokers weren't drained."""
    cluster = replace(_cluster(4, {"a": [(0, 3), (0, 1)], "b": [(3,)]}), racks=dict.fromkeys((0, 1, 2)))
    cluster.topics["a"].partitions[0] = replace(cluster.topics["a"].partitions[0], in_sync=frozenset({0}))  # type: ignore[index]
    wanted = {0, 1, 2}
    missing = absent(cluster, wanted)
    assert missing == {3}
    plan = drain(cluster, missing, wanted, missing)
    assert plan.moves == (Move("a", {0: (0, 2)}),), "no other broker has b-0"
    assert plan.remaining == 1
    assert only_on(cluster, missing) == [("b", 0)]
    assert not drain(_done(_asked(cluster, plan.moves)), missing, wanted, missing).remaining


def test_what_lies_on_a_missing_broker_keeps_no_other_broker_from_going() -> None:
    """Topic `wide` has more replicas than there would be brokers, but none on the broker that leaves."""
    cluster = replace(_cluster(5, {"orders": [(0, 3)], "wide": [(0, 1, 2, 4)]}), racks=dict.fromkeys(range(4)))
    wanted, missing = {0, 1, 2}, {4}
    plan = drain(cluster, {3}, wanted, missing)
    assert (plan.moves, plan.remaining, plan.refusal) == ((Move("orders", {0: (0, 1)}),), 1, "")
    assert drain(cluster, missing, wanted, missing).refusal.startswith("topic wide has 4 replicas")
    assert not drain(_done(_asked(cluster, plan.moves)), {3}, wanted, missing).remaining


def test_no_replica_of_a_broker_that_goes_is_moved_beside_one_that_is_missing() -> None:
    """The missing replica never gets in sync, so the move would never end."""
    cluster = _cluster(6, {"a": [(0, 3, 4), (0, 1, 4)]})
    partitions = {
        index: replace(each, in_sync=frozenset({0})) for index, each in cluster.topics["a"].partitions.items()
    }
    topics = {"a": replace(cluster.topics["a"], partitions=partitions)}
    cluster = replace(cluster, racks=dict.fromkeys((0, 1, 2, 3)), topics=topics)
    plan = drain(cluster, {3}, {0, 1, 2}, {4})
    ((index, target),) = plan.moves[0].targets.items()
    assert (index, set(target or ())) == (0, {0, 1, 2})


def test_nobody_is_taken_for_gone_while_a_broker_that_is_wanted_is_not_there() -> None:
    """The missing broker that is wanted may have replicas of the same partitions, and be back a moment later."""
    cluster = _cluster(4, {"a": [(0, 3)]})
    assert absent(replace(cluster, racks=dict.fromkeys((0, 1, 2))), {0, 1, 2}) == {3}
    assert absent(replace(cluster, racks=dict.fromkeys((1, 2))), {0, 1, 2}) == frozenset()
    assert absent(cluster, {0, 1, 2}) == frozenset(), "a registered broker isn't absent"


def test_moves_to_a_broker_that_has_died_keep_no_drain_out() -> None:
    """The limit of moves is reached by moves to the dead broker. Each of them adds a replica, so none of them can
    simply be cancelled."""
    many = PARTITIONS_AT_ONCE + 5
    cluster = _cluster(5, {"a": [(0, 1)] * many})
    under_way = _asked(cluster, (Move("a", dict.fromkeys(range(PARTITIONS_AT_ONCE), (0, 1, 4))),))
    plan = drain(under_way, {4}, {0, 1, 2, 3})
    (move,) = plan.moves
    assert sorted(move.targets) == list(range(PARTITIONS_AT_ONCE))
    assert all(target and len(target) == 3 and 4 not in target for target in move.targets.values())


def test_a_drain_that_is_not_wanted_any_more_is_ended() -> None:
    cluster = _cluster(4, {"a": [(0, 3), (0, 1)], "b": [(3,)]})
    under_way = _asked(cluster, drain(cluster, {3}, {0, 1, 2}).moves)
    ended = undrain(under_way, {3})
    assert ended == (Move("a", {0: None}), Move("b", {0: None}))
    assert _asked(under_way, ended).topics == cluster.topics


@pytest.mark.parametrize("seed", range(10))
def test_a_share_that_is_not_wanted_any_more_is_given_up_even_if_its_broker_has_died(seed: int) -> None:
    before = _random(seed, 4)
    before = replace(before, topics={**before.topics, "big": _cluster(4, {"big": [(0, 1)] * 90}).topics["big"]})
    before = _counted(replace(before, racks={**before.racks, 4: "r0"}))
    cluster = _asked(before, spread(before, {4}, {0, 1, 2, 3, 4}, only_new=True).moves)
    given_up = drain(cluster, {4}, {0, 1, 2, 3})
    assert all(target is None for move in given_up.moves for target in move.targets.values())
    assert throttles(cluster, given_up.moves) == []
    cluster = _asked(cluster, given_up.moves)
    for name, topic in cluster.topics.items():
        for index, one in topic.partitions.items():
            assert not one.moving
            assert set(one.replicas) == set(before.topics[name].partitions[index].replicas)
    assert not drain(cluster, {4}, {0, 1, 2, 3}).remaining


@pytest.mark.parametrize("seed", range(10))
def test_new_brokers_get_their_share_and_only_they(seed: int) -> None:
    cluster = _random(seed, 4)
    before = cluster = replace(cluster, racks={**cluster.racks, 4: "r0"})
    for _ in range(200):
        plan = spread(cluster, {4}, {0, 1, 2, 3, 4}, only_new=True)
        if not plan.remaining:
            break
        assert plan.moves
        cluster = _done(_asked(cluster, plan.moves))
    else:
        raise AssertionError("the plan doesn't end")
    total = sum(cluster.load.values())
    assert min(load for broker, load in cluster.load.items() if broker != 4) >= cluster.load[4] - 1
    if len(set(cluster.racks.values())) == 1:
        assert cluster.load[4] == total // 5
    for name, topic in cluster.topics.items():
        for index, one in topic.partitions.items():
            assert set(one.replicas) - set(before.topics[name].partitions[index].replicas) <= {4}


def test_a_new_broker_that_has_not_registered_is_waited_for() -> None:
    plan = spread(_cluster(3, {"a": [(0, 1)]}), {3}, {0, 1, 2, 3}, only_new=True)
    assert plan.waits_for == "broker 3 to register"


@pytest.mark.parametrize("only_new", [True, False])
def test_where_somebody_drains_everybody_nothing_is_spread(only_new: bool) -> None:
    cluster = _cluster(3, {"a": [(0, 1)]})
    cluster = replace(cluster, settings={"ottla.brokers.drained": "0,1,2"})
    assert spread(cluster, {2}, {0, 1, 2}, only_new=only_new) == ScalePlan()


def test_throttles_name_those_that_copy_and_go_when_they_are_done() -> None:
    cluster = _cluster(4, {"a": [(0, 3), (1, 2)]})
    moves = drain(cluster, {3}, {0, 1, 2}).moves
    (step,) = throttles(cluster, moves)
    assert step.given == {
        "leader.replication.throttled.replicas": "0:0,0:3",
        "follower.replication.throttled.replicas": "0:1",
    }
    topic = replace(cluster.topics["a"], overrides=step.given)
    under_way = _asked(replace(cluster, topics={"a": topic}), moves)
    assert unthrottled(under_way) == []
    (reset,) = unthrottled(_done(under_way))
    assert set(reset.reset) == set(step.given)
