"""Moves of replicas, step by step, as an administrator sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ottla.controller.decide import decide, imbalanced
from ottla.metadata.model.partitions import NO_LEADER, Partition
from tests.unit.controller.world import T, World


def world(*replicas: int, brokers: Sequence[int] = (1, 2, 3, 4, 5)) -> World:
    made = World()
    for broker in brokers:
        made.broker(broker)
    made.topic([replicas])
    made.settle()
    return made


def join(there: World, *members: int) -> None:
    """The leader adds replicas to the ISR."""
    isr = tuple(dict.fromkeys((*there.partition().isr, *members)))
    there.state(isr=isr, isr_epochs=there.epochs(*isr), partition_epoch=there.partition().partition_epoch + 1)


def move(partition: Partition) -> tuple[Any, ...]:
    return partition.replicas, partition.adding, partition.removing


def test_a_move_adds_first_and_removes_when_all_of_the_target_is_in_sync() -> None:
    there = world(1, 2, 3)
    there.reassign((4, 5, 3))
    there.settle()
    assert move(there.partition()) == ((4, 5, 3, 1, 2), (4, 5), (1, 2))
    assert (there.partition().leader, there.partition().isr, there.partition().leader_epoch) == (1, (1, 2, 3), 0)
    assert not there.image.reassignments
    join(there, 4)
    assert not there.proposals()
    join(there, 5)
    there.settle()
    assert move(there.partition()) == ((4, 5, 3), (), ())
    assert (there.partition().leader, there.partition().isr) == (4, (3, 4, 5))
    assert there.partition().leader_epoch == 1
    assert there.partition().original == ()


def test_whoever_stays_and_leads_goes_on_under_a_new_epoch() -> None:
    there = world(1, 2)
    there.reassign((3, 1))
    there.settle()
    join(there, 3)
    there.settle()
    assert (there.partition().leader, there.partition().leader_epoch, there.partition().isr) == (1, 1, (1, 3))


def test_growing_adds_and_shrinking_drops_at_once() -> None:
    there = world(1)
    there.reassign((1, 2, 3))
    there.settle()
    assert move(there.partition()) == ((1, 2, 3), (2, 3), ())
    join(there, 2, 3)
    there.settle()
    assert move(there.partition()) == ((1, 2, 3), (), ())
    assert there.partition().leader_epoch == 0
    there.reassign((2,))
    there.settle()
    assert move(there.partition()) == ((2,), (), ())
    assert (there.partition().leader, there.partition().isr, there.partition().leader_epoch) == (2, (2,), 1)


def test_another_order_is_written_at_once() -> None:
    there = world(1, 2, 3)
    there.reassign((3, 1, 2))
    there.settle()
    assert move(there.partition()) == ((3, 1, 2), (), ())
    assert (there.partition().leader, there.partition().leader_epoch) == (1, 0)


def test_cancelling_restores_replicas_and_order() -> None:
    there = world(1, 2, 3)
    there.reassign((4, 3))
    there.settle()
    join(there, 4)
    there.reassign(None)
    there.settle()
    assert move(there.partition()) == ((1, 2, 3), (), ())
    assert (there.partition().isr, there.partition().leader) == ((1, 2, 3), 1)
    assert not there.image.reassignments


def test_what_only_the_new_replicas_have_is_not_cancelled() -> None:
    there = world(1, 2)
    there.reassign((3, 4))
    there.settle()
    join(there, 3)
    there.stop(1)
    there.stop(2)
    there.settle()
    before = there.partition()
    assert (before.leader, before.isr) == (3, (3,))
    there.reassign(None)
    there.settle()
    assert there.partition() == before
    assert not there.image.reassignments


def test_another_target_takes_the_place_of_the_first() -> None:
    there = world(1, 2)
    there.reassign((3, 4))
    there.settle()
    join(there, 3)
    there.reassign((5, 1))
    there.settle()
    # Replica 4 was never in sync, so it is dropped immediately; replica 3 stays in the ISR until the end.
    assert move(there.partition()) == ((5, 1, 2, 3), (5,), (2, 3))
    assert there.partition().isr == (1, 2, 3)
    cancelled = there.copy()
    cancelled.reassign(None)
    cancelled.settle()
    assert move(cancelled.partition()) == ((1, 2), (), ())
    join(there, 5)
    there.settle()
    assert move(there.partition()) == ((5, 1), (), ())


def test_a_target_that_died_holds_the_move_up() -> None:
    there = world(1, 2)
    there.reassign((3, 4))
    there.settle()
    join(there, 3)
    there.stop(4)
    there.settle()
    assert move(there.partition()) == ((3, 4, 1, 2), (3, 4), (1, 2))
    there.broker(4)
    join(there, 4)
    there.restart(3, clean=True)  # replica 3 isn't in sync any more
    there.settle()
    assert there.partition().reassigning
    join(there, 3)
    there.settle()
    assert move(there.partition()) == ((3, 4), (), ())


def test_a_topic_deleted_meanwhile_takes_the_wish_along() -> None:
    there = world(1, 2)
    there.reassign((3, 4))
    late = there.proposals()
    there.delete_topic()
    for proposal in late:
        assert not there.write(proposal.guards, proposal.writes)
    there.settle()
    assert not there.image.partitions
    assert not there.image.reassignments


def test_an_imbalance_is_found_and_undone_when_the_time_comes() -> None:
    there = world(1, 2)
    there.restart(1, clean=True)
    there.settle()
    assert there.partition().leader == 2
    assert not imbalanced(there.image)
    join(there, 1)
    scope = imbalanced(there.image)
    assert scope.preferred == {(T, 0)}
    assert not there.proposals()
    for proposal in decide(there.image, scope, {}):
        assert there.write(proposal.guards, proposal.writes)
    assert (there.partition().leader, there.partition().isr) == (1, (2, 1))
    assert not imbalanced(there.image)


def test_a_drained_broker_leads_only_what_nobody_else_can() -> None:
    there = world(1, 2)
    there.drain(1)
    there.settle()
    assert (there.partition().leader, there.partition().isr) == (2, (1, 2))
    assert not imbalanced(there.image)
    there.stop(2)
    there.settle()
    assert (there.partition().leader, there.partition().isr) == (1, (1,))
    there.broker(2)
    there.settle()
    assert there.partition().leader == 1
    join(there, 2)
    there.settle()
    assert there.partition().leader == 2
    there.drain()
    there.settle()
    assert there.partition().leader == 2
    assert imbalanced(there.image)


@pytest.mark.parametrize("clean", [True, False])
def test_an_eligible_replica_leads_if_its_stop_was_clean(clean: bool) -> None:
    there = World()
    there.keep_eligible_replicas()
    for broker in (1, 2, 3):
        there.broker(broker)
    there.topic([(1, 2, 3)])
    defaults = {"min.insync.replicas": "2"}
    there.settle(defaults)
    epochs = {broker: there.stop(broker) for broker in (3, 2)}
    there.settle(defaults)
    assert (there.partition().isr, there.partition().elr) == ((1,), (2, 3))
    assert there.partition().elr_epochs == (epochs[2], epochs[3])
    there.stop(1)
    there.settle(defaults)
    assert (there.partition().leader, there.partition().isr) == (NO_LEADER, (1,))
    there.broker(2, previous_epoch=epochs[2] if clean else -1)
    there.settle(defaults)
    if clean:
        assert (there.partition().leader, there.partition().isr) == (2, (2,))
        assert there.partition().elr == (1, 3)
    else:
        assert there.partition().leader == NO_LEADER
        assert (there.partition().elr, there.partition().last_known_elr) == ((3,), (2,))
        there.broker(1)  # brokers 1 and 2 are back, but may lack records: the election waits for replica 3
        there.settle(defaults)
        assert there.partition().leader == NO_LEADER
        there.broker(3)
        there.settle(defaults)
        assert (there.partition().leader, there.partition().isr) == (1, (1,))
