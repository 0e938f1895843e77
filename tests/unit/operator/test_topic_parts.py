"""A failure of one Topic stops no other Topic of its Cluster, with brokers and Kubernetes in memory."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch
from uuid import UUID

import pytest

from ottla.operator import kafka as module
from ottla.operator import topic as topic_module
from ottla.operator.kube import KubeError
from ottla.operator.objects import Ref
from ottla.operator.plan.topic import Configure, KafkaCluster, KafkaPartition, KafkaTopic, plan_topic
from ottla.operator.queue import Retry
from ottla.operator.topic import TopicReconciler
from ottla.operator.topic_resources import TopicResources
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.operator.kube_stand_in import KubeStandIn, Object

MAIN = Ref("shop", "main")


class Brokers:
    """Three brokers that carry out all requests, but refuse throttles."""

    bootstrap = "b:1"

    def __init__(self) -> None:
        self.topics: dict[str, KafkaTopic] = {}
        self.asked: list[Any] = []
        self.by_hand = False  # whether a person throttles replicas

    def close(self) -> None:
        pass

    async def look(self) -> KafkaCluster:
        return KafkaCluster(dict.fromkeys(range(3)), self.topics, Counter(), {})

    async def throttled_by_hand(self) -> bool:
        return self.by_hand

    async def _done(self, steps: Sequence[Any]) -> dict[str, None]:
        self.asked += steps
        return {step.topic: None for step in steps}

    create = configure = grow = move = delete = _done

    async def configure_brokers(self, given: Mapping[str, str], reset: Sequence[str] = (), *, broker: str = "") -> None:
        raise KafkaError(ErrorCode.policy_violation, "no")


class Play:
    def __init__(self, **scaling: Any) -> None:
        self.kube, self.brokers = KubeStandIn(), Brokers()
        resources = TopicResources(self.kube)
        self.kube.watchers["Topic"] = resources.seen
        self.reconciler = TopicReconciler(self.kube, resources, bootstrap=lambda *_: "b:1", clock=lambda: 0.0)
        self.kube.put("Cluster", "main", spec={"topics": {}, "scaling": scaling})

    def topic(self, name: str, **spec: Any) -> Object:
        return self.kube.put("Topic", name, spec={"cluster": {"name": "main"}, **spec})

    def there(self, name: str) -> None:
        """Creates a topic with one replica on the brokers."""
        partitions = {0: KafkaPartition((0,), frozenset((0,)))}
        self.brokers.topics[name] = KafkaTopic(name, UUID(int=len(self.brokers.topics) + 1), partitions, {})

    def sweep(self) -> None:
        with patch.object(module, "KafkaAdmin", lambda *_: self.brokers):
            asyncio.run(self.reconciler.reconcile(MAIN))


def test_a_status_that_is_refused_keeps_no_other_from_being_written() -> None:
    play = Play()
    names = [f"t-{number:02}" for number in range(40)]
    for name in names:
        play.topic(name, partitions=0)  # refused specs, so that each Topic gets a status
    merge = play.kube.merge

    async def refusing(kind: str, namespace: str, name: str, patch: Object, subresource: str = "") -> Object:
        if name == "t-03":
            raise KubeError(422, f"patching {name}", "refused by a webhook")
        return await merge(kind, namespace, name, patch, subresource)

    play.kube.merge = refusing  # type: ignore[method-assign]
    with pytest.raises(Retry, match="refused by a webhook"):
        play.sweep()
    assert sorted(name for name in names if "status" not in play.kube.topic(name)) == ["t-03"]


def test_a_throttle_that_is_refused_stops_only_the_moves_that_it_was_for() -> None:
    play = Play(throttleBytesPerSecond=1000)
    play.topic("wide", replicationFactor=2)
    play.topic("new")
    play.there("wide")
    play.sweep()
    assert [type(step).__name__ for step in play.brokers.asked] == ["Configure", "Create"]
    status, reason, message = play.kube.condition("wide")
    assert (status, reason) == ("False", "PolicyViolation")
    assert message.startswith("the brokers refuse the throttle: no")


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_throttle_that_somebody_has_set_by_hand_is_left_to_them(by_hand: bool) -> None:
    """A plan of `ottla balance run` names the throttled replicas before they move. Before the fix, the operator took
    them for the replicas of finished moves."""
    play = Play()
    play.topic("moved")
    play.there("moved")
    play.sweep()
    named = {"leader.replication.throttled.replicas": "0:0", "follower.replication.throttled.replicas": "0:2"}
    topic = play.brokers.topics["moved"]
    play.brokers.topics["moved"] = replace(topic, overrides={**play.brokers.asked[0].given, **named})
    play.brokers.asked, play.brokers.by_hand = [], by_hand
    play.sweep()
    assert play.brokers.asked == ([] if by_hand else [Configure("moved", {}, tuple(sorted(named)))])


def test_what_nobody_thought_of_stops_only_its_topic() -> None:
    play = Play()
    play.topic("odd")
    play.topic("even")
    plan = plan_topic

    def odd(resource: Any, *given: Any) -> Any:
        if resource.topic == "odd":
            raise KeyError("partitions")
        return plan(resource, *given)

    with patch.object(topic_module, "plan_topic", odd):
        play.sweep()
    assert [step.topic for step in play.brokers.asked] == ["even"]
    assert play.kube.condition("odd") == (
        "False",
        "Unexpected",
        "the operator failed unexpectedly (KeyError): 'partitions'",
    )
