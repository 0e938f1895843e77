"""Tables of the operator's steps for a Topic resource and its existing topic. Repeated plans come to an end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from ottla.operator.objects import Ref
from ottla.operator.plan.replication import resized
from ottla.operator.plan.topic import (
    POLICY,
    Configure,
    Create,
    Grow,
    KafkaCluster,
    KafkaPartition,
    KafkaTopic,
    Move,
    conflict,
    plan_topic,
    release,
    warning,
    winners,
)
from ottla.operator.plan.topic_owner import OWNER, mark
from ottla.operator.spec.topic import DeletionPolicy, TopicResource

WANTED = TopicResource(Ref("shop", "orders"), "u-1", "2026-01-01T00:00:00Z", 1, Ref("shop", "main"), "orders")
CLUSTER_UID = "c-1"
MARK = {OWNER: mark(WANTED, CLUSTER_UID), POLICY: "Delete"}
CLUSTER = KafkaCluster({0: None, 1: None, 2: None}, {}, {0: 5, 1: 3, 2: 1})


def there(
    *replicas: tuple[int, ...], overrides: Mapping[str, str] = MARK, moves: Mapping[int, Any] | None = None
) -> KafkaTopic:
    partitions = {}
    for index, of_one in enumerate(replicas):
        adding, removing = (moves or {}).get(index, ((), ()))
        in_sync = frozenset(of_one).difference(adding)
        partitions[index] = KafkaPartition(of_one, in_sync, frozenset(adding), frozenset(removing))
    return KafkaTopic("orders", UUID(int=1), partitions, overrides)


def spec(**changes: Any) -> TopicResource:
    return replace(WANTED, **changes)


STEPS = [
    ("a topic is created with the cluster's defaults", spec(), None, [Create("orders", -1, -1, MARK)]),
    (
        "a topic is created as its resource says",
        spec(partitions=4, replication_factor=2, config={"retention.ms": "5"}),
        None,
        [Create("orders", 4, 2, {"retention.ms": "5", **MARK})],
    ),
    ("nothing to do", spec(), there((0,)), []),
    ("numbers that the spec doesn't have stay", spec(), there((0, 1), (1, 2), (2, 0)), []),
    ("the topic is as the spec says", spec(partitions=2, replication_factor=2), there((0, 1), (1, 2)), []),
    ("a topic without an owner is adopted", spec(), there((0,), overrides={}), [Configure("orders", MARK)]),
    (
        "an adopted topic loses other settings",
        spec(),
        there((0,), overrides={"retention.ms": "5"}),
        [Configure("orders", MARK, ("retention.ms",))],
    ),
    (
        "the resource was deleted and made again",
        spec(),
        there((0,), overrides={**MARK, OWNER: "shop/orders/u-0/2025-01-01T00:00:00Z"}),
        [Configure("orders", {OWNER: mark(WANTED, CLUSTER_UID)})],
    ),
    (
        "one setting changes, another is reset",
        spec(config={"retention.ms": "6"}),
        there((0,), overrides={**MARK, "retention.ms": "5", "segment.ms": "7"}),
        [Configure("orders", {"retention.ms": "6"}, ("segment.ms",))],
    ),
    (
        "the policy changes",
        spec(deletion_policy=DeletionPolicy.RETAIN),
        there((0,)),
        [Configure("orders", {POLICY: "Retain"})],
    ),
    ("grows", spec(partitions=3), there((0,)), [Grow("orders", 3)]),
    (
        "more replicas: on the emptiest broker, throttled",
        spec(replication_factor=2),
        there((0,)),
        [
            Configure(
                "orders",
                {
                    "leader.replication.throttled.replicas": "0:0",
                    "follower.replication.throttled.replicas": "0:2",
                },
            ),
            Move("orders", {0: (0, 2)}),
        ],
    ),
    ("fewer replicas", spec(replication_factor=1), there((0, 1)), [Move("orders", {0: (0,)})]),
    (
        "more replicas are being copied: nothing to do",
        spec(replication_factor=2),
        there(
            (0, 2),
            overrides={
                **MARK,
                "leader.replication.throttled.replicas": "0:0",
                "follower.replication.throttled.replicas": "0:2",
            },
            moves={0: ((2,), ())},
        ),
        [],
    ),
    (
        "the replicas are copied: the throttle is removed",
        spec(replication_factor=2),
        there((0, 2), overrides={**MARK, "leader.replication.throttled.replicas": "0:0"}),
        [Configure("orders", {}, ("leader.replication.throttled.replicas",))],
    ),
    (
        "the spec has fewer replicas again: the move is cancelled, and the throttle removed",
        spec(replication_factor=1),
        there((0, 2), overrides={**MARK, "follower.replication.throttled.replicas": "0:2"}, moves={0: ((2,), ())}),
        [Configure("orders", {}, ("follower.replication.throttled.replicas",)), Move("orders", {0: None})],
    ),
    (
        "other clients' moves that keep the replication factor stay",
        spec(replication_factor=1, config={"follower.replication.throttled.replicas": "*"}),
        there(
            (0, 2),
            overrides={
                **MARK,
                "leader.replication.throttled.replicas": "*",
                "follower.replication.throttled.replicas": "*",
            },
            moves={0: ((2,), (0,))},
        ),
        [],
    ),
]


@pytest.mark.parametrize(("wanted", "topic", "steps"), [row[1:] for row in STEPS], ids=[row[0] for row in STEPS])
def test_steps(wanted: TopicResource, topic: KafkaTopic | None, steps: list[Any]) -> None:
    plan = plan_topic(wanted, topic, CLUSTER, CLUSTER_UID)
    assert plan.refusal is None
    assert list(plan.steps) == steps


REFUSALS = [
    ("fewer partitions", spec(partitions=1), there((0,), (0,)), "NotSupported", "set partitions to 2"),
    ("more replicas than brokers", spec(replication_factor=4), there((0,)), "NotEnoughBrokers", "has 3 brokers"),
    ("the spec was refused when it was read", spec(refusal="change it"), there((0,)), "InvalidSpec", "change it"),
]


@pytest.mark.parametrize(
    ("wanted", "topic", "reason", "says"), [row[1:] for row in REFUSALS], ids=[r[0] for r in REFUSALS]
)
def test_refusals_change_nothing(wanted: TopicResource, topic: KafkaTopic | None, reason: str, says: str) -> None:
    plan = plan_topic(wanted, topic, CLUSTER, CLUSTER_UID)
    assert plan.steps == ()
    assert plan.refusal is not None
    assert plan.refusal.reason == reason
    assert says in plan.refusal.message


def test_a_topic_goes_by_the_policy_of_the_resource_that_is_there_even_if_its_spec_is_refused() -> None:
    """The new resource has fewer partitions than the topic, so its spec is refused. But it owns the topic, so its
    policy decides whether the topic is deleted with it.
    """
    of_before = {**MARK, OWNER: "shop/orders/u-0/2025-01-01T00:00:00Z/c-1"}
    wanted = spec(partitions=1, deletion_policy=DeletionPolicy.RETAIN)
    plan = plan_topic(wanted, there((0,), (0,), overrides=of_before), CLUSTER, CLUSTER_UID)
    assert plan.refusal is not None
    assert plan.steps == (Configure("orders", {**MARK, POLICY: "Retain"}),)
    follower = there((0,), (0,), overrides={**MARK, POLICY: "Retain"})
    assert plan_topic(wanted, follower, CLUSTER, CLUSTER_UID).steps == ()
    for others in ({}, {OWNER: "shop/other/u-0/2025-01-01T00:00:00Z/c-1"}):
        assert plan_topic(wanted, there((0,), (0,), overrides=others), CLUSTER, CLUSTER_UID).steps == ()


def test_as_many_replicas_as_before_stay_where_brokers_are_lost() -> None:
    """The cluster has only two brokers for now, which isn't the resource's mistake."""
    plan = plan_topic(spec(replication_factor=3), there((0, 1, 2)), KafkaCluster({0: None, 1: None}, {}), CLUSTER_UID)
    assert (plan.refusal, plan.steps) == (None, ())


def test_progress_counts_partitions() -> None:
    topic = there((0, 1), (1, 2), (2, 0), moves={1: ((2,), ())})
    plan = plan_topic(spec(replication_factor=2), topic, CLUSTER, CLUSTER_UID)
    assert str(plan.moving) == "replication factor 2: 2 of 3 partitions done"
    assert plan_topic(spec(replication_factor=2), there((0, 1)), CLUSTER, CLUSTER_UID).moving is None


def test_replicas_that_somebody_else_throttles_stay_named_beside_the_operators_own() -> None:
    leaders, followers = "leader.replication.throttled.replicas", "follower.replication.throttled.replicas"
    topic = there((0,), overrides={**MARK, leaders: "0:1", followers: "*"})
    (configure, _) = plan_topic(spec(replication_factor=2), topic, CLUSTER, CLUSTER_UID, by_hand=True).steps
    assert configure == Configure("orders", {leaders: "0:1,0:0"})
    assert plan_topic(spec(), topic, CLUSTER, CLUSTER_UID, by_hand=True).steps == ()
    assert plan_topic(spec(), topic, CLUSTER, CLUSTER_UID).steps == (Configure("orders", {}, (followers, leaders)),)


def test_a_throttle_isnt_rewritten_for_each_partition_that_is_done() -> None:
    throttle = {
        "leader.replication.throttled.replicas": "0:0,1:1",
        "follower.replication.throttled.replicas": "0:2,1:2",
    }
    topic = there((0, 2), (1, 2), overrides={**MARK, **throttle}, moves={1: ((2,), ())})
    assert plan_topic(spec(replication_factor=2), topic, CLUSTER, CLUSTER_UID).steps == ()


def test_the_oldest_wins_and_of_two_as_old_the_ready_one() -> None:
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    old = spec(ref=Ref("b", "old"), uid="u-9", created="2025-12-31T00:00:00Z")
    young = spec(ref=Ref("a", "young"), uid="u-0", status=ready)
    assert winners([young, old])["orders"] is old
    twin = spec(ref=Ref("a", "twin"), uid="u-0")
    served = spec(ref=Ref("c", "served"), uid="u-5", status=ready)
    assert winners([twin, served])["orders"] is served
    assert winners([served, twin])["orders"] is served
    assert "c/served" in conflict(served).message


def test_fewer_replicas_than_min_insync_replicas_is_a_warning() -> None:
    assert warning(there((0,)), 2) == (
        "min.insync.replicas is 2, and each partition has 1 replica: writes with acks=all succeed with fewer copies "
        "than that, and stop while its broker is away"
    )
    assert warning(there((0, 1), overrides={"min.insync.replicas": "3"}), 1) == (
        "min.insync.replicas is 3, and each partition has 2 replicas: writes with acks=all succeed with fewer copies "
        "than that, and stop while one of them isn't in sync"
    )
    assert warning(there((0,), overrides={"min.insync.replicas": "1"}), 2) == ""


def test_release_takes_the_mark_and_leaves_the_rest() -> None:
    topic = there((0,), overrides={**MARK, "retention.ms": "5"})
    assert release(topic) == Configure("orders", {}, (OWNER, POLICY))


RESIZED = [
    ("the new replica goes to a new rack", (0,), 2, {0}, {0: "a", 1: "a", 2: "b"}, {2: 9}, (0, 2)),
    ("the new replica goes to the emptiest broker", (0,), 2, {0}, {0: None, 1: None, 2: None}, {1: 2, 2: 1}, (0, 2)),
    ("no new replica goes to a drained broker", (0,), 2, {0}, {0: None, 2: None}, {}, (0, 2)),
    ("no more replicas than brokers", (0,), 3, {0}, {0: None, 1: None}, {}, (0, 1)),
    ("a replica out of sync is removed first, even the leader", (0, 1), 1, {1}, {0: None, 1: None}, {}, (1,)),
    ("next, a replica on a drained broker is removed", (0, 1, 2), 2, {0, 1, 2}, {0: None, 2: None}, {}, (0, 2)),
    (
        "next, a replica that shares a rack is removed",
        (0, 1, 2),
        2,
        {0, 1, 2},
        {0: "a", 1: "b", 2: "b"},
        {1: 1},
        (0, 2),
    ),
    (
        "next, one on the fullest broker, but not the preferred leader",
        (0, 1, 2),
        2,
        {0, 1, 2},
        {0: None, 1: None, 2: None},
        {0: 9, 1: 4},
        (0, 2),
    ),
]


@pytest.mark.parametrize(
    ("replicas", "count", "in_sync", "takers", "load", "result"),
    [row[1:] for row in RESIZED],
    ids=[r[0] for r in RESIZED],
)
def test_resized(
    replicas: tuple[int, ...],
    count: int,
    in_sync: set[int],
    takers: dict[int, str | None],
    load: dict[int, int],
    result: tuple[int, ...],
) -> None:
    assert resized(replicas, count, in_sync, takers, load) == result
