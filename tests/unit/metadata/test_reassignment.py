"""Moves that administrators ask for: the refused ones, and the outcome if two ask at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import pytest

from ottla.controller.runner import Controller
from ottla.metadata import keys
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.follower import Follower
from ottla.metadata.identities import ConfigResource
from ottla.metadata.image import DRAINED
from ottla.metadata.intents.facade import Intents
from ottla.metadata.intents.topics import NewTopic
from ottla.metadata.model.brokers import NO_EPOCH, Broker, BrokerState
from ottla.metadata.model.partitions import NO_LEADER, Partition, Reassignment
from ottla.metadata.reassignment import check_cancellable
from ottla.metadata.store import Delete, Put
from ottla.protocol.errors import ErrorCode, KafkaError


class Cluster:
    """Three brokers, a topic `t` with one partition on brokers 1 and 2, and an administrator."""

    def __init__(self, store: EmbeddedStore) -> None:
        self.store = store
        self.follower = Follower(store)
        self.intents = Intents(store, self.follower, Random(1))
        self.controller = Controller(store, self.follower, "test")

    @property
    def state(self) -> Partition:
        return self.follower.image.topics["t"].partitions[0]

    async def register(self, broker_id: int) -> None:
        broker = Broker(broker_id, 0, {}, state=BrokerState.RUNNING)
        await self.write(Put(keys.broker(broker_id), broker.encode()))

    async def write(self, *writes: Put | Delete) -> None:
        result = await self.store.transact([], list(writes))
        await self.follower.wait_for_revision(result.revision, 5)  # type: ignore[union-attr]

    async def move(self, target: Sequence[int] | None, *, index: int = 0, another_factor: bool = True) -> None:
        await self.intents.reassign("t", index, target, another_factor, 5)

    async def refused(self, target: Sequence[int] | None, **options: Any) -> ErrorCode:
        with pytest.raises(KafkaError) as raised:
            await self.move(target, **options)
        code: ErrorCode = raised.value.code
        return code


Body = Callable[[Cluster], Coroutine[Any, Any, None]]


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Body], None]:
    def start(body: Body) -> None:
        async def main() -> None:
            store = await EmbeddedStore.open(tmp_path / "metadata.db")
            cluster = Cluster(store)
            await cluster.follower.start()
            tasks = [asyncio.ensure_future(each()) for each in (cluster.follower.run, cluster.controller.run)]
            try:
                async with asyncio.timeout(30):
                    for broker_id in (1, 2, 3):
                        await cluster.register(broker_id)
                    await cluster.intents.create_topic(NewTopic("t", assignments=[(0, [1, 2])]), 5)
                    await body(cluster)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await store.close()

        asyncio.run(main())

    return start


def test_a_move_has_begun_when_it_is_answered(run: Any) -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.move((3, 1))
        assert (cluster.state.replicas, cluster.state.adding, cluster.state.removing) == ((3, 1, 2), (3,), (2,))
        await cluster.move((3, 1))  # the same move again is under way already
        await cluster.move(None)
        assert (cluster.state.replicas, cluster.state.adding) == ((1, 2), ())
        assert await cluster.refused(None) is ErrorCode.no_reassignment_in_progress

    run(body)


def test_what_kafka_refuses_is_refused(run: Any) -> None:
    async def body(cluster: Cluster) -> None:
        assert await cluster.refused((1, 9)) is ErrorCode.invalid_replica_assignment
        assert await cluster.refused((1, 1)) is ErrorCode.invalid_replica_assignment
        assert await cluster.refused(()) is ErrorCode.invalid_replica_assignment
        assert await cluster.refused((1,), index=1) is ErrorCode.unknown_topic_or_partition
        assert await cluster.refused((1, 2, 3), another_factor=False) is ErrorCode.invalid_replication_factor
        await cluster.move((3, 1), another_factor=False)
        # The requested factor is compared with the factor before the move.
        await cluster.move((2, 3), another_factor=False)

    run(body)


def test_a_move_waits_for_a_dead_broker_that_has_replicas(run: Any) -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.write(Delete(keys.broker(2)))
        await cluster.move((2, 1))
        await cluster.move((2, 3))
        await cluster.write(Delete(keys.broker(3)))
        assert await cluster.refused((3, 1, 9)) is ErrorCode.invalid_replica_assignment
        await cluster.move((1, 3))
        assert (cluster.state.adding, cluster.state.removing) == ((3,), (2,))
        await cluster.move((1,))
        assert await cluster.refused((1, 3)) is ErrorCode.invalid_replica_assignment, "broker 3 is unknown by now"

    run(body)


def test_a_move_that_cannot_be_undone_is_not_cancelled() -> None:
    brokers = {broker_id: Broker(broker_id, epoch=10 + broker_id, endpoints={}) for broker_id in (2, 3)}
    state = Partition(UUID(int=1), 0, (3, 1, 2), (3,), (13,), 3, adding=(3,), removing=(1, 2), original=(1, 2))
    with pytest.raises(KafkaError) as raised:
        check_cancellable(state, brokers)
    assert raised.value.code is ErrorCode.invalid_replica_assignment
    check_cancellable(replace(state, isr=(3, 2), isr_epochs=(13, 12)), brokers)
    with pytest.raises(KafkaError):  # broker 2 has restarted meanwhile
        check_cancellable(replace(state, isr=(3, 2), isr_epochs=(13, 5)), brokers)


def test_of_two_administrators_one_wins(run: Any) -> None:
    async def body(cluster: Cluster) -> None:
        other = Intents(cluster.store, cluster.follower, Random(2))
        results = await asyncio.gather(
            cluster.move((3, 1)), other.reassign("t", 0, (2, 3), True, 5), return_exceptions=True
        )
        refused = [result for result in results if isinstance(result, KafkaError)]
        assert [error.code for error in refused] == [ErrorCode.reassignment_in_progress]
        assert cluster.state.target in ((3, 1), (2, 3))

    run(body)


def test_a_wish_that_nobody_has_seen_yet_is_in_the_way(run: Any) -> None:
    async def body(cluster: Cluster) -> None:
        held = asyncio.Event()

        async def hold(image: Any, changed: Any) -> None:
            await held.wait()

        cluster.follower.prepare(hold)
        await cluster.store.transact(
            [], [Put(keys.reassignment(cluster.state.topic_id, 0), Reassignment((3,)).encode())]
        )
        assert await cluster.refused((2, 1)) is ErrorCode.reassignment_in_progress
        held.set()

    run(body)


def test_an_isr_that_changes_meanwhile_is_no_obstacle(run: Any) -> None:
    async def body(cluster: Cluster) -> None:
        held = asyncio.Event()

        async def hold(image: Any, changed: Any) -> None:
            await held.wait()

        cluster.follower.prepare(hold)
        state = cluster.state
        smaller = Partition(state.topic_id, 0, (1, 2), (1,), state.isr_epochs[:1], 1, partition_epoch=1)
        await cluster.store.transact([], [Put(keys.partition(state.topic_id, 0), smaller.encode())])
        asyncio.get_running_loop().call_later(0.1, held.set)
        await cluster.move((3, 1))
        assert (cluster.state.adding, cluster.state.isr) == ((3,), (1,))

    run(body)


def test_a_broker_is_unregistered(run: Any) -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.intents.unregister_broker(1)
        assert 1 not in cluster.follower.image.brokers
        await cluster.intents.unregister_broker(1)  # the broker has replicas, so it was registered once
        with pytest.raises(KafkaError, match="Broker ID 9 is not currently registered"):
            await cluster.intents.unregister_broker(9)

    run(body)


def test_a_broker_that_is_down_gets_replicas_where_the_factor_needs_it(run: Any) -> None:
    """As in Kafka, which places replicas on fenced brokers, but never all of a partition's replicas, nor the first."""

    async def body(cluster: Cluster) -> None:
        async def create(name: str, factor: int) -> list[Partition]:
            await cluster.intents.create_topic(NewTopic(name, 4, factor), 5)
            return list(cluster.follower.image.topics[name].partitions.values())

        await cluster.write(Delete(keys.broker(3)))
        with pytest.raises(KafkaError, match="only 2 broker"):  # broker 3 never had a replica, so it is unknown
            await create("u", 3)
        await cluster.register(3)
        await create("v", 3)
        await cluster.write(Delete(keys.broker(3)))
        assert all(3 not in state.replicas for state in await create("w", 2))
        for state in await create("x", 3):
            assert sorted(state.replicas) == [1, 2, 3]
            assert (state.replicas[2], sorted(state.isr)) == (3, [1, 2])
            assert state.leader == state.replicas[0]
        with pytest.raises(KafkaError, match="only 3 broker"):
            await create("y", 4)

    run(body)


