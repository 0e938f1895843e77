"""When a broker registers anew, and when it keeps its registration: other brokers take a new registration for a death
and a new start."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from ottla.metadata import keys
from ottla.metadata.embedded import EmbeddedStore
from ottla.metadata.image import Changed, Image
from ottla.metadata.model.brokers import Broker, Endpoint
from ottla.metadata.registration import Registration
from ottla.metadata.store import Delete, LeaseId, Store
from tests.unit.waiting import until


class Renewals:
    """A stand-in for the renewal of leases, which renews none: the test decides when a lease has ended."""

    def __init__(self) -> None:
        self.held: list[LeaseId] = []
        self.unconfirmed_s = 0.0
        self.ended: Callable[[], None] = lambda: None

    def hold(self, lease: LeaseId, session_s: float, ended: Callable[[], None]) -> None:
        self.held.append(lease)
        self.ended = ended

    def let_go(self) -> None:
        self.ended = lambda: None

    async def close(self) -> None:
        self.let_go()


Scene = Callable[[EmbeddedStore, Registration, Renewals], Awaitable[None]]


def play(path: Path, scene: Scene, session_s: float = 60.0) -> None:
    async def main() -> None:
        store = await EmbeddedStore.open(path / "metadata")
        renewals = Renewals()
        broker = Broker(7, -1, {"L": Endpoint("L", "h", 9092)})
        registration = Registration(store, broker, renewals, session_s, told=lambda broker: None)
        async with asyncio.timeout(60):
            await registration.register()
            keeping = asyncio.create_task(registration.run())
            await scene(store, registration, renewals)
            keeping.cancel()
            await registration.withdraw()
        await store.close()

    asyncio.run(main())


async def created(store: Store) -> int:
    """The create revision of the broker's key; 0 if there is no key."""
    return next((entry.create_revision for entry in (await store.read(keys.broker(7))).entries), 0)


def test_a_lease_that_lives_although_it_was_said_to_have_ended_keeps_its_registration(tmp_path: Path) -> None:
    async def scene(store: EmbeddedStore, registration: Registration, renewals: Renewals) -> None:
        epoch, lease = registration.epoch, registration.lease
        for times in (2, 3):
            renewals.ended()
            await until(lambda times=times: len(renewals.held) == times)  # type: ignore[misc]
        assert renewals.held == [lease] * 3
        assert registration.epoch == epoch == await created(store)

    play(tmp_path, scene)


def test_a_lease_that_has_ended_is_followed_by_another_registration(tmp_path: Path) -> None:
    async def scene(store: EmbeddedStore, registration: Registration, renewals: Renewals) -> None:
        epoch, lease = registration.epoch, registration.lease
        await store.revoke(lease)
        renewals.ended()
        await until(lambda: registration.epoch != epoch)
        assert registration.epoch > epoch
        assert registration.epoch == await created(store)
        assert registration.broker.previous_epoch == epoch
        assert renewals.held == [lease, registration.lease]

    play(tmp_path, scene)


def test_an_epoch_whose_deletion_was_visible_is_never_used_again(tmp_path: Path) -> None:
    """The key is gone, but its lease lives. A process that has seen the deletion must not see the same epoch again."""

    async def scene(store: EmbeddedStore, registration: Registration, renewals: Renewals) -> None:
        epoch = registration.epoch
        await store.transact([], [Delete(keys.broker(7))])
        assert await created(store) == 0
        renewals.ended()
        await until(lambda: registration.epoch != epoch)
        assert registration.epoch > epoch
        assert registration.epoch == await created(store)

    play(tmp_path, scene)


def test_a_registration_that_came_and_went_between_two_images_is_missed(tmp_path: Path) -> None:
    """A broker with a slow watch had stopped renewing its lease, so its key was deleted. The next image was a snapshot,
    and neither it nor the image before had the key. Before the fix, the broker then never registered again."""

    async def scene(store: EmbeddedStore, registration: Registration, renewals: Renewals) -> None:
        epoch = registration.epoch
        registration.let_go()
        await store.revoke(registration.lease)
        registration.noticed(Image.of(await store.read()), Changed())
        await until(lambda: registration.epoch != epoch)
        assert registration.epoch == await created(store)

    play(tmp_path, scene)


def test_a_key_that_somebody_else_has_made_is_no_sign_of_life(tmp_path: Path) -> None:
    """The key was deleted, and then created by a successor. The broker waits for the end of the successor's
    registration, as it does at its start."""

    async def scene(store: EmbeddedStore, registration: Registration, renewals: Renewals) -> None:
        epoch = registration.epoch
        await store.transact([], [Delete(keys.broker(7))])
        other = Registration(
            store, Broker(7, -1, {"L": Endpoint("L", "h", 9093)}), Renewals(), 60.0, told=lambda broker: None
        )
        await other.register()
        renewals.ended()
        await asyncio.sleep(0.5)
        assert registration.epoch == epoch
        assert await created(store) == other.epoch
        await other.withdraw()
        await until(lambda: registration.epoch > other.epoch)

    play(tmp_path, scene)
