"""After a restore from a backup, no partition gets a leader before all brokers have reported. The leader then has all
committed records that any log still has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from ottla.controller.recovery import EPOCHS_SKIPPED
from ottla.metadata import keys
from ottla.metadata.backup import lines_of, read_backup, restored
from ottla.metadata.model.brokers import NO_EPOCH, BrokerState
from ottla.metadata.model.cluster import Cluster
from ottla.metadata.model.partitions import NO_LEADER, Election, Partition
from ottla.metadata.model.reports import LogEnd, Report
from ottla.metadata.store import Put, Snapshot
from tests.unit.controller.replicated import BROKERS, Log, Replicated
from tests.unit.controller.world import T, World
from tests.unit.examples import examples

SEEDS = examples(600)


def back_up(world: World) -> Sequence[str]:
    if keys.cluster.key not in world.entries:
        world.put(keys.cluster.key, Cluster("c"))
    return list(lines_of(Snapshot(world.image.revision, tuple(world.entries.values()))))


def restore(backup: Sequence[str], gone: Sequence[int] = ()) -> World:
    """A new store, filled from the backup; its revisions begin anew."""
    world = World()
    cluster, puts = restored(read_backup(backup), 1, 0, gone)
    assert world.write([], puts)
    world.put(keys.cluster.key, cluster)
    return world


def report(world: World, broker: int, end: LogEnd | None, parts: int = 1) -> None:
    """Registers the broker, and then writes the report of its log."""
    if broker not in world.image.brokers:
        world.broker(broker)
        world.settle()
    epoch = world.image.brokers[broker].epoch
    for part in range(parts):
        logs = {(T, 0): end} if end is not None and part == parts - 1 else {}
        world.put(keys.report(broker, part), Report(epoch, parts, logs))


def has(log: Log, committed: Log) -> int:
    """The number of committed records that a log begins with."""
    same = 0
    while same < min(len(log), len(committed)) and log[same] == committed[same]:
        same += 1
    return same


class Epochs:
    """The leader epochs that brokers know besides the epochs of their records: each leader remembers its own epoch and
    the offset at which this epoch began.
    """

    def __init__(self, cluster: Replicated) -> None:
        self.cluster = cluster
        self.own: dict[int, tuple[int, int]] = {}  # broker → the epoch that it began, and its start offset
        self.logs = dict(cluster.logs)
        self.forgotten = False  # whether a killed leader lost an epoch without a record, which recovery can't find

    def step(self) -> None:
        kills, brokers = self.cluster.seen.get("kills", 0), self.cluster.world.image.brokers
        self.cluster.step()
        killing = self.cluster.seen.get("kills", 0) > kills
        for broker, log in self.cluster.logs.items():
            kept = has(log, self.logs[broker])
            killed = killing and brokers.get(broker) is not self.cluster.world.image.brokers.get(broker)
            if broker in self.own and (kept < self.own[broker][1] or (killed and kept == self.own[broker][1])):
                self.forgotten |= killed
                del self.own[broker]
        self.logs = dict(self.cluster.logs)
        leader, epoch = self.cluster.leader, self.cluster.state.leader_epoch
        if leader is not None and self.own.get(leader, (NO_EPOCH, 0))[0] != epoch:
            self.own[leader] = epoch, len(self.logs[leader])

    def end(self, broker: int) -> LogEnd | None:
        log = self.logs[broker]
        if not log and broker not in self.cluster.state.replicas:
            return None
        last = max(log[-1][0] if log else NO_EPOCH, self.own.get(broker, (NO_EPOCH, 0))[0])
        return LogEnd(last, len(log), self.cluster.state.leader_epoch)


def test_a_stale_backup_loses_nothing_that_a_log_still_has() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        random = Random(seed)
        before = Replicated(random, eligible=random.random() < 0.5)
        epochs = Epochs(before)
        for _ in range(random.randrange(1, 120)):
            epochs.step()
        backup = back_up(before.world)
        for _ in range(random.randrange(120)):
            epochs.step()
        if epochs.forgotten or before.seen.get("losses"):
            continue
        newest = before.state.leader_epoch
        world = restore(backup)
        old = world.partition()
        # A broker that the backup doesn't know isn't waited for, but its report counts if it comes in time.
        awaited = () if world.image.cluster is None else world.image.cluster.awaited
        for broker in sorted(random.sample(BROKERS, len(BROKERS)), key=lambda broker: broker in awaited):
            assert world.partition() == old, f"seed {seed}: decided before broker {broker} has reported"
            report(world, broker, epochs.end(broker), random.choice((1, 1, 3)))
            world.settle()
        new = world.partition()
        leader = new.leader
        assert not new.restored, f"seed {seed}: the partition has no leader"
        assert new.leads(leader, world.image.brokers[leader].epoch)
        assert new.leader_epoch > newest
        best = max(has(log, before.committed) for log in before.logs.values())
        assert has(before.logs[leader], before.committed) == best, (
            f"seed {seed}: {leader} leads, without all records of {before.logs}"
        )
        seen["runs"] += 1
        seen["moved since"] += leader not in old.replicas
        seen["another leader"] += leader != before.state.leader
        seen["committed since"] += best > 0
        assert not world.proposals()
    assert min(seen.values()) >= max(SEEDS // 200, 1), seen


@pytest.fixture
def world() -> World:
    """One partition on three brokers, restored from a backup."""
    before = World()
    for broker in (1, 2, 3):
        before.broker(broker)
    before.topic([[1, 2, 3]])
    before.settle()
    return restore(back_up(before))


def led(world: World) -> Partition:
    world.settle()
    return world.partition()


def test_the_greatest_log_leads_above_every_epoch(world: World) -> None:
    report(world, 1, LogEnd(2, 90, 2))
    report(world, 2, LogEnd(3, 10, 3))
    assert led(world).leader == NO_LEADER
    report(world, 3, LogEnd(3, 9, 8))
    partition = led(world)
    assert (partition.leader, partition.isr, partition.replicas) == (2, (2,), (1, 2, 3))
    assert partition.leader_epoch == 8 + EPOCHS_SKIPPED


def test_of_equal_logs_the_preferred_one_leads(world: World) -> None:
    for broker in (3, 2, 1):
        report(world, broker, LogEnd(3, 10, 3))
    assert led(world).leader == 1


def test_a_partition_that_was_moved_after_the_backup_is_copied_back(world: World) -> None:
    for broker in (1, 2, 3):
        report(world, broker, LogEnd(-1, 0, 0))
    world.restart(3, clean=False)
    report(world, 4, LogEnd(3, 10, 3))
    assert led(world).leader == NO_LEADER
    report(world, 3, LogEnd(-1, 0, 0))
    partition = led(world)
    assert (partition.leader, partition.replicas, partition.removing) == (4, (1, 2, 3, 4), (4,))
    world.state(isr=(4, 1, 2, 3), isr_epochs=world.epochs(4, 1, 2, 3))
    partition = led(world)
    assert (partition.leader, partition.replicas, partition.isr) == (1, (1, 2, 3), (1, 2, 3))


def test_a_report_counts_when_it_is_whole_and_of_this_registration(world: World) -> None:
    report(world, 1, LogEnd(1, 1, 1))
    report(world, 2, LogEnd(1, 2, 1))
    world.broker(3)
    end = Report(world.image.brokers[3].epoch, 2, {(T, 0): LogEnd(1, 3, 1)})
    world.put(keys.report(3, 0), end)
    assert led(world).leader == NO_LEADER
    world.restart(3, clean=True)
    world.put(keys.report(3, 1), end)
    assert led(world).leader == NO_LEADER
    report(world, 3, LogEnd(1, 3, 1))
    assert led(world).leader == 3


def test_brokers_that_are_gone_are_not_waited_for(world: World) -> None:
    report(world, 1, LogEnd(1, 1, 1))
    report(world, 2, LogEnd(1, 2, 1))
    assert led(world).leader == NO_LEADER
    world.put(keys.cluster.key, Cluster("c", 1, awaited=(1, 2)))
    assert led(world).leader == 2


def test_an_unclean_election_ends_the_waiting(world: World) -> None:
    report(world, 1, LogEnd(1, 1, 1))
    world.put(keys.election(T, 0), Election())
    assert led(world).leader == NO_LEADER
    report(world, 2, LogEnd(1, 2, 1))
    world.put(keys.election(T, 0), Election(unclean=True))
    assert led(world).leader == 2


def test_a_log_that_cannot_be_read_is_waited_for(world: World) -> None:
    report(world, 1, LogEnd(1, 1, 1))
    report(world, 2, LogEnd(1, 2, 1))
    report(world, 3, LogEnd(-1, -1, -1))
    assert led(world).leader == NO_LEADER
    world.put(keys.election(T, 0), Election(unclean=True))
    assert led(world).leader == 2


def test_a_broker_that_drains_is_waited_for(world: World) -> None:
    report(world, 1, LogEnd(1, 1, 1))
    report(world, 2, LogEnd(1, 2, 1))
    world.broker(3, BrokerState.DRAINING)
    report(world, 3, LogEnd(1, 3, 1))
    assert led(world).leader == NO_LEADER


def test_a_wished_move_waits_for_the_leader(world: World) -> None:
    world.reassign([2, 3])
    assert led(world).leader == NO_LEADER
    for broker in (1, 2, 3):
        report(world, broker, LogEnd(1, 1, 1))
    partition = led(world)
    assert (partition.leader, partition.replicas, partition.removing) == (1, (2, 3, 1), (1,))


def test_half_a_store_is_left_alone() -> None:
    world = World()
    world.put(keys.cluster.key, Cluster("c", restoring=True))
    world.broker(1)
    world.topic([[1]])
    assert not world.proposals()
    assert world.write([], [Put(keys.cluster.key, Cluster("c").encode())])
    assert world.proposals()
