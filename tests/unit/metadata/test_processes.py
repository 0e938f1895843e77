"""The modules of each process that use the metadata store (follower, registration, producer ids, administrators'
changes), with a store whose calls fail or whose answers get lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ottla.metadata import follower as following
from ottla.metadata import identities, keys, registration
from ottla.metadata.cluster import join_cluster
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.follower import Follower
from ottla.metadata.identities import ConfigResource
from ottla.metadata.image import Changed, Image
from ottla.metadata.intents.facade import Intents
from ottla.metadata.intents.topics import NewTopic
from ottla.metadata.model.brokers import Broker, BrokerState, Endpoint
from ottla.metadata.model.partitions import Partition
from ottla.metadata.model.settings import Config, Quota
from ottla.metadata.model.topics import Ready, Tombstone, TopicIntent
from ottla.metadata.producer_ids import BLOCK_SIZE, allocate_block
from ottla.metadata.registration import Registration
from ottla.metadata.renewal import RenewalTask
from ottla.metadata.store import Compacted, Delete, ForeignStore, LeaseExpired, Put, Snapshot, StoreUnavailable
from ottla.protocol.errors import ErrorCode, KafkaError

from .faulty import DONE_BUT_UNKNOWN, LOST, OK, REFUSED, FaultyStore

Body = Callable[[FaultyStore], Coroutine[Any, Any, None]]


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Body], None]:
    def runner(body: Body) -> None:
        async def main() -> None:
            store = await EmbeddedStore.open(tmp_path / "metadata.db")
            try:
                async with asyncio.timeout(30):
                    await body(FaultyStore(store))
            finally:
                await store.close()

        asyncio.run(main())

    return runner


def resource(name: str) -> ConfigResource:
    return ConfigResource("topic", name)


async def put(store: FaultyStore, name: str, value: int) -> None:
    await store.transact([], [Put(keys.config(resource(name)), Config({"value": str(value)}).encode())])


@pytest.mark.parametrize("fault", [StoreUnavailable, Compacted])
def test_a_follower_whose_watch_breaks_misses_nothing(
    run: Callable[[Body], None], fault: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_RETRY_S", 0.01)

    async def body(store: FaultyStore) -> None:
        await put(store, "gone", 1)
        follower = Follower(store)
        seen: dict[str, str | None] = {}

        def listener(image: Image, changed: Changed) -> None:
            for each in changed.configs:
                seen[each.name] = image.config(*each).get("value")

        follower.listen(listener)
        await follower.start()
        assert seen == {"gone": "1"}
        task = asyncio.ensure_future(follower.run())
        store.breaks.extend([fault] * 3)
        await store.transact([], [Delete(keys.config(resource("gone")))])
        for number in range(10):
            await put(store, f"f{number % 4}", number)
            await asyncio.sleep(0.01)
        await follower.wait_for_revision((await store.read()).revision, 10)
        assert follower.image == Image.of(await store.read())
        assert seen == {"gone": None, "f0": "8", "f1": "9", "f2": "6", "f3": "7"}
        assert follower.resync_count == (4 if fault is Compacted else 1)
        task.cancel()

    run(body)


def test_waiters_go_on_after_the_listeners_and_give_up_in_time(run: Callable[[Body], None]) -> None:
    async def body(store: FaultyStore) -> None:
        follower = Follower(store)
        await follower.start()
        task = asyncio.ensure_future(follower.run())
        order: list[str] = []
        follower.listen(lambda image, changed: order.append("listener"))

        async def preparer(image: Image, changed: Changed) -> None:
            assert resource("f") in image.configs
            assert resource("f") not in follower.image.configs
            await asyncio.sleep(0.01)
            order.append("preparer")

        follower.prepare(preparer)

        async def wait() -> None:
            await follower.wait(lambda image: image.configs.get(resource("f")), 10)
            order.append("waiter")

        waiting = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        await put(store, "f", 1)
        await waiting
        assert order == ["preparer", "listener", "waiter"]
        with pytest.raises(TimeoutError):
            await follower.wait(lambda image: image.configs.get(resource("never")), 0.05)
        task.cancel()

    run(body)


def test_a_new_snapshot_is_taken_over_with_pauses_and_whole(run: Callable[[Body], None]) -> None:
    async def body(store: FaultyStore) -> None:
        topic_id = identities.uuid_from_text("AAAAAAAAQACAAAAAAAAAAg")
        state = Partition(topic_id, 0, (1,), (1,), (5,), 1).encode()
        for start in range(0, 1500, 100):
            await store.transact([], [Put(keys.partition(topic_id, start + i), state) for i in range(100)])
        topic = Put(keys.topic("t"), TopicIntent("t", topic_id, ((1,),) * 1500).encode())
        await store.transact([], [topic, Put(keys.ready(topic_id), Ready(1500).encode())])
        follower = Follower(store)
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        snapshot = await store.read()
        beside = asyncio.ensure_future(others())
        image = await following._image_of(snapshot)
        beside.cancel()
        assert turns >= len(snapshot.entries) // following._SLICE
        await follower.start()
        assert follower.image == image == Image.of(snapshot)
        assert len(image.topics["t"].partitions) == 1500

    run(body)


def broker(broker_id: int = 1) -> Broker:
    return Broker(broker_id, 0, {"L": Endpoint("L", "h", 9092)}, host="here")


@pytest.mark.parametrize("plan", [[LOST], [DONE_BUT_UNKNOWN], [LOST, DONE_BUT_UNKNOWN, OK]])
def test_a_registration_of_unknown_outcome_becomes_one_registration(
    run: Callable[[Body], None], plan: list[str]
) -> None:
    async def body(store: FaultyStore) -> None:
        own = Registration(store, broker(), RenewalTask(store), 5, told=lambda broker: None)
        store.plan.extend(plan)
        registered = await own.register()
        entry = (await store.read(keys.broker(1))).entries[0]
        assert registered.epoch == entry.create_revision
        store.plan.extend(plan)
        await own.change(BrokerState.RUNNING)
        entry = (await store.read(keys.broker(1))).entries[0]
        assert Broker.decode(entry).state is BrokerState.RUNNING
        assert own.broker.revision == entry.mod_revision
        assert own.epoch == entry.create_revision
        await own.withdraw()
        assert not (await store.read(keys.broker(1))).entries
        with pytest.raises(LeaseExpired):
            await own.change(BrokerState.DRAINING)

    run(body)


def test_a_lost_lease_is_followed_by_a_registration_with_a_new_epoch(
    run: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "_RETRY_S", 0.01)

    async def body(store: FaultyStore) -> None:
        heard: asyncio.Queue[int] = asyncio.Queue()
        own = Registration(
            store, broker(), RenewalTask(store), 0.4, told=lambda registered: heard.put_nowait(registered.epoch)
        )
        first = (await own.register()).epoch
        assert heard.get_nowait() == first
        task = asyncio.ensure_future(own.run())
        await store.revoke((await store.read(keys.broker(1))).entries[0].lease)
        store.plan.extend([REFUSED, REFUSED])
        assert first < await heard.get() == own.epoch
        task.cancel()

    run(body)


def test_a_process_that_was_held_while_it_registered_does_so_once_more(run: Callable[[Body], None]) -> None:
    async def body(store: FaultyStore) -> None:
        own = Registration(store, broker(), RenewalTask(store), 5, told=lambda broker: None)
        transact = store.transact

        async def held(guards: Any, writes: Any) -> Any:
            store.transact = transact  # type: ignore[method-assign]
            await store.revoke(own.lease)
            return await transact(guards, writes)

        store.transact = held  # type: ignore[method-assign]
        registered = await own.register()
        entry = (await store.read(keys.broker(1))).entries[0]
        assert (registered.epoch, own.lease) == (entry.create_revision, entry.lease)

    run(body)


def test_a_registration_that_was_made_under_a_lease_given_up_is_no_predecessor(run: Callable[[Body], None]) -> None:
    """The broker registers anew, the outcome of this write is unknown, and then the store is away. If the registration
    is there afterwards, it is the broker's own.
    """

    async def body(store: FaultyStore) -> None:
        again = asyncio.Event()
        own = Registration(store, broker(), RenewalTask(store), 5, told=lambda broker: again.set())
        first = (await own.register()).epoch
        again.clear()
        keeping = asyncio.ensure_future(own.run())
        store.plan.extend([DONE_BUT_UNKNOWN, REFUSED])
        await store.revoke(own.lease)
        await asyncio.wait_for(again.wait(), 4)
        entry = (await store.read(keys.broker(1))).entries[0]
        assert own.epoch == entry.create_revision
        assert entry.lease == own.lease
        assert first < Broker.decode(entry).previous_epoch < own.epoch
        keeping.cancel()

    run(body)


@pytest.mark.parametrize("plan", [[], [LOST], [DONE_BUT_UNKNOWN], [LOST, DONE_BUT_UNKNOWN, DONE_BUT_UNKNOWN]])
def test_no_producer_id_is_handed_out_twice(run: Callable[[Body], None], plan: list[str]) -> None:
    async def body(store: FaultyStore) -> None:
        store.plan.extend(plan)
        blocks = await asyncio.gather(*(allocate_block(store) for _ in range(20)))
        ids = [number for block in blocks for number in block]
        assert len(set(ids)) == len(ids) == 20 * BLOCK_SIZE

    run(body)


def test_only_the_store_of_its_own_cluster_is_good_for_data(run: Callable[[Body], None]) -> None:
    async def body(store: FaultyStore) -> None:
        with pytest.raises(ForeignStore, match="is empty"):
            await join_cluster(store, "known")
        with pytest.raises(ForeignStore, match="can't be read may belong to a cluster"):
            await join_cluster(store, None, may_begin=False)
        assert (await store.read("")).entries == ()
        store.plan.append(DONE_BUT_UNKNOWN)
        cluster = await join_cluster(store, None)
        assert (await join_cluster(store, cluster.id)).id == cluster.id
        assert (await join_cluster(store, None)).id == cluster.id
        with pytest.raises(ForeignStore, match=cluster.id):
            await join_cluster(store, "another")

    run(body)


async def admin(store: FaultyStore) -> tuple[Intents, Follower, asyncio.Task[None]]:
    await store.transact([], [Put(keys.broker(1), broker().encode().replace(b"starting", b"running"))])
    follower = Follower(store)
    await follower.start()
    task = asyncio.ensure_future(follower.run())
    return Intents(store, follower, Random(1)), follower, task


def test_an_intent_of_unknown_outcome_stands_when_its_request_times_out(run: Callable[[Body], None]) -> None:
    async def body(store: FaultyStore) -> None:
        intents, follower, task = await admin(store)
        for fate in (LOST, DONE_BUT_UNKNOWN):
            store.plan.append(fate)
            with pytest.raises(KafkaError) as raised:  # without a controller the topic never becomes visible
                await intents.create_topic(NewTopic(fate.replace(" ", "-"), 1, 1), 2)
            assert raised.value.code is ErrorCode.request_timed_out
            assert fate.replace(" ", "-") in follower.image.intents
        store.plan.append(REFUSED)
        with pytest.raises(KafkaError, match="can't be reached"):
            await intents.create_topic(NewTopic("x", 1, 1), 5)
        before = store.transactions
        with pytest.raises(KafkaError) as raised:
            await intents.create_topic(NewTopic("y", 1, 1), 0)
        assert raised.value.code is ErrorCode.request_timed_out
        assert store.transactions == before
        task.cancel()

    run(body)


@pytest.mark.parametrize("fate", [OK, LOST, DONE_BUT_UNKNOWN])
def test_settings_of_unknown_outcome_are_edited_exactly_as_asked(run: Callable[[Body], None], fate: str) -> None:
    async def body(store: FaultyStore) -> None:
        intents, follower, task = await admin(store)
        resource = ConfigResource("broker", "")
        store.plan.append(fate)
        await intents.alter_config(resource, lambda present: {**present, "a": "1"})
        store.plan.append(fate)
        await intents.alter_config(resource, lambda present: {**present, "b": "2"})
        assert follower.image.config("broker", "") == {"a": "1", "b": "2"}
        store.plan.append(fate)
        await intents.alter_quota((("user", None),), lambda present: {**present, "r": 1.0})
        assert follower.image.quotas[("user", None),].limits == {"r": 1.0}
        task.cancel()

    run(body)


def test_unknown_outcomes_are_settled_where_other_clusters_move_the_revision(run: Callable[[Body], None]) -> None:
    """On an etcd that several clusters share, a read has the revision of any cluster's last write."""

    async def body(store: FaultyStore) -> None:
        intents, follower, task = await admin(store)
        reading = store.read

        async def read(prefix: str = "") -> Snapshot:
            snapshot = await reading(prefix)
            return snapshot._replace(revision=snapshot.revision + 1_000)

        store.read = read  # type: ignore[method-assign]
        resource = ConfigResource("broker", "")
        store.plan.append(DONE_BUT_UNKNOWN)
        async with asyncio.timeout(5):
            await intents.alter_config(resource, lambda present: {**present, "a": "1"})
        assert follower.image.config("broker", "") == {"a": "1"}
        task.cancel()

    run(body)


