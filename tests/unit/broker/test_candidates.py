"""A returning follower joins the ISR while the leader, the only in-sync replica, appends records without a pause.
The high watermark waits for a follower outside the ISR only after the follower has once caught up with the leader."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest

from ottla.broker.counters import TopicCounters
from ottla.broker.isr import IsrChanges
from ottla.broker.loop_quota import LoopQuota
from ottla.broker.partition import Partition
from ottla.metadata.image import Changed
from ottla.metadata.model.brokers import Broker, BrokerState
from ottla.metadata.model.partitions import Partition as PartitionState
from ottla.metadata.store import Committed, Put
from tests.unit.broker.log.workbench import Workbench, batch_of

TOPIC_ID = UUID(int=7)
LAG_S = 30.0
REPLICAS = (0, 1, 2)


class Leader:
    """Broker 0 (epoch 10) leads a partition with three replicas. The clock only moves when the test moves it."""

    def __init__(self, folder: Path, *, isr: tuple[int, ...] = (0,), min_isr: int = 1, lag_s: float = LAG_S) -> None:
        self.now = 1000.0
        self.partition = Partition(
            "t", TOPIC_ID, 0, Workbench(folder).log(), TopicCounters(), lambda: 1_000_000, Mock(), lambda: self.now
        )
        self.partition.min_isr = min_isr
        brokers = {id: Broker(id, 10 + id, {}, state=BrokerState.RUNNING, revision=20 + id) for id in REPLICAS}
        self.image: Any = SimpleNamespace(brokers=brokers, features={}, partition=lambda topic_id, index: self.state)
        self.changes = IsrChanges(0, self, lambda: self.image, lambda: 10, lambda: lag_s, lambda: [self.partition])  # type: ignore[arg-type]
        self.written: list[tuple[int, ...]] = []
        self.state = PartitionState(TOPIC_ID, 0, REPLICAS, isr, tuple(10 + id for id in isr), leader=0, leader_epoch=4)
        self.partition.become_leader(self.state)

    async def transact(self, guards: Any, writes: Any) -> Committed:
        """The metadata store's transaction: the image shows each write immediately."""
        (put,) = writes
        assert isinstance(put, Put)
        entry: Any = SimpleNamespace(key=put.key, value=put.value, create_revision=1, mod_revision=9, lease=0)
        self.state = PartitionState.decode(entry)
        self.written.append(self.state.isr)
        self.partition.become_leader(self.state)
        return Committed(9)

    @property
    def end(self) -> int:
        return self.partition.log.log_end_offset

    @property
    def high_watermark(self) -> int:
        return self.partition.high_watermark

    @property
    def candidates(self) -> frozenset[int]:
        assert self.partition.leading is not None
        return self.partition.leading.candidates

    def append(self, count: int = 1) -> None:
        for _ in range(count):
            batch = batch_of([b"x"])
            self.partition.append(batch, 0, len(batch), 9, LoopQuota(lambda renew: None))

    def fetched(self, replica: int, offset: int, epoch: int | None = None) -> None:
        """Notes a follower's fetch, as the handler of a Fetch request does."""
        if self.partition.follower_fetched(replica, 10 + replica if epoch is None else epoch, offset, 0):
            self.changes.outsider_fetched(self.partition, replica)

    def catches_up(self, replica: int, behind: int = 1) -> None:
        """The follower fetches from the offset at which the leader's log ended at its previous fetch, so it counts as
        caught up. The leader has appended `behind` records in between.
        """
        asked = self.end
        self.fetched(replica, asked)
        self.append(behind)
        self.fetched(replica, asked)

    def registered(self, **brokers: Broker | None) -> None:
        """Replaces registrations, given as `b1` or `b2`; None removes one."""
        known = self.image.brokers | {int(name[1:]): broker for name, broker in brokers.items()}
        self.image.brokers = {id: broker for id, broker in known.items() if broker is not None}
        self.changes.registrations_changed(self.image, Changed(brokers=frozenset({1})))


def playing(main: Any) -> None:
    asyncio.run(main())


@pytest.mark.parametrize("min_isr", [1, 2])
def test_a_follower_that_is_always_one_record_behind_joins_the_isr(tmp_path: Path, min_isr: int) -> None:
    """The leader appends a record between any two fetches, so the follower never asks at the leader's end."""

    async def main() -> None:
        leader = Leader(tmp_path, min_isr=min_isr)
        leader.append(5)
        running = asyncio.create_task(leader.changes.run())
        asked, fetches = 0, 0
        while 1 not in leader.state.isr:
            fetches += 1
            assert fetches < 10, "the follower never reaches the high watermark"
            leader.append()
            leader.now += 0.001
            leader.fetched(1, asked)
            asked = leader.end
            leader.append()
            await asyncio.sleep(0)
            await asyncio.sleep(0.001)
        running.cancel()
        assert leader.written == [(0, 1)]

    playing(main)


def test_the_high_watermark_waits_for_who_is_caught_up_and_moves_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        leader = Leader(tmp_path)
        leader.append(3)
        assert leader.high_watermark == 3
        leader.fetched(1, 0)
        leader.append()
        assert leader.high_watermark == 4, "a follower that was never caught up isn't waited for"
        leader.catches_up(1)
        at = leader.high_watermark
        woken: list[int] = []
        consumer: Any = SimpleNamespace(moved=lambda partition, new_bytes: woken.append(new_bytes))
        leader.partition.waiters.append(consumer)
        committed = leader.partition.committed(at)
        leader.append(5)
        assert (leader.high_watermark, woken, committed.done()) == (at, [], False)
        leader.fetched(1, at + 2)
        assert leader.high_watermark == at + 2
        assert (len(woken), committed.done()) == (1, True), "waiting consumers and producers are told"

    playing(main)


