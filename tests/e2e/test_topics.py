"""Topics are created, grown, configured, contested, adopted, kept and deleted, only by their resources."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.installed import Operator
from tests.e2e.kubectl import condition, wait
from tests.e2e.scene import Scene, topic, working

KIND = "topics.ottla.dev"


def test_topics(operator: Operator) -> None:
    with working(operator, "topics") as scene:
        scene.kube.apply(topic("orders", partitions=2, replicationFactor=3, config={"retention.ms": "3600000"}))
        scene.topic_settled("orders")
        assert described(scene, "orders")["configs"]["retention.ms"] == "3600000"
        grows(scene)
        is_set(scene)
        is_refused(scene)
        is_contested(scene)
        is_adopted_and_kept(scene)
        is_made_again(scene)
        scene.kube.delete(KIND, "orders")
        wait("the topic is deleted", lambda: "orders" not in names(scene))


def grows(scene: Scene) -> None:
    scene.kube.patch(KIND, "orders", {"spec": {"partitions": 5}})
    scene.topic_settled("orders")
    assert len(described(scene, "orders")["partitions"]) == 5


def is_set(scene: Scene) -> None:
    """The resource decides about settings: a setting from another source is reset, and so is a setting that is removed
    from the spec."""
    scene.ask("configs", "alter", "topic", "orders", "--set", "segment.bytes=1048576")
    scene.kube.patch(KIND, "orders", {"spec": {"config": {"retention.ms": None, "cleanup.policy": "compact"}}})

    def found() -> bool:
        configs = described(scene, "orders")["configs"]
        mine = {name: value for name, value in configs.items() if not name.startswith("ottla.")}
        return mine == {"cleanup.policy": "compact"}

    wait("the settings are the resource's", found)


def is_refused(scene: Scene) -> None:
    """An error that the CRD can detect is refused at apply. Any other error is a condition, and nothing is changed."""
    assert "partitions" in scene.kube.refused(topic("orders", partitions=3))
    assert "topicName" in scene.kube.refused(topic("orders", partitions=5, topicName="other"))
    assert "retention.hours" in scene.kube.refused(topic("wrong", config={"retention.hours": "1"}))
    assert "retention.ms" in scene.kube.refused(topic("wrong", config={"retention.ms": "soon"}))
    scene.kube.apply(topic("wrong", partitions=1, config={"leader.replication.throttled.replicas": "some"}))
    wait("Ready is False", lambda: condition(scene.kube.get(KIND, "wrong"), "Ready").get("status") == "False")
    assert "throttled.replicas" in condition(scene.kube.get(KIND, "wrong"), "Ready")["message"]
    assert "wrong" not in names(scene)
    scene.kube.delete(KIND, "wrong")


def is_contested(scene: Scene) -> None:
    """If several resources name a topic, the oldest one owns it."""
    scene.kube.apply(topic("second", topicName="orders", partitions=9))
    wait("Ready is False", lambda: condition(scene.kube.get(KIND, "second"), "Ready").get("status") == "False")
    assert "orders" in condition(scene.kube.get(KIND, "second"), "Ready")["message"]
    assert len(described(scene, "orders")["partitions"]) == 5
    scene.kube.delete(KIND, "second")
    scene.topic_settled("orders")
    assert "orders" in names(scene)


def is_adopted_and_kept(scene: Scene) -> None:
    """An existing topic is adopted by its resource. With `Retain` it outlives the resource."""
    scene.ask("topics", "create", "older", "--partitions", "2")
    identity = described(scene, "older")["topic_id"]
    scene.kube.apply(topic("older", partitions=3, deletionPolicy="Retain"))
    scene.topic_settled("older")
    now = described(scene, "older")
    assert (now["topic_id"], len(now["partitions"])) == (identity, 3)
    scene.kube.delete(KIND, "older")
    scene.goes_on(300)
    assert "older" in names(scene)


def is_made_again(scene: Scene) -> None:
    """A Topic is deleted and immediately created again: its topic in Kafka is deleted, and a new one is created, which
    may have fewer partitions."""
    scene.kube.apply(topic("again", partitions=4))
    scene.topic_settled("again")
    before = described(scene, "again")["topic_id"]
    scene.kube.delete(KIND, "again")
    scene.kube.apply(topic("again", partitions=2))
    scene.topic_settled("again")
    now = described(scene, "again")
    assert now["topic_id"] != before
    assert len(now["partitions"]) == 2


def described(scene: Scene, name: str) -> dict[str, Any]:
    (found,) = json.loads(scene.ask("topics", "describe", name, "--json"))
    return dict(found)


def names(scene: Scene) -> set[str]:
    return {one["name"] for one in json.loads(scene.ask("topics", "list", "--json"))}
