"""Requests for a partition's leader that wait for an election, and the events that end the wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from ottla.broker.awaited_elections import LISTED_S, RECENT_S, WAIT_S, AwaitedElections
from ottla.metadata.image import Changed, Image
from ottla.metadata.model.brokers import Broker, BrokerState
from ottla.metadata.model.partitions import Partition
from ottla.metadata.persistent import PersistentMap
from ottla.net.pending import Pending

TOPIC, OTHER_TOPIC = UUID(int=1), UUID(int=2)
PRODUCE, FETCH, METADATA = 0, 1, 3
AT_ONCE_S = WAIT_S / 3


class Scene:
    """Broker 0 watches a partition that broker 1 leads; broker 2 is in the ISR, too."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        state = Partition(TOPIC, 0, (1, 2, 0), (1, 2), (10, 10), leader=1)
        self.image = Image(
            brokers={id: Broker(id, 10, {}, state=BrokerState.RUNNING) for id in (0, 1, 2)},
            partitions=PersistentMap({TOPIC: PersistentMap({0: state})}),
        )
        self.elections = AwaitedElections(0, lambda: self.image, self._clock)
        self.elections.changed(self.image, Changed(brokers=frozenset({0, 1, 2})))
        self.overtaken = 0
        self.connection: Any = SimpleNamespace(may_go_on=self._may_go_on)
        self.answer = Pending(self.connection, METADATA)

    def _clock(self) -> float:
        return asyncio.get_running_loop().time() + self.passed_s

    def _may_go_on(self) -> None:
        self.overtaken += 1

    def alter(self, **changes: Any) -> None:
        """Changes the partition's state."""
        state = self.image.partition(TOPIC, 0)
        assert state is not None
        partitions = PersistentMap({TOPIC: PersistentMap({0: replace(state, **changes)})})
        self.image = replace(self.image, partitions=partitions)
        self.elections.changed(self.image, Changed(topics=frozenset({TOPIC}), partitions=frozenset({(TOPIC, 0)})))

    def register(self, *brokers: Broker) -> None:
        """Makes these the registered brokers."""
        before = self.image.brokers
        known = {broker.id: broker for broker in brokers}
        changed = {id for id in {*before, *known} if before.get(id) != known.get(id)}
        self.image = replace(self.image, brokers=known)
        self.elections.changed(self.image, Changed(brokers=frozenset(changed)))

    def vanish(self, broker_id: int) -> None:
        self.register(*(broker for id, broker in self.image.brokers.items() if id != broker_id))

    def ask(self) -> asyncio.Future[float]:
        """The time in seconds that an answer about the partition waits."""

        async def asked() -> float:
            loop = asyncio.get_running_loop()
            began = loop.time()
            await self.elections.settled({TOPIC: range(1), OTHER_TOPIC: range(3)}, self.answer)
            return loop.time() - began

        return asyncio.ensure_future(asked())