def test_a_move_back_is_not_taken_for_no_move_by_a_broker_that_has_not_heard_of_the_first(run: Any) -> None:
    async def body(cluster: Cluster) -> None:
        follower = Follower(cluster.store)
        await follower.start()  # the follower isn't run yet, so its image is old
        elsewhere = Intents(cluster.store, follower, Random(1))
        await cluster.move((1, 3))
        moving_back = asyncio.ensure_future(elsewhere.reassign("t", 0, (1, 2), True, 5))
        await asyncio.sleep(0.05)
        task = asyncio.ensure_future(follower.run())
        with pytest.raises(KafkaError) as raised:
            await moving_back
        assert raised.value.code is ErrorCode.reassignment_in_progress
        await elsewhere.reassign("t", 0, (1, 2), True, 5)
        task.cancel()

    run(body)


def test_new_topics_leave_drained_brokers_out_where_they_can(run: Any) -> None:
    async def body(cluster: Cluster) -> None:
        await cluster.intents.alter_config(ConfigResource("broker", ""), lambda present: {DRAINED: "1"})
        await cluster.intents.create_topic(NewTopic("u", 8, 2), 5)
        used = {
            replica for state in cluster.follower.image.topics["u"].partitions.values() for replica in state.replicas
        }
        assert used == {2, 3}
        await cluster.intents.alter_config(ConfigResource("broker", ""), lambda present: {DRAINED: "1,2,3"})
        await cluster.intents.create_topic(NewTopic("v", 8, 2), 5)
        await cluster.intents.alter_config(ConfigResource("broker", ""), lambda present: {DRAINED: "2"})
        await cluster.follower.wait(lambda image: image.topics["t"].partitions[0].leader == 1 or None, 5)
        with pytest.raises(KafkaError) as raised:
            await cluster.intents.elect_leader("t", 0, True, 5)
        assert raised.value.code is ErrorCode.election_not_needed
        await cluster.move((2, 1))
        with pytest.raises(KafkaError) as raised:
            await cluster.intents.elect_leader("t", 0, False, 5)
        assert raised.value.code is ErrorCode.preferred_leader_not_available

    run(body)


def test_an_election_that_nobody_could_win_is_no_success(run: Any) -> None:
    """After a restore, no broker has reported the ends of its logs yet. So the controller answers the request without
    the election of a leader."""

    async def body(cluster: Cluster) -> None:
        state = replace(cluster.state, leader=NO_LEADER, isr_epochs=(NO_EPOCH, NO_EPOCH), restored=True)
        await cluster.write(Put(keys.partition(state.topic_id, 0), state.encode()))
        with pytest.raises(KafkaError) as raised:
            await cluster.intents.elect_leader("t", 0, True, 5)
        assert raised.value.code is ErrorCode.eligible_leaders_not_available
        assert not cluster.follower.image.elections

    run(body)
