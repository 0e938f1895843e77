"""A Cluster's balance of replicas: moves are suggested, carried out, and given up for more urgent work; a balanced
Cluster stays quiet."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from ottla.balance.measured import Directory, Worked
from ottla.operator.kafka_loads import Loads
from ottla.operator.plan.roll import Report
from ottla.operator.plan.scale import PARTITIONS_AT_ONCE
from ottla.operator.plan.topic import Move
from tests.unit.operator.test_cluster import Scene, running
from tests.unit.operator.test_scale import _asked, _cluster, _done

GIB = 1 << 30


class Burdened(Scene):
    """A Cluster in which brokers 0 and 1 have all replicas of a topic."""

    partitions = 12

    def heap_up(self) -> None:
        self.kafka.cluster = _cluster(3, {"heavy": [(0, 1)] * self.partitions})

        async def loads() -> Loads:
            directories = []
            for broker in range(3):
                topics = self.kafka.cluster.topics
                held = {
                    (topic.name, index): GIB
                    for topic in topics.values()
                    for index, one in topic.partitions.items()
                    if broker in one.target
                }
                directories.append(Directory(broker, "/data", 1000 * GIB, held))
            seconds = self.now.timestamp()
            return Loads({broker: Worked(seconds, 0.1 * seconds, {}) for broker in range(3)}, directories)

        self.kafka.loads = loads  # type: ignore[attr-defined]

    def later(self, rounds: int = 1) -> None:
        """Reconciles `rounds` times, at the intervals of a quiet Cluster."""
        for _ in range(rounds):
            self.now += timedelta(seconds=120)
            self.rounds(1)

    @property
    def balance(self) -> Any:
        return self.status.get("balance")

    def moving(self) -> int:
        return sum(one.moving for topic in self.kafka.cluster.topics.values() for one in topic.partitions.values())

    def spread(self) -> list[int]:
        """The number of replicas that each broker has, or will have after moves."""
        return [self.kafka.cluster.load[broker] for broker in range(3)]


def burdened(mode: str, **balance: Any) -> Burdened:
    scene = Burdened(balance={"mode": mode, **balance}, scaling={"throttleBytesPerSecond": 1 << 20})
    scene.heap_up()
    scene.rounds(6)
    return scene


def test_nothing_is_measured_unless_it_is_asked_for() -> None:
    scene = running()
    assert "balance" not in scene.status


def test_a_suggestion_says_what_would_be_moved_and_moves_nothing() -> None:
    scene = burdened("Suggest")
    assert scene.balance == {"summary": "being measured"}
    scene.later()
    assert scene.balance["summary"].endswith("GiB to copy")
    assert scene.balance["outOfBalance"] == ["replicas", "disk", "leaders"]
    assert scene.balance["moves"] > 0
    assert scene.balance["bytesToCopy"] % GIB == 0
    assert scene.spread() == [12, 12, 0]
    (told,) = [message for reason, message in scene.world.events if reason == "OutOfBalance"]
    assert told.endswith("to have these moves made, set spec.balance.mode to Run")
    scene.world.writes.clear()
    scene.later(3)
    assert scene.world.writes == [], "the same suggestion is made once"


def test_moves_are_made_under_the_throttle_until_the_brokers_are_level() -> None:
    scene = burdened("Run")
    scene.later()
    assert scene.moving() > 0
    assert scene.balance["summary"].startswith("moving: ")
    assert scene.kafka.dynamic["leader.replication.throttled.rate"] == str(1 << 20)
    scene.kafka.cluster = _done(scene.kafka.cluster)
    scene.rounds(1)
    assert scene.balance["summary"] == "being measured"
    scene.later(2)
    assert scene.balance == {"summary": "in balance"}
    assert max(scene.spread()) - min(scene.spread()) <= 2
    assert [reason for reason, _ in scene.world.events if reason.startswith("Balanc")] == ["Balancing", "Balanced"]


def test_a_large_plan_is_carried_out_some_partitions_at_once() -> None:
    scene = burdened("Run")
    scene.partitions = 400
    scene.heap_up()
    scene.later()
    rounds = 0
    while scene.moving():
        assert scene.moving() <= PARTITIONS_AT_ONCE
        scene.kafka.cluster = _done(scene.kafka.cluster)
        scene.rounds(1)
        rounds += 1
    assert rounds > 2
    assert max(scene.spread()) <= 1.1 * 800 / 3 + 1


def test_a_roll_is_waited_for_and_the_plan_made_anew() -> None:
    scene = burdened("Run")
    scene.world.edit("Cluster", "k", lambda spec: spec.update(config={"num.partitions": 6}))
    scene.now += timedelta(seconds=120)
    scene.reconcile()
    assert scene.balance == {"summary": "waits until no broker is added, removed or restarted"}
    assert scene.moving() == 0
    scene.rounds(14)
    scene.later(3)
    assert scene.moving() > 0


def test_another_process_of_the_operator_goes_on() -> None:
    scene = burdened("Run")
    scene.later()
    under_way = scene.moving()
    assert under_way
    scene.restart()
    scene.later(2)
    assert scene.balance == {"summary": "waits until other moves of replicas are complete"}
    scene.kafka.cluster = _done(scene.kafka.cluster)
    scene.later(3)
    assert scene.balance["summary"] == "in balance"


def test_switched_off_it_says_nothing_any_more() -> None:
    scene = burdened("Suggest")
    scene.later()
    scene.world.edit("Cluster", "k", lambda spec: spec.update(balance={"mode": "Off"}))
    scene.rounds(1)
    assert scene.balance is None


def test_what_is_a_little_uneven_is_left_alone() -> None:
    scene = burdened("Run")
    scene.kafka.cluster = _cluster(3, {"even": [(0, 1), (1, 2), (2, 0)] * 10 + [(0, 1), (0, 2)]})
    scene.later()
    assert scene.balance == {"summary": "in balance"}


def test_only_the_goals_that_are_asked_for() -> None:
    scene = burdened("Suggest", goals=["leaders"])
    scene.later()
    assert scene.balance["outOfBalance"] == ["leaders"]


def test_a_partition_that_somebody_else_moves_leaves_the_plan() -> None:
    """Before the fix, the partition was moved back, and lost the replica that a person had just added."""
    scene = burdened("Run")
    scene.partitions = 400
    scene.heap_up()
    scene.later()
    waiting = next(index for index, one in scene.kafka.cluster.topics["heavy"].partitions.items() if not one.moving)
    scene.kafka.cluster = _asked(scene.kafka.cluster, (Move("heavy", {waiting: (0, 1, 2)}),))
    while scene.moving():
        scene.kafka.cluster = _done(scene.kafka.cluster)
        scene.rounds(1)
    assert scene.kafka.cluster.topics["heavy"].partitions[waiting].replicas == (0, 1, 2)


def test_a_topic_made_again_is_not_what_was_planned_for() -> None:
    scene = burdened("Run")
    scene.later()
    scene.kafka.cluster = _cluster(3, {"other": [(0, 1)], "heavy": [(0, 1, 2)] * 12})
    scene.rounds(1)
    assert scene.moving() == 0


def test_copies_that_have_to_catch_up_do_not_end_the_plan() -> None:
    scene = burdened("Run")
    scene.later()
    behind = Report(missing=("heavy-0",))
    scene.pages.said = dict.fromkeys(range(3), behind)
    under_way = scene.moving()
    scene.rounds(3)
    assert scene.balance["summary"] == f"moving: {under_way} of 12 partitions to go"


def test_nothing_is_moved_by_half_a_measurement() -> None:
    scene = burdened("Run")
    whole = scene.kafka.loads

    async def half() -> Loads:
        loads = await whole()
        del loads.worked[2]
        return loads

    scene.kafka.loads = half
    scene.later(2)
    assert scene.balance == {"summary": "waits for an answer of broker 2"}
    assert scene.moving() == 0


def test_a_drained_broker_is_not_emptied() -> None:
    scene = burdened("Run")
    scene.kafka.dynamic["ottla.brokers.drained"] = "1"
    scene.later(2)
    assert scene.balance == {"summary": "waits until broker 1 isn't drained any more"}
    assert scene.moving() == 0


def test_switched_off_in_the_middle_it_takes_the_throttle_away() -> None:
    scene = burdened("Run")
    scene.later()
    reset: list[str] = []

    async def configure(steps: Any) -> dict[str, None]:
        reset.extend(step.topic for step in steps if step.reset)
        return {}

    scene.kafka.configure = configure  # type: ignore[method-assign]
    throttled = {"leader.replication.throttled.replicas": "0:0", "follower.replication.throttled.replicas": "0:2"}
    topic = scene.kafka.cluster.topics["heavy"]
    scene.kafka.cluster = replace(scene.kafka.cluster, topics={"heavy": replace(topic, overrides=throttled)})
    scene.world.edit("Cluster", "k", lambda spec: spec.update(balance={"mode": "Off"}))
    scene.rounds(1)
    assert reset == [], "moves that are under way are still throttled"
    scene.kafka.cluster = _done(scene.kafka.cluster)
    scene.rounds(1)
    assert reset == ["heavy"]