def test_settings_of_a_topic_that_grows_meanwhile_are_changed(run: Callable[[Body], None]) -> None:
    async def body(store: FaultyStore) -> None:
        topic_id = identities.uuid_from_text("AAAAAAAAQACAAAAAAAAAAg")
        await store.transact([], [Put(keys.topic("t"), TopicIntent("t", topic_id, ((1,),)).encode())])
        follower = Follower(store)
        await follower.start()  # the follower isn't run yet, so its image is old
        intents = Intents(store, follower, Random(1))
        await store.transact([], [Put(keys.topic("t"), TopicIntent("t", topic_id, ((1,), (2,))).encode())])
        resource = ConfigResource("topic", "t")
        altering = asyncio.ensure_future(intents.alter_config(resource, lambda present: {**present, "a": "1"}))
        await asyncio.sleep(0.05)
        task = asyncio.ensure_future(follower.run())
        await altering
        assert follower.image.config("topic", "t") == {"a": "1"}
        task.cancel()

    run(body)


def test_what_another_broker_has_just_set_can_be_removed(run: Callable[[Body], None]) -> None:
    async def body(store: FaultyStore) -> None:
        follower = Follower(store)
        await follower.start()  # the follower isn't run yet, so its image is old
        intents = Intents(store, follower, Random(1))
        resource, entity = ConfigResource("broker", ""), (("user", None),)
        await store.transact([], [Put(keys.config(resource), Config({"a": "1"}).encode())])
        await store.transact([], [Put(keys.quota(entity), Quota({"r": 1.0}).encode())])
        removals = asyncio.gather(
            intents.alter_config(resource, lambda present: {}), intents.alter_quota(entity, lambda present: {})
        )
        await asyncio.sleep(0.05)
        task = asyncio.ensure_future(follower.run())
        await removals
        assert (await store.read()).entries == ()
        task.cancel()

    run(body)


