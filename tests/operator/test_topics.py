"""Topic resources against real brokers: topics are created, grown, configured, copied, adopted, refused, released and
kept.

Kubernetes is a stand-in, and no queue runs. Each test itself makes the operator's sweeps (a sweep reconciles all Topics
of a Cluster), and checks the state after each sweep.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import kafka
import pytest

from ottla.net.admin import BROKER
from ottla.operator.kafka import KafkaAdmin, Refusals, Unreachable
from ottla.operator.kube import KubeError
from ottla.operator.objects import Ref
from ottla.operator.plan.topic import THROTTLE_RATES, Configure, Create, Delete, KafkaTopic
from ottla.operator.queue import Result
from ottla.operator.topic import BROKERS_S, MOVING_S, TopicReconciler
from ottla.operator.topic_resources import TopicResources
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.operator.kube_stand_in import KubeStandIn
from tests.peers.ottla_cluster import OttlaCluster, ottla_cluster

MAIN = Ref("shop", "main")
CLUSTER: dict[str, Any] = {"topics": {}, "scaling": {}}


class Operator:
    """The reconciler of topics, on one cluster's real brokers. An object in memory takes the place of Kubernetes."""

    def __init__(self, bootstrap: str, kube: KubeStandIn | None = None) -> None:
        self.kube = kube or KubeStandIn()
        self.now = 0.0
        self.held_changes: list[Ref] = []
        self.resources = TopicResources(self.kube)
        self.kube.watchers["Topic"] = self.resources.seen
        self.reconciler = TopicReconciler(
            self.kube,
            self.resources,
            held_changed=self.held_changes.append,
            bootstrap=lambda *_: bootstrap,
            clock=lambda: self.now,
        )
        if kube is None:
            self.kube.put("Cluster", "main", spec=CLUSTER)
            definition = self.kube.put("CustomResourceDefinition", "topics.ottla.dev", "")
            definition["metadata"]["creationTimestamp"] = "2025-01-01T00:00:00Z"

    def topic(self, name: str, namespace: str = "shop", cluster: str = "main", **spec: Any) -> None:
        """Does what `kubectl apply` would do."""
        self.kube.put("Topic", name, namespace, spec={"cluster": {"name": cluster, "namespace": "shop"}, **spec})

    async def sweep(self) -> Result:
        return await self.reconciler.reconcile(MAIN)

    async def settle(self, sweeps: int = 60) -> int:
        """Makes sweeps until one asks for no other sweep within two seconds. While replicas move, each sweep asks for
        another one. Returns the number of sweeps."""
        for number in range(1, sweeps + 1):
            result = await self.sweep()
            if result.requeue_after is None or result.requeue_after > 2.0:
                return number
            await asyncio.sleep(0.1)
        raise AssertionError(f"no rest after {sweeps} sweeps: {self.kube.writes[-10:]}")

    async def later(self, seconds: float) -> None:
        """Advances the time by `seconds`, and then settles."""
        self.now += seconds
        await self.settle()


Scene = Callable[[Operator, KafkaAdmin], Coroutine[Any, Any, None]]
Play = Callable[[Scene], None]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaCluster]:
    with ottla_cluster(tmp_path_factory.mktemp("cluster"), 3) as started:
        yield started


@pytest.fixture
def run(cluster: OttlaCluster) -> Play:
    """A function that runs a test's coroutine with a new operator and a new admin client, and deletes all topics
    afterwards."""

    def play(scene: Scene) -> None:
        async def whole() -> None:
            admin = KafkaAdmin(cluster.bootstrap)
            operator = Operator(cluster.bootstrap)
            try:
                await scene(operator, admin)
            finally:
                operator.reconciler.close()
                await clean(admin)
                admin.close()

        asyncio.run(asyncio.wait_for(whole(), 120))

    return play


async def clean(admin: KafkaAdmin) -> None:
    await admin.delete([Delete(topic.name, topic.id) for topic in (await admin.look()).topics.values()])


async def seen(admin: KafkaAdmin, name: str) -> KafkaTopic:
    return (await admin.look()).topics[name]


