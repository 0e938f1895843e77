"""No follower joins an ISR without all committed records, whatever happens while the change is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from ottla.broker import isr
from ottla.broker.isr import IsrChanges
from ottla.broker.replica.leader import LeaderState
from ottla.metadata import keys
from ottla.metadata.model.brokers import Broker, BrokerState
from ottla.metadata.model.partitions import Partition
from ottla.metadata.store import Committed, Guard, Put, Rejected, UnknownOutcome, Write, check_transaction

TOPIC = UUID(int=7)
END = 5  # the end of the follower that wants to join, and the high watermark at that time


def led(index: int) -> Any:
    """A partition of brokers 0 and 1. Broker 0 leads; broker 1 has all records, but isn't in sync."""
    state = Partition(TOPIC, index, (0, 1), (0,), (10,), leader=0, leader_epoch=4, revision=8)
    leading = LeaderState(0, state.replicas, state.isr, 0, 0.0)
    leading.fetched(1, 11, END, 0, END, 0.0)
    return SimpleNamespace(
        topic_id=TOPIC, index=index, state=state, leading=leading, offline=False, epoch=4, in_sync_min=1,
        high_watermark=END, log=SimpleNamespace(log_end_offset=END), clock=lambda: 0.0, isr_moved=lambda: None,
        frozen=False,
    )  # fmt: skip


def changing(partitions: list[Any], store: Any) -> IsrChanges:
    """The ISR changes of broker 0, for these partitions."""
    brokers = {id: Broker(id, 10 + id, {}, state=BrokerState.RUNNING) for id in (0, 1)}
    image: Any = SimpleNamespace(brokers=brokers, features={}, partition=lambda topic, index: partitions[index].state)
    return IsrChanges(0, store, lambda: image, lambda: 10, lambda: 30.0, lambda: partitions, lambda _: True)


def run(partitions: list[Any], store: Any, until: Callable[[], bool] | None = None) -> None:
    """Asks for an ISR change of each partition, and carries the changes out."""
    changes = changing(partitions, store)
    for partition in partitions:
        changes.wants(partition)
    watched(changes, until)


def watched(changes: IsrChanges, until: Callable[[], bool] | None) -> None:
    """Runs `IsrChanges` until the condition holds, and a moment longer."""

    async def main() -> None:
        task = asyncio.create_task(changes.run())
        async with asyncio.timeout(20):
            while until is not None and not until():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.35)
        task.cancel()

    asyncio.run(main())


@pytest.mark.parametrize(("count", "guards_max"), [(isr._BATCH + 1, 128), (2, 3)])
def test_what_is_committed_while_others_are_written_keeps_who_lacks_it_out(
    monkeypatch: pytest.MonkeyPatch, count: int, guards_max: int
) -> None:
    monkeypatch.setattr(isr, "TRANSACTION_OPERATIONS_MAX", guards_max)
    partitions = [led(index) for index in range(count)]

    class Store:
        written = 0

        async def transact(self, guards: Sequence[Guard], writes: Sequence[Write]) -> Committed:
            assert all(isinstance(write, Put) for write in writes)
            self.written += len(writes)
            last = partitions[-1]
            if 1 not in last.leading.maximal_isr:
                last.high_watermark = END + 1  # only the leader is in sync, so it commits a record
            return Committed(9)

    store = Store()
    run(partitions, store)
    assert store.written >= count - 1
    last = partitions[-1]
    assert last.high_watermark == END or 1 not in last.leading.maximal_isr


def test_a_try_of_unknown_outcome_counts_until_the_metadata_has_shown_it() -> None:
    partition = led(0)
    tries: list[frozenset[int]] = []

    class Store:
        async def transact(self, guards: Sequence[Guard], writes: Sequence[Write]) -> Rejected:
            tries.append(partition.leading.maximal_isr)
            if len(tries) == 1:
                raise UnknownOutcome("it is written, but the answer is lost")
            asyncio.get_running_loop().call_later(0.05, lambda: tries.append(partition.leading.maximal_isr))
            return Rejected({guards[0].key: None})  # the first try's own write has changed the key

    run([partition], Store())
    assert len(tries) >= 3
    assert set(tries) == {frozenset({0, 1})}


@pytest.mark.parametrize("lost", [0, 3])
def test_thousands_join_in_few_transactions_that_share_the_way_to_the_store(lost: int) -> None:
    """One of three brokers leads 3,334 partitions, and another broker is back. Some partitions were changed by another
    writer.
    """
    partitions = [led(index) for index in range(3334)]
    moved = {keys.partition(TOPIC, index) for index in range(lost)}
    sizes: list[int] = []
    under_way: list[int] = [0]

    class Store:
        async def transact(self, guards: Sequence[Guard], writes: Sequence[Write]) -> Committed | Rejected:
            check_transaction(guards, writes)
            under_way.append(under_way[-1] + 1)
            await asyncio.sleep(0)
            under_way.append(under_way[-1] - 1)
            if failed := moved.intersection(guard.key for guard in guards):
                for key in failed:  # the image shows the other writer's change
                    partition = partitions[int(key.rpartition("/")[2])]
                    partition.state = replace(partition.state, isr=(0, 1), isr_epochs=(10, 11))
                return Rejected(dict.fromkeys(failed))
            sizes.append(len(writes))
            return Committed(9)

    run(partitions, Store(), lambda: sum(sizes) >= len(partitions) - lost)
    assert sum(sizes) == len(partitions) - lost
    assert len(sizes) == -(-len(partitions) // isr._BATCH)
    assert max(under_way) == isr._WRITES_MAX


def test_a_write_that_is_not_answered_holds_up_no_other_partition() -> None:
    """The store was cut off during the first write, so its outcome is known only after the request's time-out. The
    second partition's follower joins meanwhile."""
    partitions = [led(0), led(1)]
    written: list[str] = []

    class Store:
        async def transact(self, guards: Sequence[Guard], writes: Sequence[Write]) -> Committed:
            if not written:
                written.append("not answered")
                changes.wants(partitions[1])  # as a fetch of its follower does
                await asyncio.sleep(3600)
            written.extend(write.key for write in writes)
            return Committed(9)

    changes = changing(partitions, Store())
    changes.wants(partitions[0])
    watched(changes, lambda: len(written) > 1)
    assert written[1:] == [keys.partition(TOPIC, 1)]
