"""A Cluster's status is true while the Cluster is paused, while no broker answers, and while several changes are under
way."""

from __future__ import annotations

from datetime import timedelta

from ottla.operator.kafka import Unreachable
from ottla.operator.objects import Object
from ottla.operator.plan.observed import crashed, unschedulable
from ottla.operator.plan.roll import Report
from ottla.operator.status import Condition
from tests.unit.operator.test_cluster import OUTSIDE, Scene, running
from tests.unit.operator.test_scale import _cluster


async def _nobody(*_: object) -> str:
    raise Unreachable("no broker answers (k-bootstrap.shop.svc:9092: refused)")


def _condition(scene: Scene, kind: str) -> Object:
    return next(each for each in scene.status["conditions"] if each["type"] == kind)


def test_nothing_rolls_while_a_cluster_is_paused() -> None:
    scene = running()
    scene.pages.said = {0: Report(risks={"offline": ("orders-1",)})}
    scene.world.edit("Cluster", "k", lambda spec: spec.update(image="ottla:2"))
    scene.rounds(2)
    assert scene.condition("Rolling")[0] == "True"
    scene.world.edit("Cluster", "k", lambda spec: spec.update(paused=True))
    scene.rounds(1)
    assert scene.condition("Rolling") == ("False", "SpecPaused")
    assert "2 pods are outdated, and are restarted after" in _condition(scene, "Rolling")["message"]
    assert scene.condition("Ready") == ("True", "BrokersServe")
    del scene.world.objects["Pod", "shop", "k-etcd-0"]
    scene.reconcile()
    assert scene.condition("MetadataReady") == ("False", "EtcdAway"), "a paused Cluster is still observed"
    scene.world.edit("Cluster", "k", lambda spec: spec.update(config={"log.retention.ms": 1}))
    scene.rounds(1)
    assert scene.condition("ConfigApplied") == ("Unknown", "NotAsked"), "the new setting isn't applied"
    assert scene.kafka.dynamic == {}
    scene.pages.said = {}
    scene.world.edit("Cluster", "k", lambda spec: spec.update(paused=False))
    scene.rounds(14)
    assert scene.condition("Rolling") == ("False", "UpToDate"), "the end of the pause applies the held-back changes"
    assert scene.condition("ConfigApplied") == ("True", "Applied")
    assert scene.kafka.dynamic == {"log.retention.ms": "1"}
    assert scene.status["version"] == "2"


def test_topics_that_are_held_are_told_where_people_look_first() -> None:
    scene = running()
    scene.topics_held = Condition("TopicsHeld", True, "ClusterMadeAnew", "this Cluster was made anew: orders")
    scene.rounds(1)
    kept = "topics without their Topics are kept: see the condition TopicsHeld"
    assert scene.status["message"] == f"3 of 3 brokers serve; {kept}"
    scene.topics_held = None
    scene.rounds(1)
    assert scene.status["message"] == "3 of 3 brokers serve"


def test_a_pause_keeps_what_was_counted() -> None:
    scene = running(brokers={"replicas": 4, "storage": {"size": "1Gi"}})
    scene.kafka.cluster = _cluster(4, {"orders": [(0, 1, 3), (3, 2, 0)]})
    scene.world.edit("Cluster", "k", lambda spec: spec["brokers"].update(replicas=3))
    scene.rounds(2)
    moving = {"reason": "draining broker 3", "remaining": 2}
    assert scene.status["reassignment"] == moving
    scene.world.edit("Cluster", "k", lambda spec: spec.update(paused=True))
    scene.rounds(2)
    assert scene.status["reassignment"] == moving


