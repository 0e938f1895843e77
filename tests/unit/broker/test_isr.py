"""A broker that can't write leaves the ISR, but only if another broker may lead."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from ottla.broker.isr import IsrChanges, _Proposal
from ottla.broker.replica.leader import LeaderState
from ottla.metadata import keys
from ottla.metadata.model.brokers import Broker, BrokerState
from ottla.metadata.model.partitions import NO_LEADER, Partition
from ottla.metadata.store import Committed, Guard, Put, Write, check_transaction

TOPIC = UUID(int=7)


class Store:
    def __init__(self) -> None:
        self.written: list[tuple[set[str], Partition]] = []

    async def transact(self, guards: Sequence[Guard], writes: Sequence[Write]) -> Committed:
        (put,) = writes
        assert isinstance(put, Put)
        entry: Any = SimpleNamespace(key=put.key, value=put.value, create_revision=1, mod_revision=9, lease=0)
        self.written.append(({guard.key for guard in guards}, Partition.decode(entry)))
        return Committed(9)


def written(
    *, isr: tuple[int, ...], alive: dict[int, int], offline: bool, writable: bool, leader: int = 0
) -> list[Any]:
    """The writes of broker 0, with epoch 10, for a partition whose ISR members were admitted with the epochs 10 +
    id."""
    state = Partition(
        TOPIC, 0, (0, 1, 2), isr, tuple(10 + member for member in isr), leader=leader, leader_epoch=4, revision=8
    )
    brokers = {id: Broker(id, epoch, {}, state=BrokerState.RUNNING) for id, epoch in {0: 10, **alive}.items()}
    image: Any = SimpleNamespace(brokers=brokers, features={}, partition=lambda topic, index: state)
    leading = None if offline else LeaderState(0, state.replicas, isr, 0, 0.0)
    partition: Any = SimpleNamespace(
        topic_id=TOPIC, index=0, leading=leading, offline=offline, epoch=4, in_sync_min=2, high_watermark=0,
        log=SimpleNamespace(log_end_offset=0), clock=lambda: 0.0, isr_moved=lambda: None, frozen=False,
    )  # fmt: skip
    store: Any = Store()

    async def main() -> None:
        changes = IsrChanges(0, store, lambda: image, lambda: 10, lambda: 30.0, lambda: [partition], lambda _: writable)
        changes.wants(partition)
        task = asyncio.create_task(changes.run())
        await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(main())
    return store.written  # type: ignore[no-any-return]


@pytest.mark.parametrize("offline", [True, False])
def test_others_take_over(offline: bool) -> None:
    ((guarded, after),) = written(isr=(0, 1, 2), alive={1: 11, 2: 12}, offline=offline, writable=False)
    assert guarded == {keys.partition(TOPIC, 0), keys.broker(0)}
    assert (after.isr, after.isr_epochs, after.leader, after.leader_epoch) == ((1, 2), (11, 12), NO_LEADER, 5)


def test_a_follower_is_not_waited_for() -> None:
    ((_, after),) = written(isr=(0, 1, 2), alive={1: 11, 2: 12}, offline=True, writable=False, leader=1)
    assert (after.isr, after.leader, after.leader_epoch) == ((1, 2), 1, 4)
    assert written(isr=(1, 2), alive={1: 11, 2: 12}, offline=True, writable=False, leader=1) == [], "it left before"


@pytest.mark.parametrize("offline", [True, False])
@pytest.mark.parametrize(("isr", "alive"), [((0,), {1: 11}), ((0, 1), {}), ((0, 1), {1: 99})])
def test_nobody_else_could_lead(isr: tuple[int, ...], alive: dict[int, int], offline: bool) -> None:
    assert written(isr=isr, alive=alive, offline=offline, writable=False) == []


def test_who_can_write_stays() -> None:
    assert written(isr=(0, 1, 2), alive={1: 11, 2: 12}, offline=False, writable=True) == []


def test_who_joins_is_compared_as_it_was_read() -> None:
    """The transaction compares the revisions of the joining broker's and the leader's registrations: a broker that
    drains, registers anew or is gone changes its registration's key."""
    state = Partition(TOPIC, 0, (0, 1), (0,), (10,), leader=0, leader_epoch=4, revision=8)
    leading = LeaderState(0, state.replicas, state.isr, 0, 0.0)
    leading.fetched(1, 11, 0, 0, 0, 0.0)
    brokers = {id: Broker(id, 10 + id, {}, state=BrokerState.RUNNING, revision=20 + id) for id in (0, 1)}
    image: Any = SimpleNamespace(brokers=brokers, features={}, partition=lambda topic, index: state)
    partition: Any = SimpleNamespace(
        topic_id=TOPIC, index=0, leading=leading, offline=False, epoch=4, in_sync_min=1, high_watermark=0,
        log=SimpleNamespace(log_end_offset=0), clock=lambda: 0.0, frozen=False,
    )  # fmt: skip
    store: Any = Store()
    changes = IsrChanges(0, store, lambda: image, lambda: 10, lambda: 30.0, lambda: [partition], lambda _: True)
    proposal = changes._propose(partition)
    assert proposal is not None
    assert proposal.after.isr == (0, 1)
    expected = {Guard(keys.partition(TOPIC, 0), 8), Guard(keys.broker(0), 20), Guard(keys.broker(1), 21)}
    assert set(proposal.guards) == expected
    for changed in ({"state": BrokerState.DRAINING}, {"epoch": 12, "revision": 30}):
        image.brokers = brokers | {1: replace(brokers[1], **changed)}
        assert changes._propose(partition) is None
    image.brokers = {0: brokers[0]}
    assert changes._propose(partition) is None, "broker 1 isn't registered"


def test_any_number_of_brokers_may_join_at_once() -> None:
    """The transaction compares the registration of each joining broker, and has room for 120 comparisons. So the joins
    are written by several transactions.
    """

    sizes: list[int] = []

    class Checking:
        async def transact(self, guards: Sequence[Guard], writes: Sequence[Write]) -> Committed:
            check_transaction(guards, writes)
            sizes.append(len(writes))
            return Committed(9)

    image: Any = SimpleNamespace(brokers={})
    store: Any = Checking()
    changes = IsrChanges(0, store, lambda: image, lambda: 10, lambda: 30.0, list)
    state = Partition(TOPIC, 0, (0, 1), (0,), (10,), 0)
    proposals: list[Any] = [
        _Proposal(
            SimpleNamespace(topic_id=TOPIC, index=index), None, state, state,  # type: ignore[arg-type]
            tuple(Guard(f"{index}/{broker}", 1) for broker in range(6)),
        )
        for index in range(30)
    ]  # fmt: skip
    assert asyncio.run(changes._write(proposals)) == []
    assert sum(sizes) == 30
