"""The controller as a task: it writes proposals in transactions, and reacts to failed transactions and to the loss of
its lease."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ottla.controller import runner
from ottla.controller.decide import decide, scope_of, whole_scope
from ottla.controller.proposal import Proposal
from ottla.controller.runner import Controller, _batches
from ottla.metadata import identities, keys, lineage
from ottla.metadata.cluster import join_cluster
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.follower import Follower
from ottla.metadata.image import Changed, Image
from ottla.metadata.intents.facade import Intents
from ottla.metadata.intents.topics import NewTopic
from ottla.metadata.model.brokers import Broker, BrokerState, ControllerHolder
from ottla.metadata.model.partitions import Partition
from ottla.metadata.model.topics import Ready, TopicIntent
from ottla.metadata.own_store import OwnStore
from ottla.metadata.registration import Registration
from ottla.metadata.renewal import RenewalTask
from ottla.metadata.store import (
    TRANSACTION_OPERATIONS_MAX,
    TRANSACTION_SIZE_BYTES_MAX,
    Committed,
    Delete,
    Entry,
    ForeignStore,
    Guard,
    LeaseExpired,
    LeaseId,
    Put,
    Rejected,
    Snapshot,
    Store,
    StoreUnavailable,
    Write,
    check_transaction,
)
from tests.unit.controller.world import World
from tests.unit.metadata.faulty import DONE_BUT_UNKNOWN, LOST, OK, REFUSED, FaultyStore
from tests.unit.waiting import until

Body = Callable[[FaultyStore, Follower, Intents, Controller], Coroutine[Any, Any, None]]


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Body], None]:
    """Runs a test with a registered broker, and with a controller whose store can be made to fail."""

    def start(body: Body) -> None:
        async def main() -> None:
            store = await EmbeddedStore.open(tmp_path / "metadata.db")
            follower = Follower(store)
            await follower.start()
            await Registration(
                store, Broker(1, 0, {}, state=BrokerState.RUNNING), RenewalTask(store), told=lambda broker: None
            ).register()
            faulty = FaultyStore(store)
            controller = Controller(faulty, follower, "test")
            tasks = [asyncio.ensure_future(each()) for each in (follower.run, controller.run)]
            try:
                async with asyncio.timeout(30):
                    await follower.wait(lambda image: image.controller, 10)
                    await body(faulty, follower, Intents(store, follower, Random(1)), controller)
                assert not any(task.done() for task in tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await store.close()

        asyncio.run(main())

    return start


async def another_term(follower: Follower, than: int, within_s: float) -> ControllerHolder:
    """Waits until the controller's key is newer than this revision; returns the key's value."""
    found: ControllerHolder = await follower.wait(
        lambda image: image.controller if image.controller and image.controller.revision > than else None, within_s
    )
    return found


proposals = st.lists(st.tuples(st.integers(0, 101), st.integers(1, 101), st.integers(0, 40_000)), max_size=60)


@given(proposals)
def test_every_proposal_is_in_one_batch_that_a_store_accepts(shapes: list[tuple[int, int, int]]) -> None:
    made = [
        Proposal(
            (Guard("shared", 7), *(Guard(f"g{number}/{i}", 1) for i in range(guards))),
            tuple(Put(f"w{number}/{i}", bytes(size // writes)) for i in range(writes)),
        )
        for number, (guards, writes, size) in enumerate(shapes)
    ]
    batches = list(_batches(made))
    assert [proposal for batch in batches for proposal in batch] == made
    for batch in batches:
        guards, writes = runner._merged(batch)
        check_transaction([Guard(keys.controller.key, 1), *guards], writes)
        assert sum(runner._size(write) for write in writes) <= TRANSACTION_SIZE_BYTES_MAX


def test_small_proposals_share_transactions() -> None:
    made = [Proposal((Guard(f"g{i}", 0), Guard("topic", 3)), (Put(f"w{i}", b""),)) for i in range(1000)]
    assert len(list(_batches(made))) == -(-1000 // (TRANSACTION_OPERATIONS_MAX - 2))


@pytest.mark.parametrize("state", ["dead", "draining", "registered anew", "controller"])
def test_leaders_are_elected_before_isrs_lose_a_follower(state: str) -> None:
    world = World()
    for broker_id in range(3):
        world.broker(broker_id)
    world.topic([[(index + step) % 3 for step in range(3)] for index in range(900)])
    world.settle()
    world.changed = Changed()
    if state == "draining":
        world.broker(0, BrokerState.DRAINING)
    elif state == "registered anew":
        world.restart(0, clean=True)
    else:
        world.stop(0)
    scope = whole_scope(world.image) if state == "controller" else scope_of(world.image, world.changed)
    transactions = [batch for part in runner._slices(scope) for batch in _batches(decide(world.image, part, {}))]
    epochs = [
        {Partition.decode(entry(write)).leader_epoch for each in batch for write in each.writes}
        for batch in transactions
    ]
    assert epochs[:3] == [{1}, {1}, {1}]
    assert all(later == {0} for later in epochs[3:])
    assert sum(len(batch) for batch in transactions) == 900


def entry(write: Any) -> Entry:
    return Entry(write.key, write.value, 1, 1)


@pytest.mark.parametrize("seed", range(3))
def test_topics_come_into_being_whatever_happens_to_the_writes(run: Any, seed: int) -> None:
    async def body(store: FaultyStore, follower: Follower, intents: Intents, controller: Controller) -> None:
        store.plan.extend(Random(seed).choices([OK, LOST, DONE_BUT_UNKNOWN], [3, 1, 1], k=30))
        await asyncio.gather(*(intents.create_topic(NewTopic(f"t{i}", 130 if i < 2 else 2, 1), 20) for i in range(8)))
        assert [len(follower.image.topics[f"t{i}"].partitions) for i in range(8)] == [130, 130, *[2] * 6]

    run(body)


def test_transactions_share_the_way_to_the_store(run: Any) -> None:
    async def body(store: FaultyStore, follower: Follower, intents: Intents, controller: Controller) -> None:
        under_way: list[int] = [0]
        transact = store.transact

        async def counted(guards: Any, writes: Any) -> Any:
            under_way.append(under_way[-1] + 1)
            try:
                return await transact(guards, writes)
            finally:
                under_way.append(under_way[-1] - 1)

        store.transact = counted  # type: ignore[method-assign]
        await intents.create_topic(NewTopic("t", 1500, 1), 20)
        assert max(under_way) == runner._WRITES_MAX

    run(body)


def test_one_rejected_proposal_does_not_hold_up_the_others(run: Any) -> None:
    async def body(store: FaultyStore, follower: Follower, intents: Intents, controller: Controller) -> None:
        first, second = (identities.uuid_from_text(f"AAAAAAAAQACAAAAAAAAAA{letter}") for letter in "gw")
        state = Partition(first, 1, (1,), (1,), (follower.image.brokers[1].epoch,), 1)
        # The controller's image is held back, so that it proposes a state that already exists.
        held = asyncio.Event()

        async def hold(image: Any, changed: Any) -> None:
            if first in image.partitions:
                await held.wait()

        follower.prepare(hold)
        topic = Put(keys.topic("a"), TopicIntent("a", first, ((1,), (1,))).encode())
        other = Put(keys.topic("b"), TopicIntent("b", second, ((1,),)).encode())
        await store.store.transact([], [topic, other])
        await store.store.transact([], [Put(keys.partition(first, 1), state.encode())])
        await asyncio.sleep(0.2)
        held.set()
        await follower.wait(lambda image: image.topics.get("a"), 10)
        await follower.wait(lambda image: image.topics.get("b"), 10)
        assert [len(follower.image.topics[name].partitions) for name in "ab"] == [2, 1]
        assert controller.rejected_count > 0

    run(body)


def test_a_controller_that_lost_its_lease_writes_nothing_until_it_has_a_new_one(run: Any) -> None:
    async def body(store: FaultyStore, follower: Follower, intents: Intents, controller: Controller) -> None:
        holder = (await store.read(keys.controller.key)).entries[0]
        usurper = await store.store.grant(30)
        await store.store.transact(
            [], [Put(keys.controller.key, holder.value, usurper)]
        )  # as if the lease had ended and another process had been faster
        topic_id = identities.uuid_from_text("AAAAAAAAQACAAAAAAAAAAg")
        await store.store.transact([], [Put(keys.topic("t"), TopicIntent("t", topic_id, ((1,),)).encode())])
        await asyncio.sleep(0.3)
        assert not (await store.read(keys.partition.prefix)).entries
        assert not controller.active
        await store.store.transact([], [Delete(keys.controller.key)])
        assert await follower.wait(lambda image: image.topics.get("t"), 10)
        assert controller.active
        mark = (await store.read(keys.ready(topic_id))).entries[0]
        assert Ready.decode(mark).partitions == 1

    run(body)


def test_leaders_are_balanced_when_the_time_comes(tmp_path: Path) -> None:
    async def main() -> None:
        store = await EmbeddedStore.open(tmp_path / "metadata.db")
        follower = Follower(store)
        await follower.start()
        for broker_id in (1, 2):
            await Registration(
                store, Broker(broker_id, 0, {}, state=BrokerState.RUNNING), RenewalTask(store), told=lambda broker: None
            ).register()
        controller = Controller(store, follower, "test", {runner.BALANCE_INTERVAL_S: "0.2"})
        tasks = [asyncio.ensure_future(each()) for each in (follower.run, controller.run)]
        try:
            async with asyncio.timeout(20):
                intents = Intents(store, follower, Random(1))
                await follower.wait(lambda image: len(image.brokers) == 2 or None, 5)
                created = await intents.create_topic(NewTopic("t", assignments=[(0, [2, 1])]), 10)
                state = follower.image.partition(created.id, 0)
                assert state is not None
                key = keys.partition(created.id, 0)
                led_by_other = replace(state, leader=1, leader_epoch=1, partition_epoch=1)
                await store.transact([Guard(key, state.revision)], [Put(key, led_by_other.encode())])
                await follower.wait(lambda image: image.partition(created.id, 0).leader == 1 or None, 5)
                await follower.wait(lambda image: image.partition(created.id, 0).leader == 2 or None, 5)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await store.close()

    asyncio.run(main())


def test_a_controller_that_was_taken_for_dead_takes_office_again(run: Any) -> None:
    async def body(store: FaultyStore, follower: Follower, intents: Intents, controller: Controller) -> None:
        holder = (await store.read(keys.controller.key)).entries[0]
        await store.store.transact([Guard(keys.controller.key, holder.mod_revision)], [Delete(keys.controller.key)])

        assert (await another_term(follower, holder.mod_revision, 5)).name == "test"
        await intents.create_topic(NewTopic("t", 1, 1), 10)
        assert controller.active

    run(body)


def test_a_controller_that_could_not_give_up_its_lease_does_not_wait_for_itself(run: Any) -> None:
    async def body(store: FaultyStore, follower: Follower, intents: Intents, controller: Controller) -> None:
        revoke = store.revoke

        async def refused(lease: LeaseId) -> None:
            store.revoke = revoke  # type: ignore[method-assign]
            raise StoreUnavailable("planned")

        transact = store.transact

        async def expired(guards: Any, writes: Any) -> Any:
            store.transact = transact  # type: ignore[method-assign]
            raise LeaseExpired("planned")

        store.revoke, store.transact = refused, expired  # type: ignore[method-assign]
        await intents.create_topic(NewTopic("t", 1, 1), 4)  # much shorter than a session

    run(body)


@pytest.mark.parametrize("fate", [REFUSED, LOST, DONE_BUT_UNKNOWN])
def test_a_write_that_the_store_did_not_take_ends_no_term(run: Any, fate: str) -> None:
    """If the term ended, a slow store would get more work: the controller would revoke its lease, ask for another one,
    and decide everything anew."""

    async def body(store: FaultyStore, follower: Follower, intents: Intents, controller: Controller) -> None:
        term = follower.image.controller
        for number in range(3):
            store.plan.append(fate)
            await intents.create_topic(NewTopic(f"t{number}", 1, 1), 10)
            assert not store.plan
        assert follower.image.controller == term
        assert controller.active

    run(body)


# ---- lineage words


class Counting(FaultyStore):
    """A store that counts reads in `reads`, and notes each transaction in `asked`: its time, whether it wrote a lineage
    word (a random string by which processes recognise the store, `ottla.metadata.lineage`), and whether it was
    rejected."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.asked: list[tuple[float, bool, bool]] = []
        self.reads = 0

    async def transact(self, guards: Any, writes: Any) -> Committed | Rejected:
        at = asyncio.get_running_loop().time()
        result = await self.store.transact(guards, writes)
        of_lineage = any(write.key.startswith(keys.lineage.prefix) for write in writes)
        self.asked.append((at, of_lineage, isinstance(result, Rejected)))
        return result

    async def read(self, prefix: str = "") -> Snapshot:
        self.reads += 1
        return await self.store.read(prefix)

    @property
    def words(self) -> list[float]:
        return [at for at, of_lineage, rejected in self.asked if of_lineage and not rejected]


