"""The rule of elections in examples: brokers die, drain and come back, and the controller decides by the rule."""

from __future__ import annotations

from ottla.metadata import keys
from ottla.metadata.model.brokers import BrokerState
from ottla.metadata.model.partitions import NO_LEADER, Election
from ottla.metadata.model.reports import MISSING, UNREADABLE, LogEnd, Report
from tests.unit.controller.world import T, World


def test_a_single_replica_follows_its_broker() -> None:
    world = World()
    world.broker(1)
    world.topic([[1]])
    world.settle()
    first = world.partition()
    assert (first.leader, first.leader_epoch, first.isr) == (1, 0, (1,))
    world.delete(keys.broker(1))
    world.settle()
    gone = world.partition()
    assert (gone.leader, gone.leader_epoch, gone.isr) == (NO_LEADER, 1, (1,))
    world.broker(1, BrokerState.STARTING)
    world.settle()
    assert world.partition().leader == NO_LEADER
    world.broker(1)
    world.settle()
    back = world.partition()
    assert (back.leader, back.leader_epoch) == (1, 2)
    assert back.leads(1, world.image.brokers[1].epoch)


def test_a_restart_that_nobody_saw_is_a_death_and_a_birth() -> None:
    world = World()
    for broker in (1, 2, 3):
        world.broker(broker)
    world.topic([[1, 2, 3]])
    world.settle()
    key = keys.broker(1)
    world.delete(key)
    world.broker(1)  # broker 1 is gone and back before the controller decides
    world.settle()
    partition = world.partition()
    assert partition.leader == 2
    assert partition.isr == (2, 3)
    assert partition.leader_epoch == 1


def test_a_lone_leader_that_restarted_unseen_gets_a_new_epoch() -> None:
    world = World()
    world.broker(1)
    world.topic([[1]])
    world.settle()
    world.delete(keys.broker(1))
    world.broker(1)
    assert not world.partition().leads(1, world.image.brokers[1].epoch)
    world.settle()
    assert world.partition().leader_epoch == 1
    assert world.partition().leads(1, world.image.brokers[1].epoch)


def test_a_draining_broker_hands_over_and_leaves_the_isr() -> None:
    world = World()
    for broker in (1, 2):
        world.broker(broker)
    world.topic([[1, 2], [1]])
    world.settle()
    world.broker(1, BrokerState.DRAINING)
    world.settle()
    assert (world.partition(0).leader, world.partition(0).isr) == (2, (2,))
    assert (world.partition(1).leader, world.partition(1).isr, world.partition(1).leader_epoch) == (1, (1,), 0)


def test_whoever_restarted_does_not_displace_a_draining_survivor() -> None:
    world = World()
    for broker in (1, 2):
        world.broker(broker)
    world.topic([[1, 2]])
    world.settle()
    world.broker(2, BrokerState.DRAINING)
    world.delete(keys.broker(1))
    world.broker(1)
    world.settle()
    assert (world.partition().leader, world.partition().isr) == (NO_LEADER, (2,))
    world.delete(keys.broker(2))
    world.settle()
    assert (world.partition().leader, world.partition().isr) == (NO_LEADER, (2,))
    world.broker(2)
    world.settle()
    assert (world.partition().leader, world.partition().isr) == (2, (2,))


def both_back_from_power_loss(first: LogEnd, second: LogEnd) -> World:
    """Two members of an ISR are back after an unclean stop, with these reports of their logs."""
    world = World()
    world.keep_eligible_replicas()
    for broker in (1, 2):
        world.broker(broker)
    world.topic([[1, 2]])
    world.settle()
    for broker in (1, 2):
        world.stop(broker)
    world.settle()
    for broker, end in ((1, first), (2, second)):
        world.broker(broker)
        world.put(keys.report(broker, 0), Report(world.image.brokers[broker].epoch, 1, {(T, 0): end}))
    world.settle()
    return world


def test_a_log_whose_directory_has_failed_is_waited_for_when_all_who_were_in_sync_came_back_uncleanly() -> None:
    """The failed directory may have records that the other log has lost. In this test it can be read again after the
    next start."""
    world = both_back_from_power_loss(LogEnd(0, 43, 0), UNREADABLE)
    assert world.partition().leader == NO_LEADER
    world.restart(2, clean=False)
    world.put(keys.report(2, 0), Report(world.image.brokers[2].epoch, 1, {(T, 0): LogEnd(0, 50, 0)}))
    world.settle()
    assert world.partition().leader == 2


def test_a_log_that_is_gone_is_not_waited_for() -> None:
    assert both_back_from_power_loss(LogEnd(0, 43, 0), MISSING).partition().leader == 1
    assert both_back_from_power_loss(MISSING, MISSING).partition().leader == NO_LEADER


def test_a_wished_unclean_election_takes_the_log_that_can_be_read() -> None:
    world = both_back_from_power_loss(UNREADABLE, LogEnd(0, 43, 0))
    world.put(keys.election(T, 0), Election(unclean=True))
    world.settle()
    assert world.partition().leader == 2
