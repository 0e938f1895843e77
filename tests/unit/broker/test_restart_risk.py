"""Brokers foretell what would happen to partitions if certain brokers stopped. These tests stop the brokers, and
compare the prediction with the controller's actions."""

from __future__ import annotations

from collections import Counter
from random import Random
from uuid import UUID

import pytest

from ottla.broker.restart_risk import Held, Risk, in_sync, replicas_of, risk, without_leader
from ottla.metadata import keys
from ottla.metadata.identities import ConfigResource
from ottla.metadata.model.brokers import Broker, BrokerState
from ottla.metadata.model.partitions import NO_LEADER, Partition, with_isr
from ottla.metadata.model.settings import Config
from tests.unit.controller.world import World
from tests.unit.examples import examples

BROKERS = (1, 2, 3, 4, 5)
SEEDS = examples(300)
UNCLEAN = "unclean.leader.election.enable"
MIN_ISR = "min.insync.replicas"


class Cluster:
    """Three topics with their own settings on five brokers, after a series of random faults; the controller has
    finished."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.world = World()
        if random.random() < 0.5:
            self.world.keep_eligible_replicas()
        for broker in BROKERS:
            self.world.broker(broker)
        self.min_isr: dict[str, int] = {}
        self.unclean: dict[str, bool] = {}
        for number, name in enumerate(("a", "b", "c")):
            self.min_isr[name], self.unclean[name] = random.choice((1, 2, 2, 3)), random.random() < 0.3
            entries = {MIN_ISR: str(self.min_isr[name]), UNCLEAN: str(self.unclean[name]).lower()}
            self.world.put(keys.config(ConfigResource("topic", name)), Config(entries))
            replicas = [random.sample(BROKERS, random.choice((1, 2, 3, 3))) for _ in range(4)]
            self.world.topic(replicas, name, UUID(int=number + 1))
        self.world.settle()
        for _ in range(random.randrange(25)):
            random.choice((self.stop, self.restart, self.change_state, self.shrink, self.shrink, self.run))()
            if random.random() < 0.7:
                self.world.settle()
        self.world.settle()

    def stop(self) -> None:
        if self.world.image.brokers:
            self.world.stop(self.random.choice(list(self.world.image.brokers)))

    def restart(self) -> None:
        broker = self.random.choice(BROKERS)
        if broker in self.world.image.brokers:
            self.world.restart(broker, clean=self.random.random() < 0.5)
        else:
            self.world.broker(broker)

    def change_state(self) -> None:
        self.to_state(self.random.choice(BROKERS), self.random.choice(list(BrokerState)))

    def run(self) -> None:
        self.to_state(self.random.choice(BROKERS), BrokerState.RUNNING)

    def to_state(self, broker_id: int, state: BrokerState) -> None:
        if (broker := self.world.image.brokers.get(broker_id)) is not None:
            self.world.put(keys.broker(broker_id), Broker(broker_id, 0, broker.endpoints, state=state))

    def shrink(self) -> None:
        """A leader removes some followers from the ISR, or adds one."""
        held = self.random.choice(
            [(id, p) for id, states in self.world.image.partitions.items() for p in states.values()]
        )
        topic_id, state = held
        brokers = self.world.image.brokers
        joining = [b for b in state.replicas if b not in state.isr and b in brokers and brokers[b].electable]
        if state.leader == NO_LEADER:
            return
        if joining and self.random.random() < 0.5:
            isr = (*state.isr, joining[0])
            epochs = (*state.isr_epochs, brokers[joining[0]].epoch)
        else:
            isr = tuple(member for member in state.isr if member == state.leader or self.random.random() < 0.5)
            epochs = tuple(map(state.epoch_in_isr, isr))
        self.world.put(keys.partition(topic_id, state.index), with_isr(state, isr, epochs))

    def what_happens(self, held: Held, after: Partition) -> Risk | None:
        """The outcome for a partition that had the broker in its ISR."""
        before = held.state
        if before.leader == NO_LEADER or (before.isr == after.isr and before.leader == after.leader):
            return None
        if after.leader == NO_LEADER:
            return Risk.ONLY_COPY if len(before.replicas) == 1 else Risk.OFFLINE
        if (after.recovering and not before.recovering) or after.leader not in (*before.isr, *before.elr):
            return Risk.LOSES_RECORDS
        min_isr, replicas = self.min_isr[held.topic], len(after.replicas)
        if len(after.isr) >= min(min_isr, replicas):
            return None
        return Risk.TOO_FEW_REPLICAS if replicas <= min_isr and len(after.isr) == replicas - 1 else Risk.BELOW_MIN_ISR


@pytest.mark.parametrize(("count", "one_by_one"), [(1, False), (2, False), (2, True), (3, True)])
def test_the_risk_is_what_happens(count: int, one_by_one: bool) -> None:
    """All brokers stop together, or the controller acts after each one."""
    seen: Counter[Risk | None] = Counter()
    for seed in range(SEEDS):
        cluster = Cluster(Random(seed))
        before = cluster.world.image
        if len(before.brokers) < count:
            continue
        stopping = set(Random(seed).sample(list(before.brokers), count))
        foretold = {
            (held.state.topic_id, held.state.index): (
                held,
                risk(before, stopping, held, cluster.min_isr[held.topic], unclean=cluster.unclean[held.topic]),
            )
            for held in replicas_of(before, stopping)
            if held is not None
        }
        for broker_id in sorted(stopping):
            cluster.world.stop(broker_id)
            if one_by_one:
                cluster.world.settle()
        cluster.world.settle()
        for topic_id, states in cluster.world.image.partitions.items():
            for index, after in states.items():
                if (topic_id, index) not in foretold:
                    assert after.leader == before.partitions[topic_id][index].leader, f"seed {seed}: {topic_id}-{index}"
                    continue
                held, said = foretold[topic_id, index]
                happened = cluster.what_happens(held, after)
                assert said == happened, (
                    f"seed {seed}: {held.name}: predicted {said}, happened {happened}: {held.state} → {after}"
                )
                seen[said] += 1
    assert min(seen[kind] for kind in (None, *Risk)) > SEEDS // 15, seen


def test_a_replica_of_an_earlier_registration_is_not_in_sync() -> None:
    world = World()
    world.broker(1)
    world.topic([[1]])
    world.settle()
    assert in_sync(world.image, 1, world.partition())
    world.restart(1, clean=True)
    assert not in_sync(world.image, 1, world.partition())
    world.settle()
    assert in_sync(world.image, 1, world.partition())
    world.stop(1)
    assert not in_sync(world.image, 1, world.partition())


def test_partitions_that_nobody_leads_are_named_by_whoever_is_asked() -> None:
    world = World()
    for broker in (1, 2):
        world.broker(broker)
    world.topic([[1], [2], [1, 2]])
    world.settle()
    assert without_leader(world.image) == []
    world.stop(1)
    world.settle()
    assert [name.rpartition("-")[2] for name in without_leader(world.image)] == ["0"]


@pytest.mark.parametrize("replicas", [[1], [1, 2], [1, 2, 3]])
def test_what_a_cluster_of_that_many_brokers_may_lose(replicas: list[int]) -> None:
    world = World()
    for broker in replicas:
        world.broker(broker)
    world.topic([replicas])
    world.settle()
    held = next(found for found in replicas_of(world.image, {1}) if found is not None)
    expected = {1: Risk.ONLY_COPY, 2: Risk.TOO_FEW_REPLICAS, 3: None}
    assert risk(world.image, {1}, held, 2, unclean=False) == expected[len(replicas)]


@pytest.mark.parametrize(
    ("stopping", "min_isr", "said"),
    [
        ({1, 4}, 2, None),  # broker 4 has no replica
        ({1, 2}, 2, Risk.BELOW_MIN_ISR),
        ({1, 2}, 1, None),
        ({1, 2}, 3, Risk.BELOW_MIN_ISR),  # with one of them alone, it would be TOO_FEW_REPLICAS
        ({2}, 3, Risk.TOO_FEW_REPLICAS),
        ({1, 2, 3}, 1, Risk.OFFLINE),
        ({4, 5}, 2, None),
    ],
)
def test_what_each_may_do_alone_several_may_not(stopping: set[int], min_isr: int, said: Risk | None) -> None:
    world = World()
    for broker in (1, 2, 3, 4, 5):
        world.broker(broker)
    world.topic([[1, 2, 3]])
    world.settle()
    held = next(found for found in replicas_of(world.image, {1}) if found is not None)
    assert risk(world.image, stopping, held, min_isr, unclean=False) == said