@asynccontextmanager
async def counted_controller(path: Path) -> AsyncIterator[tuple[Counting, Follower, Intents, Controller]]:
    """A controller whose connection to the store notes transactions and counts reads (`Counting`), and checks that the
    store is its cluster's own (`OwnStore`), as a broker's connection does. The follower and the Intents that are
    yielded have another connection to the same store: a test changes metadata by them, as an administrator would.
    """
    stores = [await EmbeddedStore.open(path / "metadata.db") for _ in range(2)]
    counting = Counting(stores[0])
    own = OwnStore(counting, None)
    await join_cluster(own, None)
    followers = [Follower(own), Follower(stores[1])]
    controller = Controller(own, followers[0], "test")
    tasks = []
    try:
        async with asyncio.timeout(60):
            for follower in followers:
                await follower.start()
                tasks.append(asyncio.ensure_future(follower.run()))
            tasks.append(asyncio.ensure_future(controller.run()))
            await Registration(
                stores[1], Broker(1, 0, {}, state=BrokerState.RUNNING), RenewalTask(stores[1]), told=lambda broker: None
            ).register()
            await followers[1].wait(lambda image: image.controller, 10)
            yield counting, followers[1], Intents(stores[1], followers[1], Random(1)), controller
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for store in stores:
            await store.close()