def test_what_a_later_version_wrote_into_settings_survives_an_edit(run: Callable[[Body], None]) -> None:
    async def body(store: FaultyStore) -> None:
        resource = ConfigResource("group", "g")
        value = Config({"a": "1"}, unknown={"of_later": True})
        await store.transact([], [Put(keys.config(resource), value.encode())])
        intents, follower, task = await admin(store)
        await intents.alter_config(resource, lambda present: {"a": "2"})
        assert follower.image.configs[resource].unknown == {"of_later": True}
        task.cancel()

    run(body)


def test_a_deletion_is_confirmed_when_the_store_is_back(run: Callable[[Body], None]) -> None:
    async def body(store: FaultyStore) -> None:
        topic_id = identities.uuid_from_text("AAAAAAAAQACAAAAAAAAAAg")
        await store.transact([], [Put(keys.tombstone(topic_id), Tombstone(topic_id, "t", (1, 2)).encode())])
        intents, follower, task = await admin(store)
        store.plan.append(REFUSED)
        await intents.confirm_deletion(1, topic_id)
        await follower.wait_for_revision((await store.read()).revision, 5)
        assert follower.image.tombstones[topic_id].pending == (2,)
        task.cancel()

    run(body)


def test_a_deletion_retries_when_the_topic_grew_meanwhile(run: Callable[[Body], None]) -> None:
    async def body(store: FaultyStore) -> None:
        topic_id = identities.uuid_from_text("AAAAAAAAQACAAAAAAAAAAg")
        await store.transact([], [Put(keys.topic("t"), TopicIntent("t", topic_id, ((1,),)).encode())])
        follower = Follower(store)
        await follower.start()  # the follower isn't run yet, so its image is old
        intents = Intents(store, follower, Random(1))
        await store.transact([], [Put(keys.topic("t"), TopicIntent("t", topic_id, ((1,), (2,))).encode())])
        deleting = asyncio.ensure_future(intents.delete_topic(topic_id, 10))
        await asyncio.sleep(0.05)
        task = asyncio.ensure_future(follower.run())
        await deleting
        assert follower.image.tombstones[topic_id].pending == (1, 2)
        await intents.confirm_deletion(2, topic_id)
        await intents.confirm_deletion(1, topic_id)
        await follower.wait_for_revision((await store.read()).revision, 5)
        assert follower.image.tombstones[topic_id].pending == ()
        with pytest.raises(KafkaError) as raised:
            await intents.delete_topic(topic_id, 5)
        assert raised.value.code is ErrorCode.unknown_topic_id
        task.cancel()

    run(body)