def test_made_configured_grown_and_then_quiet(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        kube = operator.kube
        operator.topic("orders", partitions=2, replicationFactor=2, config={"retention.ms": 1000})
        await operator.settle()
        topic = await seen(admin, "orders")
        assert (len(topic.partitions), topic.replication_factor) == (2, 2)
        assert topic.overrides["retention.ms"] == "1000"
        assert topic.owner.startswith("shop/orders/uid-")
        assert kube.condition("orders") == ("True", "Ready", "")
        status = kube.topic("orders")["status"]
        assert (status["partitions"], status["replicationFactor"], status["topicId"]) == (2, 2, str(topic.id))
        assert status["observedGeneration"] == 1

        operator.topic("orders", partitions=3, replicationFactor=2, config={"segment.ms": "7"})
        await operator.settle()
        topic = await seen(admin, "orders")
        assert len(topic.partitions) == 3
        assert "retention.ms" not in topic.overrides
        assert topic.overrides["segment.ms"] == "7"
        assert kube.topic("orders")["status"]["observedGeneration"] == 2
        assert [reason for _, reason, _ in kube.events] == ["TopicCreated", "SettingsChanged", "PartitionsAdded"]

        kube.writes.clear()
        for _ in range(5):
            assert (await operator.sweep()).requeue_after is None
        assert kube.writes == []

    run(scene)


def test_drift_is_repaired(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        operator.topic("orders", config={"retention.ms": "1000"})
        await operator.settle()
        await admin.configure([Configure("orders", {"segment.ms": "7", "retention.ms": "5"})])
        await operator.settle()
        overrides = (await seen(admin, "orders")).overrides
        assert (overrides["retention.ms"], overrides.get("segment.ms")) == ("1000", None)
        await clean(admin)
        await operator.settle()
        assert operator.kube.topic("orders")["status"]["topicId"] == str((await seen(admin, "orders")).id)

    run(scene)


def test_who_changes_everything_back_is_answered_ever_more_slowly(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        operator.topic("orders")
        await operator.settle()
        pauses = []
        for _ in range(12):
            await admin.configure([Configure("orders", {"ottla.owner": "else/where/u-9/2026-01-01T00:00:00Z"})])
            pauses.append((await operator.sweep()).requeue_after or 0.0)
        assert pauses[0] <= 0.2
        assert pauses[-1] >= 10.0
        await operator.settle()
        await admin.configure([Configure("orders", {"ottla.owner": "else/where/u-9/2026-01-01T00:00:00Z"})])
        assert (await operator.sweep()).requeue_after == pauses[0], "the pauses begin anew after a quiet time"

    run(scene)


def test_what_is_there_is_adopted(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        await admin.create([Create("legacy", 4, 1, {"retention.ms": "5"})])
        before = await seen(admin, "legacy")
        operator.topic("legacy", config={"cleanup.policy": "compact"})
        await operator.settle()
        after = await seen(admin, "legacy")
        assert after.id == before.id
        assert len(after.partitions) == 4
        assert after.overrides["cleanup.policy"] == "compact"
        assert "retention.ms" not in after.overrides
        assert ("legacy", "TopicAdopted") in [event[:2] for event in operator.kube.events]

    run(scene)


def test_refusals_change_nothing_and_say_what_to_change(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        kube = operator.kube
        await admin.create([Create("legacy", 4, 1, {"retention.ms": "5"})])
        operator.topic("legacy", partitions=2)
        operator.topic("many", replicationFactor=9)
        operator.topic("wrong", config={"retention.ms": "soon"})
        operator.topic("dotted.name")
        await operator.settle()
        operator.topic("dotted-again", topicName="dotted_name")
        await operator.settle()
        assert kube.condition("legacy")[:2] == ("False", "NotSupported")
        assert (await seen(admin, "legacy")).overrides == {"retention.ms": "5"}
        assert kube.condition("many")[:2] == ("False", "NotEnoughBrokers")
        assert kube.condition("wrong")[:2] == ("False", "InvalidSpec")
        assert kube.condition("dotted-again")[:2] == ("False", "InvalidTopicException")
        assert "dotted.name" in kube.condition("dotted-again")[2], "the brokers' own message"
        assert set((await admin.look()).topics) == {"legacy", "dotted.name"}
        kube.writes.clear()
        await operator.sweep()
        assert kube.writes == [], "a refusal is written once"
        operator.topic("wrong", config={"retention.ms": "10"})
        await operator.settle()
        assert kube.condition("wrong") == ("True", "Ready", "")

    run(scene)


def test_fewer_replicas_than_min_insync_replicas_is_told(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        kube = operator.kube
        kube.put("Cluster", "main", spec={"config": {"min.insync.replicas": "2"}})
        operator.topic("orders", replicationFactor=1)
        await operator.settle()
        assert kube.condition("orders")[:2] == ("True", "TooFewReplicas")
        assert "succeed with fewer copies" in kube.topic("orders")["status"]["message"]
        operator.topic("orders", replicationFactor=1, config={"min.insync.replicas": 1})
        await operator.settle()
        assert kube.condition("orders") == ("True", "Ready", "")

    run(scene)


def test_the_older_of_two_has_the_topic_and_the_other_follows_when_it_goes(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        kube = operator.kube
        operator.topic("young", topicName="orders", config={"retention.ms": "1"})
        kube.topic("young")["metadata"]["creationTimestamp"] = "2026-02-01T00:00:00Z"
        kube.put("Topic", "young")
        operator.topic("old", topicName="orders", config={"retention.ms": "2"})
        await operator.settle()
        before = await seen(admin, "orders")
        assert before.overrides["retention.ms"] == "2"
        assert kube.condition("old")[0] == "True"
        assert kube.condition("young")[:2] == ("False", "ResourceConflict")
        assert "shop/old" in kube.condition("young")[2]
        kube.remove("Topic", "old")
        await operator.later(60.0)
        after = await seen(admin, "orders")
        assert after.id == before.id
        assert after.overrides["retention.ms"] == "1"
        assert kube.condition("young")[0] == "True"

    run(scene)


def test_replicas_are_added_throttled_with_progress_and_taken_away_again(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        kube = operator.kube
        kube.put("Cluster", "main", spec={"scaling": {"throttleBytesPerSecond": 5_000_000}})
        operator.topic("orders", partitions=3, replicationFactor=1)
        await operator.settle()
        operator.topic("orders", partitions=3, replicationFactor=3)
        await operator.sweep()
        assert (await admin.settings(BROKER, ""))["leader.replication.throttled.rate"] == "5000000"
        await operator.settle()
        topic = await seen(admin, "orders")
        assert topic.replication_factor == 3
        assert all(not partition.moving for partition in topic.partitions.values())
        assert not [name for name in topic.overrides if "throttled" in name], "the throttle is removed with the move"
        assert kube.condition("orders", "Reassigning")[:2] in (("False", "Done"), ("-", "-"))
        assert kube.topic("orders")["status"]["replicationFactor"] == 3
        assert "reassignment" not in kube.topic("orders")["status"]
        operator.topic("orders", partitions=3, replicationFactor=2)
        await operator.settle()
        assert (await seen(admin, "orders")).replication_factor == 2
        await admin.configure_brokers({}, THROTTLE_RATES)

    run(scene)


def fill(bootstrap: str, topic: str, size_bytes: int) -> None:
    """Produces records, so that a move has bytes to copy."""
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap.split(","), acks="all")
    for _ in range(size_bytes // 100_000):
        producer.send(topic, bytes(100_000))
    producer.flush(30)
    producer.close()


def test_a_move_goes_on_under_the_next_operator_and_is_cancelled_when_the_spec_changes_back(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        kube = operator.kube
        kube.put("Cluster", "main", spec={"scaling": {"throttleBytesPerSecond": 1024}})
        operator.topic("orders", partitions=2, replicationFactor=1, config={"min.insync.replicas": 1})
        await operator.settle()
        await asyncio.to_thread(fill, admin.bootstrap, "orders", 4_000_000)
        operator.topic("orders", partitions=2, replicationFactor=2, config={"min.insync.replicas": 1})
        await operator.sweep()
        result = await operator.sweep()
        assert result.requeue_after == MOVING_S
        assert kube.condition("orders", "Reassigning")[0] == "True"
        assert kube.topic("orders")["status"]["reassignment"]["partitions"] == 2
        assert "of 2 partitions done" in kube.topic("orders")["status"]["message"]
        assert kube.condition("orders")[0] == "True"
        events = len(kube.events)
        successor = Operator(admin.bootstrap, kube)
        assert (await successor.sweep()).requeue_after == MOVING_S
        assert len(kube.events) == events, "the successor begins no step a second time"
        successor.topic("orders", partitions=2, replicationFactor=1, config={"min.insync.replicas": 1})
        await successor.settle()
        topic = await seen(admin, "orders")
        assert topic.replication_factor == 1
        assert not any(partition.moving for partition in topic.partitions.values())
        assert not [name for name in topic.overrides if "throttled" in name]
        assert kube.condition("orders", "Reassigning")[:2] == ("False", "Done")
        assert any("cancelled" in message and "0 cancelled" not in message for _, _, message in kube.events)
        successor.reconciler.close()
        await admin.configure_brokers({}, THROTTLE_RATES)

    run(scene)


def test_paused_means_nothing_is_changed(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        kube = operator.kube
        operator.topic("orders")
        operator.topic("later", paused=True)
        await operator.settle()
        operator.topic("orders", paused=True, config={"retention.ms": "9"})
        await operator.settle()
        assert "retention.ms" not in (await seen(admin, "orders")).overrides
        assert kube.condition("orders", "Paused")[0] == "True"
        assert kube.condition("orders")[0] == "True"
        assert kube.topic("orders")["status"]["observedGeneration"] == 2
        assert kube.condition("later")[0] == "Unknown"
        assert "later" not in (await admin.look()).topics
        operator.topic("orders", config={"retention.ms": "9"})
        await operator.settle()
        assert (await seen(admin, "orders")).overrides["retention.ms"] == "9"
        assert kube.condition("orders", "Paused")[0] == "False"

    run(scene)


def test_a_topic_goes_with_its_resource_or_stays_by_its_policy(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        kube = operator.kube
        for name, policy in (("goes", "Delete"), ("stays", "Retain"), ("retained-late", "Delete")):
            operator.topic(name, deletionPolicy=policy)
        await operator.settle()
        operator.topic("retained-late", deletionPolicy="Retain")  # and deleted before the operator's next sweep
        for name in ("goes", "stays", "retained-late"):
            kube.remove("Topic", name)
        result = await operator.sweep()
        assert result.requeue_after is not None
        assert set((await admin.look()).topics) == {"goes", "stays", "retained-late"}, (
            "the topics stay until the wait for lost Topics is over"
        )
        await operator.later(15.0)
        topics = (await admin.look()).topics
        assert set(topics) == {"stays", "retained-late"}
        assert all(not topic.owner and not topic.overrides for topic in topics.values())
        assert {reason for _, reason, _ in kube.events} >= {"TopicDeleted", "TopicReleased"}

    run(scene)


def test_a_restarted_operator_deletes_what_lost_its_resource_meanwhile(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        operator.topic("goes")
        await operator.settle()
        operator.kube.remove("Topic", "goes")
        successor = Operator(admin.bootstrap, operator.kube)
        await successor.settle()
        await successor.later(15.0)
        assert (await admin.look()).topics == {}
        successor.reconciler.close()

    run(scene)


def remade(operator: Operator, *names: str, **spec: Any) -> None:
    """As `kubectl replace --force`: deletes Topics and creates them again before the operator's next sweep."""
    for name in names:
        operator.kube.remove("Topic", name)
        operator.topic(name, **spec)


def test_a_topic_deleted_and_made_again_is_another_topic(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        kube = operator.kube
        operator.topic("orders", partitions=3, config={"retention.ms": "5"})
        operator.topic("kept", partitions=2, deletionPolicy="Retain")
        await operator.settle()
        before = (await admin.look()).topics
        await asyncio.to_thread(fill, admin.bootstrap, "orders", 100_000)
        remade(operator, "orders", "kept", partitions=2)
        await operator.sweep()
        assert kube.condition("orders")[:2] == ("False", "Replacing")
        assert (await seen(admin, "orders")).id == before["orders"].id, (
            "the topics stay until the wait for lost Topics is over"
        )
        await operator.later(15.0)
        after = (await admin.look()).topics
        assert after["orders"].id != before["orders"].id
        assert len(after["orders"].partitions) == 2, "fewer partitions than its predecessor had"
        assert "retention.ms" not in after["orders"].overrides
        assert kube.condition("orders") == ("True", "Ready", "")
        assert kube.topic("orders")["status"]["topicId"] == str(after["orders"].id)
        assert after["kept"].id == before["kept"].id, "its predecessor's policy was Retain"
        kube.writes.clear()
        await operator.later(1000.0)
        assert kube.writes == []
        assert (await seen(admin, "orders")).id == after["orders"].id

    run(scene)


def test_a_topic_made_again_while_no_operator_ran_is_another_topic(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        operator.topic("orders")
        await operator.settle()
        before = await seen(admin, "orders")
        operator.reconciler.close()
        operator.kube.watchers.clear()
        remade(operator, "orders", paused=True)
        successor = Operator(admin.bootstrap, operator.kube)
        await successor.settle()
        assert (await seen(admin, "orders")).id == before.id
        await successor.later(15.0)
        assert (await admin.look()).topics == {}, "the deletion counts, whatever the next Topic says"
        successor.topic("orders")
        await successor.settle()
        assert (await seen(admin, "orders")).id != before.id
        successor.reconciler.close()

    run(scene)


def test_a_predecessors_topic_that_cant_be_deleted_is_told(run: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        operator.topic("orders")
        await operator.settle()
        before = await seen(admin, "orders")
        deletes = KafkaAdmin.delete

        async def refuses(self: KafkaAdmin, steps: Sequence[Delete]) -> Refusals:
            refusal = KafkaError(ErrorCode.topic_deletion_disabled, "Topic deletion is disabled.")
            return dict.fromkeys((step.topic for step in steps), refusal)

        monkeypatch.setattr(KafkaAdmin, "delete", refuses)
        remade(operator, "orders")
        await operator.sweep()
        await operator.later(15.0)
        status, reason, message = operator.kube.condition("orders")
        assert (status, reason) == ("False", "TopicNotDeleted")
        assert "shop/orders, the predecessor of this one, and can't be deleted: Topic deletion is disabled." in message
        assert (await seen(admin, "orders")).id == before.id
        monkeypatch.setattr(KafkaAdmin, "delete", deletes)
        await operator.later(15.0)
        assert operator.kube.condition("orders") == ("True", "Ready", "")
        assert (await seen(admin, "orders")).id != before.id

    run(scene)


def test_many_made_again_at_once_keep_their_topics(run: Play) -> None:
    """Many Topics are deleted and created again between two sweeps, as after a restore from a backup, or by a tool that
    replaces every object it applies: nobody meant to delete records."""

    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        kube = operator.kube
        names = [f"t-{number}" for number in range(5)]
        for name in names:
            operator.topic(name, replicationFactor=1)
        await operator.settle()
        ids = {name: topic.id for name, topic in (await admin.look()).topics.items()}
        remade(operator, *names[1:], replicationFactor=1)
        remade(operator, names[0], replicationFactor=1, paused=True)
        await operator.settle()
        assert all(kube.condition(name) == ("True", "Ready", "") for name in names[1:])
        assert operator.reconciler.held(MAIN) is None, "no topic waits for a confirmation: all have a Topic"
        await operator.later(1000.0)
        operator.reconciler.close()
        successor = Operator(admin.bootstrap, kube)
        await successor.later(1000.0)
        await successor.later(1000.0)
        successor.topic(names[0], replicationFactor=1)
        await successor.settle()
        assert kube.condition(names[0]) == ("True", "Ready", "")
        assert {name: topic.id for name, topic in (await admin.look()).topics.items()} == ids
        successor.reconciler.close()

    run(scene)


@pytest.mark.parametrize("first", ["Cluster", "Topics"])
def test_topics_of_a_cluster_made_anew_are_kept_until_their_resources_are_applied(run: Play, first: str) -> None:
    """A namespace was deleted, its volumes were kept, and all resources are applied again, in either order."""

    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        kube = operator.kube
        for name in ("orders", "payments"):
            operator.topic(name)
        await operator.settle()
        ids = {name: topic.id for name, topic in (await admin.look()).topics.items()}
        operator.reconciler.close()
        for name in ids:
            kube.remove("Topic", name)
        kube.remove("Cluster", "main")

        operator = Operator(admin.bootstrap, kube)  # the only memory is in the topics' own settings
        if first == "Topics":
            operator.topic("orders")
        kube.put("Cluster", "main", spec=CLUSTER)
        await operator.settle()
        await operator.later(1000.0)
        held = operator.reconciler.held(MAIN)
        assert held is not None
        assert held.reason == "ClusterMadeAnew"
        operator.topic("orders")
        await operator.settle()
        await operator.later(1000.0)
        assert {name: topic.id for name, topic in (await admin.look()).topics.items()} == ids
        held = operator.reconciler.held(MAIN)
        assert held is not None
        assert "payments" in held.message
        assert "orders" not in held.message
        kube.remove("Topic", "orders")
        await operator.later(1.0)
        await operator.later(1000.0)
        assert set((await admin.look()).topics) == {"payments"}, (
            "only the topic of a Topic that existed together with this Cluster is deleted"
        )
        operator.reconciler.close()

    run(scene)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_topics_made_after_the_backup_that_kubernetes_is_restored_from_are_kept(
    run: Play, first: bool, restarted: bool
) -> None:
    """The Cluster is the same one and its topics exist, but the restored Kubernetes lacks some Topics, which nobody has
    deleted.

    `first`: the operator had seen no Topic of the Cluster when the backup was taken.
    """

    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        kube = operator.kube
        if not first:
            operator.topic("before")
        await operator.settle()
        backup = kube.backup()
        operator.topic("orders")
        operator.topic("payments")
        await operator.settle()
        ids = {name: topic.id for name, topic in (await admin.look()).topics.items()}
        kube.restore(backup)
        if restarted:
            operator.reconciler.close()
            operator = Operator(admin.bootstrap, kube)
        await operator.settle()
        await operator.later(1000.0)
        await operator.later(1000.0)
        assert {name: topic.id for name, topic in (await admin.look()).topics.items()} == ids
        held = operator.reconciler.held(MAIN)
        assert held is not None
        assert held.reason == "TopicsNotRemembered"
        operator.topic("orders")
        operator.topic("later")
        await operator.settle()
        await operator.later(1000.0)
        await operator.later(1000.0)
        now = {name: topic.id for name, topic in (await admin.look()).topics.items()}
        assert now == ids | {"later": now["later"]}, "the topic with a Topic is taken over, and the other topic waits"
        for name in ("orders", "later"):
            kube.remove("Topic", name)
        await operator.later(1.0)
        await operator.later(15.0)
        assert (await admin.look()).topics.keys() == ids.keys() - {"orders"}, (
            "the record of this Kubernetes has the Topics, so their topics are deleted"
        )
        operator.reconciler.close()

    run(scene)


def test_a_record_of_topics_that_somebody_deletes_is_made_again(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        kube = operator.kube
        operator.topic("orders")
        await operator.settle()
        kube.remove("ConfigMap", "main-topics")
        await operator.settle()
        kube.remove("Topic", "orders")
        await operator.settle()
        await operator.later(15.0)
        assert (await admin.look()).topics == {}

    run(scene)


def test_a_record_that_kubernetes_refuses_keeps_no_topic_from_being_made(run: Play) -> None:
    """The operator's record of the Topics that Kubernetes has had is a ConfigMap, which a quota may refuse, for
    example. The refusal is reported, and topics whose Topics aren't in the record are kept. When the record is written,
    topics are deleted as usual."""

    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        kube = operator.kube
        kube.refused_writes["ConfigMap"] = 403
        operator.topic("orders")
        with pytest.raises(KubeError, match="refused"):
            await operator.sweep()
        assert (await admin.look()).topics.keys() == {"orders"}
        with pytest.raises(KubeError, match="refused"):
            await operator.sweep()
        assert kube.condition("orders") == ("True", "Ready", "")
        kube.refused_writes.clear()
        await operator.settle()
        kube.remove("Topic", "orders")
        await operator.settle()
        await operator.later(15.0)
        assert (await admin.look()).topics == {}

    run(scene)


def test_many_at_once_wait_for_a_person(run: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        caplog.set_level("WARNING", "ottla.operator.topic")
        kube = operator.kube
        for number in range(12):
            operator.topic(f"t-{number}", replicationFactor=1)
        await operator.settle()
        for number in range(8):
            kube.remove("Topic", f"t-{number}")
        await operator.sweep()
        await operator.later(30.0)
        assert len((await admin.look()).topics) == 12
        held = operator.reconciler.held(MAIN)
        assert held is not None
        assert operator.held_changes == [MAIN]
        assert "8 of 12 topics" in held.message
        assert len(caplog.records) == 1
        kube.remove("Topic", "t-8")
        await operator.settle()
        assert len(caplog.records) == 2
        tokens = set()
        # seven Topics come back, and each time another set of topics waits for the confirmation
        for number in (8, *range(6)):
            operator.topic(f"t-{number}", replicationFactor=1)
            await operator.settle()
            held = operator.reconciler.held(MAIN)
            assert held is not None
            tokens.add(held.message.rpartition("=")[2])
        assert len(tokens) == 7, "each token belongs to the set of topics that are held at that time"
        assert len(caplog.records) == 2, "topics that come back aren't logged"
        operator.reconciler.close()
        operator = Operator(admin.bootstrap, kube)
        await operator.settle()
        await operator.later(1000.0)
        held = operator.reconciler.held(MAIN)
        assert held is not None
        token = held.message.rpartition("=")[2]
        kube.put("Cluster", "main", metadata={"annotations": {"ottla.dev/confirm-topic-deletion": token}})
        await operator.settle()
        assert set((await admin.look()).topics) == {f"t-{number}" for number in range(12)} - {"t-6", "t-7"}
        assert operator.reconciler.held(MAIN) is None
        operator.reconciler.close()

    run(scene)


def test_more_than_fits_into_a_sweep(run: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.operator.topic.CHANGES_MAX", 2)
    monkeypatch.setattr("ottla.operator.topic.CHANGED_AT_ONCE", 1)

    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        kube = operator.kube
        names = [f"t-{number}" for number in range(7)]
        for name in names:
            operator.topic(name, replicationFactor=1)
        assert await operator.settle() >= 4
        assert all(kube.condition(name)[0] == "True" for name in names)
        for name in names:
            operator.topic(name, replicationFactor=2, config={"retention.ms": "5"})
        await operator.sweep()
        changed = [topic for topic in (await admin.look()).topics.values() if "retention.ms" in topic.overrides]
        moved = [topic for topic in (await admin.look()).topics.values() if topic.replication_factor == 2]
        assert {topic.name for topic in moved} <= {topic.name for topic in changed}, "configured before moved"
        assert len(changed) == 2
        await operator.settle()
        for name in names:
            kube.remove("Topic", name)
        await operator.sweep()
        await operator.settle()
        held = operator.reconciler.held(MAIN)
        assert held is not None
        token = held.message.rpartition("=")[2]
        kube.put("Cluster", "main", metadata={"annotations": {"ottla.dev/confirm-topic-deletion": token}})
        await operator.settle()
        assert (await admin.look()).topics == {}
        assert sum(reason == "TopicDeleted" for _, reason, _ in kube.events) == 7

    run(scene)


def test_a_definition_that_cant_be_read_lets_one_of_several_go(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        operator.kube.refused["CustomResourceDefinition"] = 403
        for name in ("goes", "stays"):
            operator.topic(name)
        await operator.settle()
        operator.kube.remove("Topic", "goes")
        await operator.sweep()
        await operator.later(15.0)
        assert set((await admin.look()).topics) == {"stays"}
        operator.kube.remove("Topic", "stays")
        await operator.sweep()
        await operator.later(1000.0)
        assert set((await admin.look()).topics) == {"stays"}
        assert operator.reconciler.held(MAIN) is not None

    run(scene)


def test_the_definition_deleted_and_back_loses_nothing(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        kube = operator.kube
        operator.topic("orders", config={"retention.ms": "5"})
        await operator.settle()
        before = await seen(admin, "orders")
        kube.remove("Topic", "orders")
        del kube.objects["CustomResourceDefinition", "", "topics.ottla.dev"]
        kube.refused["Topic"] = 404
        await operator.sweep()
        await operator.later(1000.0)
        assert (await seen(admin, "orders")).id == before.id
        assert operator.reconciler.held(MAIN) is not None
        del kube.refused["Topic"]
        definition = kube.put("CustomResourceDefinition", "topics.ottla.dev", "")
        definition["metadata"]["creationTimestamp"] = "2026-03-01T00:00:00Z"
        await operator.later(1000.0)
        assert operator.reconciler.held(MAIN) is not None, "the topics are older than the definition"
        operator.topic("orders", config={"retention.ms": "6"})
        await operator.settle()
        after = await seen(admin, "orders")
        assert after.id == before.id
        assert after.overrides["retention.ms"] == "6"
        assert operator.reconciler.held(MAIN) is None

    run(scene)


def test_other_namespaces_by_the_clusters_leave(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        kube = operator.kube
        kube.put("Namespace", "team", "", metadata={"labels": {"kafka": "yes"}})
        operator.topic("theirs", namespace="team")
        await operator.settle()
        assert kube.condition("theirs", namespace="team")[:2] == ("False", "NamespaceNotAllowed")
        assert (await admin.look()).topics == {}
        selector = {"allowedNamespaces": "Selector", "namespaceSelector": {"matchLabels": {"kafka": "yes"}}}
        kube.put("Cluster", "main", spec={"topics": selector})
        kube.refused["Namespace"] = 403
        await operator.settle()
        assert kube.condition("theirs", namespace="team")[:2] == ("False", "NamespaceNotAllowed")
        del kube.refused["Namespace"]
        await operator.settle()
        assert kube.condition("theirs", namespace="team")[0] == "True"
        kube.put("Cluster", "main", spec={})
        await operator.settle()
        assert set((await admin.look()).topics) == {"theirs"}, "the existing topic stays"

    run(scene)


def test_brokers_that_dont_answer_are_told_where_something_is_to_be_done(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        kube = operator.kube
        operator.topic("ready")
        await operator.settle()
        operator.topic("new")
        unreachable = Operator("127.0.0.1:1", kube)
        kube.put("Cluster", "main", status={"conditions": [{"type": "Ready", "status": "True"}]})
        with pytest.raises(Unreachable):
            await unreachable.sweep()
        assert kube.condition("new")[:2] == ("False", "ClusterUnreachable")
        assert kube.condition("ready")[0] == "True"
        assert [event[:2] for event in kube.events][-1] == ("new", "ClusterUnreachable")

    run(scene)


def test_brokers_that_only_start_are_waited_for_without_a_fuss(run: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        kube = operator.kube
        operator.topic("new")
        starting = Operator("127.0.0.1:1", kube)
        with caplog.at_level("INFO", "ottla.operator"):
            for _ in range(4):
                assert (await starting.sweep()).requeue_after == BROKERS_S  # the pause never grows
        assert [(record.levelname, record.name) for record in caplog.records] == [("INFO", "ottla.operator.sweeps")]
        assert kube.condition("new")[:2] == ("False", "ClusterUnreachable")
        assert kube.events == []

    run(scene)


def test_topics_of_a_cluster_of_another_operators_are_left_alone(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        operator.topic("orders")
        operator.reconciler._ours = lambda key: False
        assert (await operator.sweep()).gone
        assert operator.kube.writes == []
        assert (await admin.look()).topics == {}

    run(scene)


def test_a_cluster_that_isnt_there_is_told(run: Play) -> None:
    async def scene(operator: Operator, admin: KafkaAdmin) -> None:
        kube = operator.kube
        kube.remove("Cluster", "main")
        operator.topic("orders")
        assert not (await operator.sweep()).gone
        assert kube.condition("orders")[:2] == ("False", "ClusterNotFound")
        kube.put("Cluster", "main", spec={"paused": True})
        await operator.settle()
        assert kube.condition("orders")[:2] == ("False", "ClusterPaused")
        kube.put("Cluster", "main", spec={})
        await operator.settle()
        assert kube.condition("orders")[0] == "True"
        kube.remove("Cluster", "main")
        kube.remove("Topic", "orders")
        assert (await operator.sweep()).gone

    run(scene)