def test_the_first_decision_after_some_quiet_is_not_rejected_by_the_lineage_word_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller adds random strings (words) to the store, by which processes recognise the store. Before the
    fix, a word was written at the same time as the transactions of the controller's decisions. These transactions
    compare the newest word, so they were rejected, and four more calls had to check whether the store is the right one.
    """
    monkeypatch.setattr(lineage, "INTERVAL_S", 0.2)

    async def main() -> None:
        async with counted_controller(tmp_path) as (store, follower, intents, _):
            await follower.wait(lambda image: image.lineage or None, 10)
            await asyncio.sleep(0.5)
            store.asked.clear()
            store.reads = 0
            for number in range(10):
                words = len(store.words)
                await intents.create_topic(NewTopic(f"t{number}", 3, 1), 10)
                await asyncio.sleep(0.4)  # longer than the interval of words
                assert len(store.words) > words
            assert not [at for at, _, rejected in store.asked if rejected]
            assert store.reads == 0

    asyncio.run(main())


def test_the_first_lineage_word_of_a_store_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first word is written, only the revision of the key `cluster` distinguishes this store from another
    one."""
    monkeypatch.setattr(lineage, "INTERVAL_S", 300.0)

    async def main() -> None:
        async with counted_controller(tmp_path) as (_, follower, _, _):
            await follower.wait(lambda image: image.lineage or None, 30)

    asyncio.run(main())


