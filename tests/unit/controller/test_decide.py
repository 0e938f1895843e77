"""The controller's decisions in a small world: each interrupted step is resumed, and no step breaks an invariant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from ottla.controller import decide as decide_module
from ottla.controller import topics as deciding
from ottla.controller.decide import decide, scope_of
from ottla.controller.proposal import Proposal
from ottla.metadata import keys
from ottla.metadata.elections import Electorate, led
from ottla.metadata.identities import ConfigResource
from ottla.metadata.image import DRAINED, Changed
from ottla.metadata.model.brokers import BrokerState
from ottla.metadata.model.partitions import NO_LEADER, Election
from ottla.metadata.model.settings import Config
from tests.unit.controller.world import T, World
from tests.unit.examples import examples

UNCLEAN = "unclean.leader.election.enable"


def interrupted(world: World) -> Iterator[World]:
    """Yields a world for each number of writes after which a controller may have died, up to its last write."""
    present = world.copy()
    for _ in range(20):
        proposals = present.proposals()
        if not proposals:
            return
        for proposal in proposals:
            yield present.copy()
            assert present.write(proposal.guards, proposal.writes)
    raise AssertionError("the controller doesn't finish")


@pytest.mark.parametrize("atomic", [100, 2])
def test_creation_is_resumed_from_every_midpoint(atomic: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "ATOMIC_CREATION_MAX", atomic)
    world = World()
    for broker in (1, 2, 3):
        world.broker(broker)
    world.topic([[1, 2], [2, 3], [3, 1], [1, 3], [2, 1]])
    midpoints = list(interrupted(world))
    assert len(midpoints) == (1 if atomic == 100 else 6)
    for midpoint in midpoints:
        assert not midpoint.image.topics
        midpoint.settle()
        topic = midpoint.image.topics["t"]
        assert [topic.partitions[i].replicas for i in range(5)] == [(1, 2), (2, 3), (3, 1), (1, 3), (2, 1)]
        assert [topic.partitions[i].leader for i in range(5)] == [1, 2, 3, 1, 2]


def test_growth_is_resumed_and_the_old_partitions_stay_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "ATOMIC_CREATION_MAX", 1)
    world = World()
    world.broker(1)
    world.topic([[1]])
    world.settle()
    before = world.partition(0)
    world.topic([[1]] * 4)
    for midpoint in interrupted(world):
        assert len(midpoint.image.topics["t"].partitions) == 1
        midpoint.settle()
        assert len(midpoint.image.topics["t"].partitions) == 4
        assert midpoint.partition(0) == before


def test_deletion_is_resumed_and_the_tombstone_waits_for_the_brokers() -> None:
    world = World()
    for broker in (1, 2):
        world.broker(broker)
    world.topic([[1], [2], [1, 2]])
    world.settle()
    world.delete_topic()
    for midpoint in interrupted(world):
        assert not midpoint.image.topics
        midpoint.settle()
        assert not midpoint.image.partitions
        assert not midpoint.image.ready
        assert midpoint.image.tombstones[T].pending == (1, 2)
        midpoint.put(keys.tombstone(T), replace(midpoint.image.tombstones[T], pending=()))
        midpoint.settle()
        assert not midpoint.image.tombstones


def test_a_topic_deleted_while_it_is_created_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "ATOMIC_CREATION_MAX", 1)
    world = World()
    world.broker(1)
    world.topic([[1]] * 4)
    for midpoint in interrupted(world):
        late = midpoint.proposals()
        midpoint.delete_topic()
        for proposal in late:  # proposals of a controller that hasn't seen the deletion yet
            assert not midpoint.write(proposal.guards, proposal.writes)
        midpoint.topic([[1]], topic_id=UUID(int=T.int ^ 1))
        midpoint.settle()
        assert T not in midpoint.image.partitions
        assert midpoint.image.topics["t"].id != T


def test_states_without_topic_and_tombstone_are_left_alone() -> None:
    world = World()
    world.broker(1)
    world.topic([[1]])
    world.settle()
    world.delete(keys.topic("t"))
    assert not world.proposals()
    assert world.image.partitions


def test_unclean_election_only_where_it_is_allowed() -> None:
    world = World()
    for broker in (1, 2):
        world.broker(broker)
    world.topic([[1, 2]])
    world.settle()
    world.delete(keys.broker(2))
    world.settle()
    assert world.partition().isr == (1,)
    world.delete(keys.broker(1))
    world.broker(2)
    world.settle()
    assert world.partition().leader == NO_LEADER
    world.changed = Changed()
    world.put(keys.config(ConfigResource("topic", "t")), Config({UNCLEAN: "true"}))
    for proposal in decide(world.image, scope_of(world.image, world.changed), {}):
        assert world.write(proposal.guards, proposal.writes)
    assert (world.partition().leader, world.partition().isr, world.partition().recovering) == (2, (2,), True)


def test_a_wished_election_is_held_once() -> None:
    world = World()
    for broker in (1, 2):
        world.broker(broker)
    world.topic([[1, 2]])
    world.settle()
    partition = world.partition()
    epochs = tuple(world.image.brokers[b].epoch for b in (1, 2))
    world.put(keys.partition(T, 0), replace(partition, leader=2, isr=(1, 2), isr_epochs=epochs, leader_epoch=4))
    world.settle()
    assert world.partition().leader == 2
    world.put(keys.election(T, 0), Election())
    world.put(keys.election(T, 9), Election())
    world.settle()
    assert (world.partition().leader, world.partition().leader_epoch) == (1, 5)
    assert not world.image.elections


BROKERS = st.integers(1, 4)
STATES = st.sampled_from(list(BrokerState))
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("register"), BROKERS, STATES),
        st.tuples(st.just("die"), BROKERS, st.none()),
        st.tuples(st.just("state"), BROKERS, STATES),
        st.tuples(st.just("join"), BROKERS, st.integers(0, 2)),
        st.tuples(st.just("decide"), st.integers(0, 9), st.integers(0, 5)),
    ),
    max_size=40,
)


@settings(max_examples=examples(150))
@given(EVENTS, st.integers(0, 1000))
def test_no_sequence_of_deaths_and_births_breaks_an_invariant(events: Any, seed: int) -> None:
    pick = Random(seed)
    world = World()
    for broker in (1, 2, 3, 4):
        world.broker(broker)
    world.topic([pick.sample((1, 2, 3, 4), size) for size in (1, 2, 3)])
    world.settle()
    for event, one, two in events:
        world.changed = Changed()
        if event == "register":
            if one in world.image.brokers:
                world.delete(keys.broker(one))
            world.broker(one, two)
        elif event == "die" and one in world.image.brokers:
            world.delete(keys.broker(one))
        elif event == "state" and one in world.image.brokers:
            world.broker(one, two)
        elif event == "join":
            join_isr(world, one, two)
        elif event == "decide":
            proposals = world.proposals()
            pick.shuffle(proposals)
            for proposal in proposals[:two]:
                apply_checked(world, proposal)
    everybody_decided(world)


def join_isr(world: World, broker_id: int, index: int) -> None:
    """Adds a replica to an ISR, as the leader does when the follower has caught up."""
    partition = world.partition(index)
    brokers = world.image.brokers
    leader = brokers.get(partition.leader)
    follower = brokers.get(broker_id)
    if leader is None or follower is None or not partition.leads(leader.id, leader.epoch) or not follower.electable:
        return
    if broker_id in partition.replicas and broker_id not in partition.isr:
        members = (*partition.isr, broker_id)
        epochs = (*partition.isr_epochs, follower.epoch)
        after = replace(partition, isr=members, isr_epochs=epochs, partition_epoch=partition.partition_epoch + 1)
        world.put(keys.partition(T, index), after)


def apply_checked(world: World, proposal: Proposal) -> None:
    before = [world.partition(index) for index in range(3)]
    if not world.write(proposal.guards, proposal.writes):
        return
    for old, new in zip(before, (world.partition(index) for index in range(3)), strict=True):
        if old == new:
            continue
        brokers = world.image.brokers
        assert new.partition_epoch == old.partition_epoch + 1
        assert new.isr
        assert set(new.isr) <= set(old.isr)
        survivors = {b for b in old.isr if b in brokers and brokers[b].epoch == old.epoch_in_isr(b)}
        # a live member with all records isn't removed in favour of dead ones
        assert survivors & set(new.isr) or not survivors
        same_leader = new.leader == old.leader and new.epoch_in_isr(new.leader) == old.epoch_in_isr(old.leader)
        assert new.leader_epoch == old.leader_epoch + (0 if same_leader else 1)
        if new.leader != NO_LEADER:
            assert new.leads(new.leader, brokers[new.leader].epoch)


def everybody_decided(world: World) -> None:
    for _ in range(5):
        proposals = world.proposals()
        for proposal in proposals:
            apply_checked(world, proposal)
        if not proposals:
            break
    else:
        raise AssertionError("the controller doesn't finish")
    brokers = world.image.brokers
    for index in range(3):
        partition = world.partition(index)
        draining = any(partition.epoch_in_isr(b) == brokers[b].epoch for b in partition.isr if b in brokers)
        if partition.leader == NO_LEADER and draining:
            continue  # a draining member has all records, so no other replica may lead yet
        if any(b in brokers and brokers[b].electable for b in partition.isr):
            assert partition.leads(partition.leader, brokers[partition.leader].epoch)
        for member in partition.isr:
            alive = member in brokers and brokers[member].epoch == partition.epoch_in_isr(member)
            assert alive or partition.leader == NO_LEADER
        assert led(partition, Electorate(brokers)) is partition


def grow_isrs(world: World) -> None:
    """Adds to the ISR of each partition with a leader all replicas that may lead, as after they have caught up."""
    brokers = world.image.brokers
    for topic_id, states in world.image.partitions.items():
        for index, state in states.items():
            if state.leader != NO_LEADER:
                isr = tuple(each for each in state.replicas if each in brokers and brokers[each].electable)
                grown = replace(state, isr=isr, isr_epochs=world.epochs(*isr))
                world.put(keys.partition(topic_id, index), grown)


def test_the_changed_parts_are_enough_to_decide_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each event, the narrow scope of `scope_of` gives the same proposals as the whole scope without `_settled`.

    `_settled` is the cheap check by which `decide` skips partitions.
    """
    at_a_glance = decide_module._settled
    pick = Random(5)
    world = World()
    wishes: dict[str, str] = {}
    for step in range(600):
        world.changed = Changed()
        broker = pick.randrange(1, 4)
        name = pick.choice("ab")
        match pick.randrange(9):
            case 0:
                world.broker(broker, pick.choices(list(BrokerState), [1, 8, 1])[0])
            case 1 if broker in world.image.brokers:
                world.delete(keys.broker(broker))
            case 2 if name not in world.image.intents:
                world.topic([[1], [2, 3], [3, 1, 2]], name, UUID(int=step, version=4))
            case 3 if name in world.image.intents:
                world.delete_topic(name)
            case 4 if world.image.tombstones:
                gone = pick.choice(sorted(world.image.tombstones))
                world.put(keys.tombstone(gone), replace(world.image.tombstones[gone], pending=()))
            case 5:
                grow_isrs(world)
            case 6:
                wishes[DRAINED] = ",".join(str(each) for each in range(1, 4) if pick.random() < 0.3)
                world.put(keys.config(ConfigResource("broker", "")), Config(wishes))
            case 7:
                wishes[UNCLEAN] = pick.choice(["true", "false"])
                world.put(keys.config(ConfigResource("broker", "")), Config(wishes))
            case 8 if name in world.image.intents:
                allowed = pick.choice(["true", "false"])
                world.put(keys.config(ConfigResource("topic", name)), Config({UNCLEAN: allowed}))
        while True:
            narrow = set(decide(world.image, scope_of(world.image, world.changed), {}))
            monkeypatch.setattr(decide_module, "_settled", lambda *_: False)
            assert narrow == set(world.proposals())
            monkeypatch.setattr(decide_module, "_settled", at_a_glance)
            world.changed = Changed()
            if not narrow:
                break
            for proposal in narrow:
                world.write(proposal.guards, proposal.writes)


