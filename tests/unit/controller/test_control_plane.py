"""The metadata store, its follower, brokers' registrations, the controller and administrators' changes together, as in
one broker process or in several.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ottla.controller.runner import Controller
from ottla.metadata import keys
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.follower import Follower
from ottla.metadata.identities import ConfigResource
from ottla.metadata.intents.facade import Intents
from ottla.metadata.intents.topics import NewTopic
from ottla.metadata.model.brokers import Broker, BrokerState, Endpoint
from ottla.metadata.model.partitions import NO_LEADER
from ottla.metadata.registration import NodeIdTaken, Registration
from ottla.metadata.renewal import RenewalTask
from ottla.metadata.store import Delete, Guard
from ottla.protocol.errors import ErrorCode, KafkaError


@dataclass
class Process:
    """The metadata parts of a broker process."""

    store: EmbeddedStore
    follower: Follower
    registration: Registration
    controller: Controller
    intents: Intents
    tasks: list[asyncio.Task[None]]

    async def kill(self) -> None:
        """Ends the process without a message to the others."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.store.close()


async def start(path: Path, broker_id: int, session_s: float = 2.0) -> Process:
    store = await EmbeddedStore.open(path)
    follower = Follower(store)
    await follower.start()
    endpoints = {"PLAINTEXT": Endpoint("PLAINTEXT", "127.0.0.1", 9092 + broker_id)}
    registration = Registration(
        store, Broker(broker_id, 0, endpoints), RenewalTask(store), session_s, told=lambda broker: None
    )
    follower.listen(registration.noticed)
    controller = Controller(store, follower, f"broker {broker_id}", session_s=session_s)
    intents = Intents(store, follower, Random(broker_id))
    tasks = [asyncio.ensure_future(run()) for run in (follower.run, controller.run)]
    process = Process(store, follower, registration, controller, intents, tasks)
    try:
        await registration.register()
    except BaseException:
        await process.kill()
        raise
    tasks.append(asyncio.ensure_future(registration.run()))
    await registration.change(BrokerState.RUNNING)
    await follower.wait_for_revision(registration.broker.revision, 5)
    return process


Start = Callable[..., Coroutine[Any, Any, Process]]


@asynccontextmanager
async def machine(tmp_path: Path) -> AsyncIterator[Start]:
    processes: list[Process] = []

    async def begin(broker_id: int, **options: Any) -> Process:
        process = await start(tmp_path / "metadata.db", broker_id, **options)
        processes.append(process)
        return process

    try:
        async with asyncio.timeout(60):
            yield begin
    finally:
        for process in processes:
            await process.kill()


def test_a_topic_is_visible_led_and_gone_again(tmp_path: Path) -> None:
    async def body() -> None:
        async with machine(tmp_path) as begin:
            one = await begin(1)
            created = await one.intents.create_topic(NewTopic("a", 3, 1, configs={"retention.ms": "5"}), 5)
            topic = one.follower.image.topics["a"]
            assert topic.id == created.id
            assert [topic.partitions[i].leader for i in range(3)] == [1, 1, 1]
            assert all(topic.partitions[i].leads(1, one.registration.epoch) for i in range(3))
            assert one.follower.image.config("topic", "a") == {"retention.ms": "5"}
            with pytest.raises(KafkaError) as raised:
                await one.intents.create_topic(NewTopic("a", 1, 1), 5)
            assert raised.value.code is ErrorCode.topic_already_exists
            await one.intents.create_partitions("a", 5, None, 5)
            assert len(one.follower.image.topics["a"].partitions) == 5
            await one.intents.delete_topic(created.id, 5)
            assert "a" not in one.follower.image.topics
            assert one.follower.image.config("topic", "a") == {}
            again = await one.intents.create_topic(NewTopic("a", 1, 1), 5)
            assert again.id != created.id
            await one.intents.confirm_deletion(1, created.id)
            await one.follower.wait(
                lambda image: None if created.id in image.tombstones or created.id in image.partitions else True, 5
            )

    asyncio.run(body())


def test_listeners_hear_of_a_topic_before_its_creator_goes_on(tmp_path: Path) -> None:
    async def body() -> None:
        async with machine(tmp_path) as begin:
            one = await begin(1)
            heard: set[tuple[Any, int]] = set()
            one.follower.listen(lambda image, changed: heard.update(changed.partitions))
            created = await one.intents.create_topic(NewTopic("a", 150, 1), 5)
            assert heard == {(created.id, index) for index in range(150)}

    asyncio.run(body())


def test_a_restarted_broker_leads_under_its_new_epoch_only(tmp_path: Path) -> None:
    async def body() -> None:
        async with machine(tmp_path) as begin:
            one, two = await begin(1), await begin(2)
            created = await two.intents.create_topic(NewTopic("a", assignments=[(0, [1])]), 5)
            first = two.follower.image.partition(created.id, 0)
            assert first is not None
            assert (first.leader, first.leader_epoch) == (1, 0)
            old_epoch = one.registration.epoch
            await one.kill()

            def leaderless(image: Any) -> Any:
                partition = image.partition(created.id, 0)
                return partition if partition.leader == NO_LEADER else None

            gone = await two.follower.wait(leaderless, 10)
            assert (gone.leader_epoch, gone.isr) == (1, (1,))
            one = await begin(1)
            assert one.registration.epoch > old_epoch

            def led(image: Any) -> Any:
                partition = image.partition(created.id, 0)
                return partition if partition.leads(1, one.registration.epoch) else None

            back = await two.follower.wait(led, 10)
            assert back.leader_epoch == 2

    asyncio.run(body())