def test_no_lineage_word_is_written_soon_after_a_term_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "INTERVAL_S", 1.0)

    async def main() -> None:
        async with counted_controller(tmp_path) as (store, follower, _, _):
            await follower.wait(lambda image: image.lineage or None, 20)
            for _ in range(3):
                holder = (await store.store.read(keys.controller.key)).entries[0]
                count, began = len(store.words), asyncio.get_running_loop().time()
                await store.store.transact(
                    [Guard(keys.controller.key, holder.mod_revision)], [Delete(keys.controller.key)]
                )
                await until(lambda count=count: len(store.words) > count)  # type: ignore[misc]
                assert store.words[-1] - began >= 1.0

    asyncio.run(main())


def test_lineage_words_come_although_there_is_always_something_to_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "INTERVAL_S", 0.3)

    async def main() -> None:
        async with counted_controller(tmp_path) as (store, _, intents, _):

            async def create(first: int) -> None:
                for number in range(first, 10_000, 4):
                    await intents.create_topic(NewTopic(f"t{number}", 1, 1), 30)

            busy = asyncio.gather(*(create(first) for first in range(4)))
            await until(lambda: busy.done() or len(store.words) >= 4)
            assert not busy.done()
            gaps = [after - before for before, after in pairwise(store.words)]
            # The controller takes the time before its store is asked, so that a pause of the machine shortens a gap.
            assert min(gaps) >= 0.1
            busy.cancel()

    asyncio.run(main())


