"""The registration that a broker writes into the metadata store, and the events at which it is written."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from ottla.broker.membership import Membership
from ottla.broker.tasks import Tasks
from ottla.metadata import keys
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.follower import Follower
from ottla.metadata.model.brokers import Broker, BrokerState
from ottla.metadata.patience import Patience
from ottla.metadata.renewal import RenewalTask
from ottla.metadata.store import LeaseId
from ottla.settings.config import BrokerConfig
from tests.unit.waiting import until

SETTINGS = "node.id=7\nlog.dirs=/x\nlisteners=PLAINTEXT://localhost:0\nbroker.rack=r1"
OTHER_ADDRESS = "\nottla.listener.addresses=PLAINTEXT://outside:31000"


class Stage:
    """Broker 7 on a store of its own. Its sockets get port 4711."""

    def __init__(self, store: EmbeddedStore) -> None:
        self.store = store
        self.follower = Follower(store)
        self.config = BrokerConfig.from_sources(SETTINGS)
        self.tasks = Tasks(Mock())
        self.told: list[tuple[int, LeaseId]] = []
        self.membership = Membership(
            7,
            store,
            self.follower,
            lambda: self.config,
            self.tasks,
            lambda store, stall_s: RenewalTask(store),
            lambda epoch, lease: self.told.append((epoch, lease)),
        )

    async def register(self) -> None:
        """Opens the sockets and registers."""

        async def listen(listener: str, host: str, port: int, tls: object) -> Any:
            return SimpleNamespace(port=4711)

        server: Any = SimpleNamespace(listen=listen)
        await self.follower.start()
        self.tasks.spawn(self.follower.run())
        await self.membership.listen(server, lambda listener: None)
        await self.membership.register(Patience(0.0, asyncio.Event()), -1)

    async def written(self) -> Broker | None:
        """The registration that the store has."""
        entries = (await self.store.read(keys.broker(7))).entries
        return Broker.decode(entries[0]) if entries else None


def play(folder: Path, scene: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        store = await EmbeddedStore.open(folder / "metadata")
        stage = Stage(store)
        async with asyncio.timeout(30):
            await scene(stage)
        await stage.tasks.cancel()
        await store.close()

    asyncio.run(main())


def test_a_broker_registers_with_the_ports_that_were_opened(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        membership = stage.membership
        assert (membership.registered, membership.shown, membership.incarnation) == (False, False, "")
        assert membership.silence_seconds == 0.0
        await stage.register()
        written = await stage.written()
        assert written is not None
        assert (written.rack, written.state, written.incarnation) == ("r1", BrokerState.RUNNING, membership.incarnation)
        assert membership.bootstrap == "localhost:4711"
        assert [epoch for epoch, _ in stage.told] == [written.epoch]
        await until(lambda: membership.shown)
        await membership.end(withdrawn=True)
        assert await stage.written() is None

    play(tmp_path, scene)


def test_other_addresses_and_the_draining_go_into_the_same_registration(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        stage.membership.advertise_anew()  # there is no registration yet; the later one will have the addresses
        await stage.register()
        stage.config = BrokerConfig.from_sources(SETTINGS + OTHER_ADDRESS)
        stage.membership.advertise_anew()
        await until(lambda: stage.membership.bootstrap == "outside:31000")
        await stage.membership.announce_draining()
        written = await stage.written()
        assert written is not None
        assert (written.endpoints["PLAINTEXT"].host, written.state) == ("outside", BrokerState.DRAINING)
        assert [epoch for epoch, _ in stage.told] == [written.epoch]
        await stage.membership.end(withdrawn=True)

    play(tmp_path, scene)


def test_a_store_of_others_gets_no_request_at_the_end(tmp_path: Path) -> None:
    async def scene(stage: Stage) -> None:
        await stage.membership.end(withdrawn=True)  # there is no registration to end yet
        await stage.register()
        await stage.membership.end(withdrawn=False)
        assert await stage.written() is not None

    play(tmp_path, scene)