def test_a_cluster_whose_brokers_do_not_answer_kafka_is_not_ready() -> None:
    scene = running()
    answer, scene.kafka.cluster_id = scene.kafka.cluster_id, _nobody  # type: ignore[method-assign]
    scene.rounds(1)
    assert scene.condition("KafkaAnswers") == ("False", "NoAnswer")
    assert scene.condition("Ready") == ("True", "BrokersServe"), "a stopping broker closes its connections"
    scene.now += timedelta(seconds=25)
    scene.rounds(1)
    assert scene.condition("Ready") == ("False", "KafkaDoesNotAnswer")
    assert "no broker answers" in scene.status["message"]
    scene.now += timedelta(seconds=1)
    scene.rounds(1)
    assert scene.condition("Ready") == ("False", "KafkaDoesNotAnswer"), "the condition stays"
    scene.kafka.cluster_id = answer  # type: ignore[method-assign]
    scene.rounds(1)
    assert scene.condition("Ready") == ("True", "BrokersServe")
    assert scene.condition("KafkaAnswers") == ("True", "Answers")


def test_a_new_cluster_is_ready_only_once_a_broker_has_answered() -> None:
    scene = Scene()
    answer, scene.kafka.cluster_id = scene.kafka.cluster_id, _nobody  # type: ignore[method-assign]
    scene.rounds(6)
    assert scene.status["brokers"]["summary"] == "3/3"
    assert scene.condition("Ready") == ("False", "KafkaDoesNotAnswer")
    scene.kafka.cluster_id = answer  # type: ignore[method-assign]
    scene.rounds(1)
    assert scene.condition("Ready") == ("True", "BrokersServe")


def test_what_nobody_tells_any_more_is_unknown() -> None:
    scene = running()
    assert scene.condition("PartitionsLed") == ("True", "AllLed")

    async def nobody(_: object) -> dict[int, Report]:
        return {}

    scene.pages.reports = nobody  # type: ignore[assignment, method-assign]
    scene.rounds(1)
    assert scene.condition("PartitionsLed") == ("Unknown", "NotAsked")


def test_etcd_does_not_hide_how_far_a_roll_is() -> None:
    scene = running(metadata={"etcd": {"members": 3}})
    scene.pages.said = {0: Report(risks={"offline": ("orders-1",)}), 1: Report(controls=True)}
    scene.world.edit("Cluster", "k", lambda spec: spec.update(image="ottla:2"))
    scene.rounds(3)
    scene.world.objects["Pod", "shop", "k-etcd-2"]["status"] = {}
    scene.reconcile()
    assert scene.status["message"] == (
        "Rolling 2/3: waiting for k-etcd-2 to be ready (waiting for etcd: 2 of 3 members answer)"
    )


def test_a_cluster_that_is_made_again_waits_for_what_kubernetes_takes_away() -> None:
    """Before the fix, the status advised to rename one of the Clusters, while the predecessor's objects were being
    deleted anyway."""
    scene = running(listeners=OUTSIDE)
    scene.cluster["metadata"]["uid"] = "another"
    del scene.cluster["status"]
    scene.restart()
    scene.reconcile()
    assert scene.status["message"] == (
        "the ConfigMap k-followed of a deleted Cluster of this name still exists: "
        "it is made again once Kubernetes has deleted it"
    )
    assert scene.condition("Ready") == ("False", "MetadataNotReady")
    assert scene.condition("FollowedSpecReconciled") == ("False", "Waiting")
    assert scene.world.warnings == []
    for key, item in list(scene.world.objects.items()):
        owners = [owner["uid"] for owner in item["metadata"].get("ownerReferences", ())]
        if key[0] != "Cluster" and owners and "another" not in owners:
            del scene.world.objects[key]
    scene.rounds(7)
    assert scene.condition("Ready") == ("True", "BrokersServe")
    assert not [each for each in scene.status["conditions"] if each["type"].endswith("Reconciled")]


def test_kubernetes_own_words_are_one_line_and_are_cut_between_words() -> None:
    """kubectl cuts a column at the first line's end. Before the fix, the operator cut long texts within a word."""
    log = "Traceback:\n" + "no such module\n" * 40
    pod = {"status": {"containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff", "message": log}}}]}}
    said = crashed(pod)
    assert said.startswith("CrashLoopBackOff: Traceback: no such module no such")
    assert said.endswith((" module …", " such …", " no …"))
    assert len(said) <= 300
    where = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes:\nno room"}
    assert unschedulable({"status": {"conditions": [where]}}) == "no node can run it: 0/1 nodes: no room"