def run(scene: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(scene(Scene()), 10)

    asyncio.run(main())


def hung_up(scene: Scene) -> None:
    scene.elections.lost(1)


def vanished(scene: Scene) -> None:
    scene.vanish(1)


DEATHS = pytest.mark.parametrize("dies", [hung_up, vanished])


@DEATHS
def test_an_answer_waits_until_another_broker_leads(dies: Callable[[Scene], None]) -> None:
    async def body(scene: Scene) -> None:
        assert await scene.ask() < AT_ONCE_S, "no broker is dead"
        dies(scene)
        asking = scene.ask()
        await asyncio.sleep(0.02)
        scene.alter(partition_epoch=1)
        await asyncio.sleep(0.02)
        assert not asking.done()
        scene.alter(leader=2, leader_epoch=1)
        assert await asking < WAIT_S * 0.8
        assert await scene.ask() < AT_ONCE_S

    run(body)


@DEATHS
def test_an_answer_does_not_wait_for_long(dies: Callable[[Scene], None]) -> None:
    async def body(scene: Scene) -> None:
        dies(scene)
        assert WAIT_S * 0.9 < await scene.ask() < WAIT_S + 1
        scene.passed_s = RECENT_S
        assert await scene.ask() < AT_ONCE_S, "the death isn't recent any more"

    run(body)


def nobody_else_in_sync(scene: Scene) -> None:
    scene.alter(isr=(1,), isr_epochs=(10,))


def the_other_drains(scene: Scene) -> None:
    brokers = scene.image.brokers
    scene.register(brokers[0], brokers[1], replace(brokers[2], state=BrokerState.DRAINING))


def the_other_has_restarted(scene: Scene) -> None:
    brokers = scene.image.brokers
    scene.register(brokers[0], brokers[1], replace(brokers[2], epoch=11))


def the_other_is_dead_as_well(scene: Scene) -> None:
    scene.elections.lost(2)


@pytest.mark.parametrize(
    "without", [nobody_else_in_sync, the_other_drains, the_other_has_restarted, the_other_is_dead_as_well]
)
def test_where_nobody_can_be_elected_nothing_waits(without: Callable[[Scene], None]) -> None:
    async def body(scene: Scene) -> None:
        without(scene)
        scene.elections.lost(1)
        assert await scene.ask() < AT_ONCE_S

    run(body)


def test_a_leader_that_is_back_is_nobody_to_wait_for() -> None:
    async def body(scene: Scene) -> None:
        scene.elections.lost(1)
        asking = scene.ask()
        await asyncio.sleep(0.02)
        scene.elections.found(1)
        assert await asking < WAIT_S * 0.8
        scene.vanish(1)
        asking = scene.ask()
        await asyncio.sleep(0.02)
        assert not asking.done()
        scene.register(*scene.image.brokers.values(), Broker(1, 20, {}, state=BrokerState.RUNNING))
        assert await asking < WAIT_S * 0.8, "a broker that registered anew may be asked, though it leads nothing yet"

    run(body)


def test_produce_requests_behind_a_waiting_answer_are_served() -> None:
    async def body(scene: Scene) -> None:
        scene.elections.lost(1)
        asking = scene.ask()
        await asyncio.sleep(0.02)
        assert scene.answer.overtakable
        assert scene.overtaken == 1
        scene.alter(leader=2, leader_epoch=1)
        await asking
        assert not scene.answer.overtakable

    run(body)


def test_who_died_stays_in_the_list_of_brokers_for_a_moment() -> None:
    async def body(scene: Scene) -> None:
        assert scene.elections.just_died == []
        scene.vanish(1)
        (listed,) = scene.elections.just_died
        assert listed.id == 1
        scene.passed_s = LISTED_S * 0.9
        assert scene.elections.just_died == [listed]
        scene.passed_s = LISTED_S + 1
        assert scene.elections.just_died == []
        scene.passed_s = 0.0
        scene.register(*scene.image.brokers.values(), Broker(1, 20, {}, state=BrokerState.RUNNING))
        assert scene.elections.just_died == [], "a registered broker is listed anyway"

    run(body)


def test_who_has_drained_is_gone_at_once() -> None:
    async def body(scene: Scene) -> None:
        the_other_drains(scene)
        scene.vanish(2)
        assert scene.elections.just_died == []

    run(body)


@pytest.mark.parametrize("earlier", [True, False], ids=["before the wait", "during the wait"])
@pytest.mark.parametrize(("behind", "ends"), [(FETCH, True), (METADATA, False)], ids=["Fetch", "Metadata"])
def test_another_request_behind_it_ends_the_wait_unless_it_asks_for_leaders_too(
    earlier: bool, behind: int, ends: bool
) -> None:
    async def body(scene: Scene) -> None:
        scene.elections.lost(1)
        if earlier:
            scene.answer.behind = behind
        asking = scene.ask()
        await asyncio.sleep(0.02)
        if not earlier:
            assert not asking.done()
            scene.answer.behind = behind
            assert scene.answer.hurry is not None
            scene.answer.hurry()
        seconds = await asking
        assert (seconds < AT_ONCE_S) == ends
        assert scene.answer.hurry is None

    run(body)