def test_a_broker_whose_key_was_deleted_registers_again_and_lost_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        async with machine(tmp_path) as begin:
            one, two = await begin(1, session_s=60), await begin(2, session_s=60)
            created = await two.intents.create_topic(NewTopic("a", assignments=[(0, [1, 2])]), 5)
            wronged = one.registration.broker
            await two.store.transact([Guard(keys.broker(1), wronged.revision)], [Delete(keys.broker(1))])

            def moved(image: Any) -> Any:
                partition = image.partition(created.id, 0)
                broker = image.brokers.get(1)
                return broker if broker is not None and broker.epoch > wronged.epoch and partition.leader == 2 else None

            back = await two.follower.wait(moved, 10)
            assert (back.previous_epoch, back.state) == (wronged.epoch, BrokerState.RUNNING)
            assert one.registration.epoch == back.epoch
            leases = {entry.lease for entry in (await two.store.read(keys.broker.prefix)).entries}
            assert len(leases) == 2

    asyncio.run(body())


def test_a_node_id_that_lives_is_refused_and_named(tmp_path: Path) -> None:
    async def body() -> None:
        async with machine(tmp_path) as begin:
            await begin(1, session_s=0.8)
            with pytest.raises(NodeIdTaken, match=r"PLAINTEXT://127\.0\.0\.1:9093"):
                await begin(1, session_s=0.8)

    asyncio.run(body())


def test_a_broker_that_is_ready_counts_whoever_is_asked(tmp_path: Path) -> None:
    """The image of the broker that gets the request doesn't show the other brokers yet. The broker waits for the newest
    metadata before it refuses the request or places replicas.
    """

    async def body() -> None:
        async with machine(tmp_path) as begin:
            one = await begin(1)
            await one.intents.create_topic(NewTopic("grown", 1, 1), 5)
            await one.intents.create_topic(NewTopic("moved", assignments=[(0, [1])]), 5)
            hears = asyncio.Event()

            async def hear(image: Any, changed: Any) -> None:
                await hears.wait()

            one.follower.prepare(hear)
            await begin(2)
            await begin(3)
            assert set(one.follower.image.brokers) == {1}
            asked = [
                asyncio.ensure_future(one.intents.create_topic(NewTopic("a", 6, 3), 10)),
                asyncio.ensure_future(one.intents.create_topic(NewTopic("b", 6, 1), 10)),
                asyncio.ensure_future(one.intents.create_topic(NewTopic("c", assignments=[(0, [3])]), 10)),
                asyncio.ensure_future(one.intents.create_partitions("grown", 3, [[2], [3]], 10)),
                asyncio.ensure_future(one.intents.reassign("moved", 0, [2], False, 10)),
            ]
            await asyncio.sleep(0.2)
            assert not any(task.done() for task in asked), [task.exception() for task in asked if task.done()]
            hears.set()
            await asyncio.gather(*asked)
            topics = one.follower.image.topics
            assert {replica for state in topics["a"].partitions.values() for replica in state.replicas} == {1, 2, 3}
            assert {state.leader for state in topics["b"].partitions.values()} == {1, 2, 3}
            with pytest.raises(KafkaError) as raised:
                await one.intents.create_topic(NewTopic("d", 1, 4), 10)
            assert "only 3 broker(s) are registered" in str(raised.value)

    asyncio.run(body())


def test_settings_are_edited_on_what_is_there_now(tmp_path: Path) -> None:
    async def body() -> None:
        async with machine(tmp_path) as begin:
            one, two = await begin(1), await begin(2)
            resource = ConfigResource("broker", "")

            def appended(letter: str, present: Any) -> dict[str, str]:
                return {"x": present.get("x", "") + letter}

            await asyncio.gather(
                *(
                    process.intents.alter_config(resource, partial(appended, letter))
                    for process, letter in zip((one, two) * 5, "abcdefghij", strict=True)
                )
            )
            await one.follower.wait_for_revision((await one.store.read()).revision, 5)
            assert sorted(one.follower.image.config("broker", "")["x"]) == list("abcdefghij")
            await one.intents.alter_config(resource, lambda present: {})
            assert resource not in one.follower.image.configs
            with pytest.raises(KafkaError):
                await one.intents.alter_config(ConfigResource("topic", "nope"), lambda present: {"a": "b"})

    asyncio.run(body())


def test_the_next_candidate_takes_over_when_the_controller_dies(tmp_path: Path) -> None:
    async def body() -> None:
        async with machine(tmp_path) as begin:
            one, two = await begin(1), await begin(2)
            await one.intents.create_topic(NewTopic("a", 1, 1), 5)
            dead, living = (one, two) if one.controller.active else (two, one)
            assert not living.controller.active
            await dead.kill()
            await living.intents.create_topic(NewTopic("b", 1, 1), 10)
            assert living.controller.active

    asyncio.run(body())


def test_many_creations_at_once_and_two_admins_racing(tmp_path: Path) -> None:
    async def body() -> None:
        async with machine(tmp_path) as begin:
            one, two = await begin(1), await begin(2)
            results = await asyncio.gather(
                *(
                    process.intents.create_topic(NewTopic(f"t{i}", 2, 1), 30)
                    for i in range(40)
                    for process in (one, two)
                ),
                return_exceptions=True,
            )
            refused = [result for result in results if isinstance(result, KafkaError)]
            assert len(refused) == 40
            assert {error.code for error in refused} == {ErrorCode.topic_already_exists}
            await one.follower.wait_for_revision((await one.store.read()).revision, 5)
            assert len(one.follower.image.topics) == 40

    asyncio.run(body())
