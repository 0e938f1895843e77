"""Administrators' changes whose outcome is unknown at first: each is made once, and no request waits in vain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from ottla.controller.runner import Controller
from ottla.metadata import identities, keys, settling
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.features import TRANSACTIONS, transaction_level
from ottla.metadata.follower import Follower
from ottla.metadata.identities import ConfigResource
from ottla.metadata.intents.facade import Intents
from ottla.metadata.intents.features import FeatureUpdate, UpgradeType
from ottla.metadata.intents.topics import NewTopic
from ottla.metadata.model.brokers import Broker, BrokerState
from ottla.metadata.model.settings import Feature
from ottla.metadata.model.topics import TopicIntent
from ottla.metadata.model.users import ScramKeys, Token
from ottla.metadata.store import Committed, Delete, Guard, Put, Rejected, Write
from ottla.protocol.acls import AclBinding, PatternType, Permission
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType
from ottla.protocol.sasl import SCRAM_SHA_256
from tests.unit.metadata.faulty import DONE_BUT_UNKNOWN, LOST, FaultyStore
from tests.unit.waiting import until

ACL = AclBinding(ResourceType.TOPIC, PatternType.LITERAL, "t", "User:u", "*", AclOperation.READ, Permission.DENY)
PATIENCE_S = 20.0  # far longer than any step takes, so a request that waits for it waits in vain


class Cluster:
    """Three brokers, a topic `t` with one partition on brokers 1 and 2, and an administrator whose store fails as
    planned."""

    def __init__(self, store: EmbeddedStore) -> None:
        self.store = store
        self.faulty = FaultyStore(store)
        self.follower = Follower(store)
        self.intents = Intents(self.faulty, self.follower, Random(1))

    async def write(self, *writes: Write) -> None:
        result = await self.store.transact([], list(writes))
        assert isinstance(result, Committed)
        await self.follower.wait_for_revision(result.revision, 10)

    async def register(self, broker_id: int) -> None:
        await self.write(Put(keys.broker(broker_id), Broker(broker_id, 0, {}, state=BrokerState.RUNNING).encode()))


@asynccontextmanager
async def cluster(path: Path) -> AsyncIterator[Cluster]:
    store = await EmbeddedStore.open(path / "metadata.db")
    made = Cluster(store)
    await made.follower.start()
    controller = Controller(store, made.follower, "test")
    tasks = [asyncio.ensure_future(each()) for each in (made.follower.run, controller.run)]
    try:
        async with asyncio.timeout(60):
            for broker_id in (1, 2, 3):
                await made.register(broker_id)
            await made.intents.create_topic(NewTopic("t", assignments=[(0, [1, 2])]), PATIENCE_S)
            yield made
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await store.close()


async def create(made: Cluster) -> None:
    created = await made.intents.create_topic(NewTopic("u", 2, 1), PATIENCE_S)
    assert made.follower.image.topics["u"].id == created.id


async def delete(made: Cluster) -> None:
    await made.intents.delete_topic(made.follower.image.intents["t"].id, PATIENCE_S)
    assert "t" not in made.follower.image.intents


async def grow(made: Cluster) -> None:
    await made.intents.create_partitions("t", 4, None, PATIENCE_S)
    assert len(made.follower.image.topics["t"].partitions) == 4


async def elect(made: Cluster) -> None:
    topic = made.follower.image.topics["t"]
    led_by_the_second = replace(topic.partitions[0], leader=2, leader_epoch=5, partition_epoch=5)
    await made.write(Put(keys.partition(topic.id, 0), led_by_the_second.encode()))
    await made.intents.elect_leader("t", 0, False, PATIENCE_S)
    assert made.follower.image.topics["t"].partitions[0].leader == 1


async def reassign(made: Cluster) -> None:
    await made.intents.reassign("t", 0, (3, 1), True, PATIENCE_S)
    assert made.follower.image.topics["t"].partitions[0].target == (3, 1)


async def cancel(made: Cluster) -> None:
    await Intents(made.store, made.follower).reassign("t", 0, (3, 1), True, PATIENCE_S)
    await made.intents.reassign("t", 0, None, True, PATIENCE_S)
    assert not made.follower.image.topics["t"].partitions[0].reassigning


async def unregister(made: Cluster) -> None:
    await made.intents.unregister_broker(3, PATIENCE_S)
    assert 3 not in made.follower.image.brokers


async def finalise(made: Cluster) -> None:
    await made.intents.update_features({TRANSACTIONS: FeatureUpdate(2, UpgradeType.UPGRADE)}, PATIENCE_S)
    assert transaction_level(made.follower.image) == 2


async def switch_off(made: Cluster) -> None:
    await made.write(Put(keys.feature(TRANSACTIONS), Feature(2).encode()))
    await made.intents.update_features({TRANSACTIONS: FeatureUpdate(0, UpgradeType.SAFE_DOWNGRADE)}, PATIENCE_S)
    assert transaction_level(made.follower.image) == 0


KEYS = ScramKeys(b"salt", b"stored", b"server", 4096)


async def give_a_password(made: Cluster) -> None:
    await made.intents.put_scram("alice", SCRAM_SHA_256, KEYS, PATIENCE_S)
    assert made.follower.image.scram["alice", SCRAM_SHA_256].salt == KEYS.salt


async def take_a_password(made: Cluster) -> None:
    await made.write(Put(keys.scram("alice", SCRAM_SHA_256), KEYS.encode()))
    await made.intents.delete_scram("alice", SCRAM_SHA_256, PATIENCE_S)
    assert not made.follower.image.scram


TOKEN = Token("User:alice", "User:alice", (), 1, 2, 3, {})


async def make_a_token(made: Cluster) -> None:
    await made.intents.put_token("id", TOKEN, PATIENCE_S)
    assert made.follower.image.tokens["id"].owner == "User:alice"


async def renew_a_token(made: Cluster) -> None:
    await made.write(Put(keys.token("id"), TOKEN.encode()))
    await made.intents.change_token("id", lambda token: replace(token, expiry_ms=9), PATIENCE_S)
    assert made.follower.image.tokens["id"].expiry_ms == 9


async def end_a_token(made: Cluster) -> None:
    await made.write(Put(keys.token("id"), TOKEN.encode()))
    assert await made.intents.change_token("id", lambda _: None, PATIENCE_S) is None
    assert not made.follower.image.tokens


CHANGES: Sequence[Callable[[Cluster], Awaitable[None]]] = (
    create,
    delete,
    grow,
    elect,
    reassign,
    cancel,
    unregister,
    finalise,
    switch_off,
    give_a_password,
    take_a_password,
    make_a_token,
    renew_a_token,
    end_a_token,
)


@pytest.mark.parametrize("plan", [[LOST], [DONE_BUT_UNKNOWN], [LOST, DONE_BUT_UNKNOWN], [DONE_BUT_UNKNOWN] * 2])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_change_of_unknown_outcome_comes_to_be_before_its_time_is_over(
    tmp_path: Path, change: Callable[[Cluster], Awaitable[None]], plan: list[str]
) -> None:
    async def main() -> None:
        async with cluster(tmp_path) as made:
            made.faulty.plan.extend(plan)
            async with asyncio.timeout(PATIENCE_S / 2):
                await change(made)
            assert len(made.faulty.plan) < len(plan)

    asyncio.run(main())


def test_somebody_else_s_topic_is_not_taken_for_the_one_of_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "AGAIN_S", 1.0)

    async def main() -> None:
        async with cluster(tmp_path) as made:
            other = TopicIntent("u", identities.uuid_from_text("AAAAAAAAQACAAAAAAAAAAg"), ((1,),))
            made.faulty.plan.append(LOST)
            creating = asyncio.ensure_future(made.intents.create_topic(NewTopic("u", 1, 1), PATIENCE_S))
            await until(lambda: not made.faulty.plan)
            await made.write(Put(keys.topic("u"), other.encode()))
            with pytest.raises(KafkaError) as raised:
                await creating
            assert raised.value.code is ErrorCode.topic_already_exists

    asyncio.run(main())


def test_a_topic_that_was_deleted_while_its_creation_was_unknown_stays_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "AGAIN_S", 1.0)

    async def main() -> None:
        async with cluster(tmp_path) as made:
            made.faulty.plan.append(DONE_BUT_UNKNOWN)
            creating = asyncio.ensure_future(made.intents.create_topic(NewTopic("u", 1, 1), PATIENCE_S))
            created = await made.follower.wait(lambda image: image.topics.get("u"), 10)
            elsewhere = Intents(made.store, made.follower, Random(2))
            await elsewhere.delete_topic(created.id, 10)
            assert not creating.done()
            await creating
            assert not (await made.store.read(keys.topic("u"))).entries

    asyncio.run(main())


@pytest.mark.parametrize("fate", [LOST, DONE_BUT_UNKNOWN])
def test_access_control_lists_of_unknown_outcome_are_written_and_deleted_once(tmp_path: Path, fate: str) -> None:
    other = ACL._replace(name="u")

    async def main() -> None:
        async with cluster(tmp_path) as made:
            made.faulty.plan.append(fate)
            await made.intents.create_acls([ACL, other, ACL], PATIENCE_S)
            assert set(made.follower.image.acls) == {ACL, other}
            made.faulty.plan.append(fate)
            assert await made.intents.delete_acls(lambda binding: binding.name == "t", PATIENCE_S) == [ACL]
            assert set(made.follower.image.acls) == {other}

    asyncio.run(main())


def test_an_access_control_list_that_another_broker_deletes_meanwhile_is_written_all_the_same(tmp_path: Path) -> None:
    """The image of the broker that creates the entry still shows it."""

    async def main() -> None:
        async with cluster(tmp_path) as made:
            await made.intents.create_acls([ACL], PATIENCE_S)
            stale = made.follower.image.acls[ACL].revision
            deleting = made.store.transact([], [Delete(keys.acl(ACL))])
            creating = made.intents.create_acls([ACL], PATIENCE_S)
            await asyncio.gather(deleting, creating)
            assert (await made.store.read(keys.acl(ACL))).entries
            assert made.follower.image.acls[ACL].revision > stale

    asyncio.run(main())


def test_many_access_control_lists_take_several_transactions(tmp_path: Path) -> None:
    many = [ACL._replace(name=f"t-{number}") for number in range(250)]

    async def main() -> None:
        async with cluster(tmp_path) as made:
            await made.intents.create_acls(many, PATIENCE_S)
            assert set(made.follower.image.acls) == set(many)
            before = made.follower.image.revision
            await made.intents.create_acls(many, PATIENCE_S)
            assert made.follower.image.revision == before
            assert len(await made.intents.delete_acls(lambda _: True, PATIENCE_S)) == 250
            assert not made.follower.image.acls

    asyncio.run(main())


def test_a_request_lasts_no_longer_than_its_time_out_while_the_store_is_silent(tmp_path: Path) -> None:
    class Silent(FaultyStore):
        async def transact(self, guards: Sequence[Guard], writes: Sequence[Write]) -> Committed | Rejected:
            await asyncio.Event().wait()
            raise AssertionError

    async def main() -> None:
        async with cluster(tmp_path) as made:
            silent = Intents(Silent(made.store), made.follower, Random(3))
            topic_id = made.follower.image.topics["t"].id
            loop = asyncio.get_running_loop()
            began = loop.time()
            for asked in (
                silent.create_topic(NewTopic("u", 1, 1), 0.2),
                silent.delete_topic(topic_id, 0.2),
                silent.create_partitions("t", 2, None, 0.2),
                silent.alter_config(ConfigResource("topic", "t"), lambda _: {"a": "1"}, 0.2),
                silent.alter_quota((("user", None),), lambda _: {"r": 1.0}, 0.2),
                silent.create_acls([ACL], 0.2),
                silent.reassign("t", 0, (3, 1), True, 0.2),
                silent.unregister_broker(3, 0.2),
                silent.put_scram("alice", SCRAM_SHA_256, KEYS, 0.2),
                silent.delete_scram("alice", SCRAM_SHA_256, 0.2),
                silent.update_features({TRANSACTIONS: FeatureUpdate(2, UpgradeType.UPGRADE)}, 0.2),
            ):
                with pytest.raises(KafkaError) as raised:
                    await asked
                assert raised.value.code is ErrorCode.request_timed_out
            assert loop.time() - began < 11 * 0.2 + 5

    asyncio.run(main())