@pytest.mark.parametrize("seed", range(4))
def test_what_a_glance_shows_to_be_settled_is(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Whatever the partitions' states and the requests are, the partitions that `_settled` skips need no decision."""
    pick = Random(seed)
    at_a_glance, passed_over = decide_module._settled, 0
    for _ in range(400):
        world = World()
        for broker in range(1, 4):
            if pick.random() < 0.9:
                world.broker(broker, pick.choices(list(BrokerState), [1, 8, 1])[0])
        if pick.random() < 0.5:
            world.keep_eligible_replicas()
        if pick.random() < 0.2:
            world.drain(pick.randrange(1, 4))
        world.topic([[1, 2, 3]])
        world.settle()
        state = world.partition()
        if state.isr and pick.random() < 0.8:
            isr = tuple(pick.sample(state.isr, pick.randrange(1, len(state.isr) + 1)))
            world.state(
                isr=isr,
                isr_epochs=tuple(state.epoch_in_isr(member) + (pick.random() < 0.1) for member in isr),
                leader=pick.choice([*isr, *isr, NO_LEADER]),
                elr=pick.choice([(), (), (3,)]),
                last_known_elr=pick.choice([(), (), (2,)]),
                restored=pick.random() < 0.1,
                recovering=pick.random() < 0.1,
            )
            state = world.partition()
            world.state(elr_epochs=(1,) * len(state.elr))
        if pick.random() < 0.1:
            world.reassign(pick.choice([None, (1, 2), (3, 2, 1)]))
        if pick.random() < 0.1:
            world.put(keys.election(T, 0), Election(pick.random() < 0.5))
        defaults = {
            "min.insync.replicas": pick.choice("123"),
            UNCLEAN: pick.choice(["true", "false"]),
        }
        shown = world.proposals(defaults)
        passed_over += at_a_glance(
            world.image, (T, 0), {b.id: b.epoch for b in world.image.brokers.values() if b.electable}
        )
        monkeypatch.setattr(decide_module, "_settled", lambda *_: False)
        assert world.proposals(defaults) == shown
        monkeypatch.setattr(decide_module, "_settled", at_a_glance)
    assert passed_over > 50