def test_a_lineage_word_that_a_foreign_store_refuses_ends_the_term(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal of any other write ends the term, too. Before the fix, the controller logged that it would write the
    refused word later, and continued to decide.
    """
    monkeypatch.setattr(lineage, "INTERVAL_S", 0.2)

    async def body(store: FaultyStore, follower: Follower, intents: Intents, controller: Controller) -> None:
        await follower.wait(lambda image: image.lineage or None, 10)
        term, refused = follower.image.controller, []
        assert term is not None

        async def transact(guards: Sequence[Guard], writes: Sequence[Write]) -> Committed | Rejected:
            if not refused and any(write.key.startswith(keys.lineage.prefix) for write in writes):
                refused.append(writes)
                raise ForeignStore("planned")
            return await FaultyStore.transact(store, guards, writes)

        store.transact = transact  # type: ignore[method-assign]
        await intents.create_topic(NewTopic("t", 1, 1), 10)
        await until(lambda: bool(refused))
        await another_term(follower, term.revision, 5)

    run(body)


def test_a_foreign_store_that_keeps_no_lease_alive_ends_the_term_at_once(run: Any) -> None:
    """Before the fix, the controller waited for a whole session, as it does for a store that doesn't answer."""

    async def body(store: FaultyStore, follower: Follower, intents: Intents, controller: Controller) -> None:
        term, keep_alive = follower.image.controller, store.keep_alive
        assert term is not None

        async def refused(lease: LeaseId) -> None:
            store.keep_alive = keep_alive  # type: ignore[method-assign]
            raise ForeignStore("planned")

        store.keep_alive = refused  # type: ignore[method-assign]
        await another_term(follower, term.revision, 10)

    run(body)


class Deaf(FaultyStore):
    """A store that carries out every request, but returns no answer while `hears` is false."""

    hears = True

    async def keep_alive(self, lease: LeaseId) -> None:
        await self.store.keep_alive(lease)
        self._listen()

    async def grant(self, ttl_s: float) -> LeaseId:
        lease = await self.store.grant(ttl_s)
        self._listen()
        return lease

    async def revoke(self, lease: LeaseId) -> None:
        await self.store.revoke(lease)
        self._listen()

    def _listen(self) -> None:
        if not self.hears:
            raise StoreUnavailable("planned")


def named(image: Image) -> str:
    """The name of the controller; empty if there is none."""
    return "" if image.controller is None else image.controller.name


def test_a_controller_that_hears_nothing_makes_way_for_one_that_does(tmp_path: Path) -> None:
    async def main() -> None:
        stores = [await EmbeddedStore.open(tmp_path / "metadata.db") for _ in range(2)]
        followers = [Follower(store) for store in stores]
        deaf = Deaf(stores[0])
        one, other = (
            Controller(store, follower, name, session_s=0.8)
            for store, follower, name in zip((deaf, stores[1]), followers, ("one", "other"), strict=True)
        )
        tasks = [asyncio.ensure_future(one.run())]
        try:
            for follower in followers:
                await follower.start()
                tasks.append(asyncio.ensure_future(follower.run()))
            await followers[1].wait(lambda image: image.controller, 5)
            tasks.append(asyncio.ensure_future(other.run()))
            deaf.hears = False
            await followers[1].wait(lambda image: named(image) == "other" or None, 9)
            await asyncio.sleep(0.1)
            assert (one.active, other.active) == (False, True)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for store in stores:
                await store.close()

    asyncio.run(main())