def test_a_stalled_candidate_holds_the_high_watermark_no_longer_than_the_lag_allowed(tmp_path: Path) -> None:
    async def main() -> None:
        leader = Leader(tmp_path, lag_s=0.2)
        loop = asyncio.get_running_loop()
        leader.partition.clock = loop.time
        leader.append()
        began = loop.time()
        leader.catches_up(1)
        leader.append(5)
        assert leader.high_watermark < leader.end
        while leader.high_watermark < leader.end:
            assert loop.time() < began + 5
            await asyncio.sleep(0.01)
        assert loop.time() - began >= 0.2
        assert leader.candidates == frozenset()
        leader.append()
        assert leader.high_watermark == leader.end, "every record is committed at once again"
        leader.changes.stop()

    playing(main)


def test_the_timer_of_one_candidate_doesnt_outlast_the_time_of_another(tmp_path: Path) -> None:
    async def main() -> None:
        leader = Leader(tmp_path)
        leader.append()
        leader.fetched(2, 0)
        leader.fetched(2, leader.end)  # broker 2 has every record now
        leader.now += LAG_S - 5
        leader.append(2)
        leader.catches_up(1)
        (timer,) = leader.changes._candidates._timers.values()
        assert timer.when() - asyncio.get_running_loop().time() <= 5
        leader.changes.stop()

    playing(main)


def draining(broker: Broker) -> Broker:
    return replace(broker, state=BrokerState.DRAINING)


def test_who_drains_or_dies_or_registers_anew_is_not_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        for number, becomes in enumerate((draining, lambda broker: None, lambda broker: replace(broker, epoch=99))):
            leader = Leader(tmp_path / str(number))
            leader.append()
            leader.catches_up(1)
            leader.append(3)
            assert leader.high_watermark < leader.end
            leader.registered(b1=becomes(leader.image.brokers[1]))
            assert leader.candidates == frozenset()
            assert leader.high_watermark == leader.end
            leader.append()
            assert leader.high_watermark == leader.end

    playing(main)


def test_who_may_not_join_is_never_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        leader = Leader(tmp_path)
        leader.append()
        leader.image.brokers = leader.image.brokers | {1: draining(leader.image.brokers[1])}
        leader.catches_up(1)
        leader.append(3)
        assert leader.high_watermark == leader.end

    playing(main)


def test_a_process_that_starts_anew_isnt_caught_up_because_its_predecessor_was(tmp_path: Path) -> None:
    """The new process's disk may be empty. If it counted as caught up, the high watermark would wait for it for the
    whole time that a follower may lag.
    """

    async def main() -> None:
        leader = Leader(tmp_path)
        leader.append()
        leader.catches_up(1)
        leader.registered(b1=replace(leader.image.brokers[1], epoch=99))
        leader.fetched(1, 0, epoch=99)
        leader.append(3)
        assert leader.high_watermark == leader.end

    playing(main)


def test_who_is_no_replica_any_more_is_not_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        leader = Leader(tmp_path)
        leader.append()
        leader.catches_up(1)
        leader.append(3)
        leader.partition.become_leader(replace(leader.state, replicas=(0, 2), partition_epoch=1))
        assert leader.high_watermark == leader.end
        leader.append()
        assert leader.high_watermark == leader.end
        leader.now += LAG_S + 1
        leader.changes._candidates._time_is_over(leader.partition)
        assert leader.high_watermark == leader.end

    playing(main)


def test_a_new_leader_waits_for_nobody_of_the_epoch_before(tmp_path: Path) -> None:
    async def main() -> None:
        leader = Leader(tmp_path)
        leader.append()
        leader.catches_up(1)
        leader.append(3)
        leader.partition.become_leader(replace(leader.state, leader_epoch=6))
        assert leader.candidates == frozenset()
        leader.append()
        assert leader.high_watermark == leader.end
        leader.partition.resign("another one leads")
        leader.changes._candidates._time_is_over(leader.partition)  # the timer from the epoch before

    playing(main)


def test_a_member_of_the_isr_is_no_candidate_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        leader = Leader(tmp_path)
        leader.append()
        leader.catches_up(1)
        leader.partition.become_leader(replace(leader.state, isr=(0, 1), isr_epochs=(10, 11), partition_epoch=1))
        assert leader.candidates == frozenset()

    playing(main)


def test_below_the_minimal_isr_nobody_joins_who_is_far_behind(tmp_path: Path) -> None:
    """Below the minimum the high watermark doesn't move, so a follower that has reached it may lack all newer records
    (KAFKA-19996)."""

    async def main() -> None:
        leader = Leader(tmp_path, min_isr=2)
        leader.append(100)
        assert leader.high_watermark == 0
        running = asyncio.create_task(leader.changes.run())
        leader.fetched(1, 50)
        leader.changes.wants(leader.partition)
        await asyncio.sleep(0.01)
        assert leader.written == []
        leader.fetched(1, 100)
        await asyncio.sleep(0.01)
        assert leader.written == [(0, 1)]
        running.cancel()

    playing(main)


def test_without_candidates_a_leader_alone_looks_at_nothing_but_its_own_end(tmp_path: Path) -> None:
    async def main() -> None:
        leader = Leader(tmp_path)
        assert leader.partition._commits_at_once
        leader.append()
        leader.catches_up(1)
        assert not leader.partition._commits_at_once
        leader.registered(b1=None)
        assert leader.partition._commits_at_once

    playing(main)
