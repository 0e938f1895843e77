"""A broker's own key: it says where the broker listens and how far it is, and exists as long as its lease.

The epoch of a registration is the revision that created its key. When the lease was lost (a pause longer than the
session), or somebody took the broker for dead and deleted its key (`quick_death.py` of the controller), it registers
again, with a new epoch; by then the controller has moved on, and the broker leads only by state written after that. The
process has lost nothing of its logs, and says so: the new registration names the epoch of the former. What keeps the
lease alive is a `Renewal`, which goes on while the event loop waits for a disk.

That a lease has ended may be said in error, by a member of etcd that has only begun to read its log. A registration
anew would be a death and a birth to everybody, so the key is looked at first: while it is there, under that lease and
at the revision that this process wrote last, nobody has deleted it, and the lease is asked for again. A registration
whose deletion anybody can have seen is never taken up again.

A node id that is registered already makes a second process wait until the registration ends, as that of a predecessor
that was killed does. It gives up, and names the other, only if that one lives after a session (`predecessor.py`).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from . import keys
from .image import Changed, Image
from .model import NO_EPOCH, Broker, BrokerState, Endpoint
from .predecessor import Predecessor
from .renewal import Renewal
from .store import (
    NO_LEASE,
    Committed,
    Entry,
    Guard,
    LeaseExpired,
    LeaseId,
    Put,
    Store,
    StoreUnavailable,
    UnknownOutcome,
)

logger = logging.getLogger(__name__)

_RETRY_S = 0.25


class NodeIdTaken(Exception):
    """Another live process has registered under this node id."""


class Registration:
    """One broker's registration. `register` first, then `run` in a task of the owner's, `withdraw` at the end."""

    def __init__(
        self,
        store: Store,
        broker: Broker,
        renewal: Renewal,
        session_s: float = 9.0,
        *,
        told: Callable[[Broker], None],
    ) -> None:
        """`broker` says what to register; its epochs and revision are filled in here. `renewal` is closed with it.
        `told` hears of each registration, with its epoch."""
        self._store = store
        self._renewal = renewal
        self._session_s = session_s
        self._lease = NO_LEASE
        self._changing = asyncio.Lock()
        self._withdrawn = False
        self._image: Image | None = None
        self._missed = asyncio.Event()
        self._ended = False  # the lease, which the store has said
        self.broker = replace(broker, epoch=NO_EPOCH, incarnation=broker.incarnation or secrets.token_hex(8))
        self._told = told

    @property
    def epoch(self) -> int:
        """The epoch of the present registration; greater after each loss of the lease."""
        return self.broker.epoch

    @property
    def made(self) -> bool:
        """Whether there has been a registration: false while the first one waits for a predecessor's to end."""
        return self.epoch != NO_EPOCH

    @property
    def unconfirmed_s(self) -> float:
        """Seconds since the store last confirmed the registration: a quarter of the session, more while it is away."""
        return self._renewal.unconfirmed_s

    def let_go(self) -> None:
        """Doesn't keep the lease alive any more; when it has ended and that is heard of, the broker registers anew."""
        self._renewal.let_go()

    @property
    def lease(self) -> LeaseId:
        """The lease of the present registration: what is attached to it ends with it."""
        return self._lease

    async def register(self, previous_epoch: int = NO_EPOCH) -> Broker:
        """Registers, waiting for a dead predecessor's registration to end; may be called again where that failed.
        `previous_epoch` is the one that ended with a clean stop. Raises NodeIdTaken, StoreUnavailable, UnknownOutcome.
        """
        self.broker = replace(self.broker, previous_epoch=previous_epoch)
        async with self._changing:
            while True:
                try:
                    return await self._register()
                except LeaseExpired as reason:  # the process was held for longer than a session
                    logger.warning("broker %d: registers once more: %s", self.broker.id, reason)

    async def run(self) -> None:
        """Registers again whenever the lease has ended or the key is gone, until cancelled."""
        while not self._withdrawn:
            await self._missed.wait()
            self._missed.clear()
            try:
                if self._deleted_by_others():
                    self._renewal.let_go()
                    await self._store.revoke(self._lease)
                elif not self._ended or await self._lives_after_all():
                    continue
                await self._register_again()
            except (StoreUnavailable, UnknownOutcome) as reason:
                logger.warning("broker %d: can't register anew: %s", self.broker.id, reason)
                await asyncio.sleep(_RETRY_S)
                self._missed.set()

    def _lease_ended(self, lease: LeaseId) -> None:
        if lease == self._lease:
            self._ended = True
            self._missed.set()

    def noticed(self, image: Image, changed: Changed) -> None:
        """A listener of the image: the key may be gone although the lease lives."""
        self._image = image
        if self.broker.id in changed.brokers and self._deleted_by_others():
            self._missed.set()

    def _deleted_by_others(self) -> bool:
        image = self._image
        if image is None or not self.made or image.revision < self.broker.revision:
            return False
        found = image.brokers.get(self.broker.id)
        return found is None or found.incarnation != self.broker.incarnation

    async def change(self, state: BrokerState | None = None, endpoints: Mapping[str, Endpoint] | None = None) -> None:
        """Writes another state or other addresses under the same epoch. Raises StoreUnavailable, LeaseExpired."""
        async with self._changing:
            wanted = replace(
                self.broker,
                state=self.broker.state if state is None else state,
                endpoints=self.broker.endpoints if endpoints is None else endpoints,
            )
            key = keys.broker(wanted.id)
            put = Put(key, wanted.encode(), self._lease)
            while True:
                try:
                    result = await self._store.transact([Guard(key, self.broker.revision, self._lease)], [put])
                except UnknownOutcome:
                    await self._reread(key)
                    continue
                if isinstance(result, Committed):
                    self.broker = replace(wanted, revision=result.revision)
                    return
                self._adopt(result.failed[key])

    async def withdraw(self) -> None:
        """Ends the registration. A store that can't be reached is left to end the lease by itself."""
        self._withdrawn = True
        self._renewal.let_go()
        async with self._changing:
            try:
                await self._store.revoke(self._lease)
            except (StoreUnavailable, UnknownOutcome) as reason:
                logger.warning("broker %d: the registration ends with its session: %s", self.broker.id, reason)
        await self._renewal.close()

    async def abandon(self) -> None:
        """Leaves the registration to a store that isn't this broker's any more; nothing of it is kept alive."""
        self._withdrawn = True
        await self._renewal.close()

    async def _lives_after_all(self) -> bool:
        """Whether the lease lives that was said to have ended; it is kept alive again then. Raises StoreUnavailable."""
        async with self._changing:
            found = await self._find(keys.broker(self.broker.id))
            if found is None or (found.lease, found.mod_revision) != (self._lease, self.broker.revision):
                return False
            # Whoever has answered that has read its whole log, and knows of every lease that was granted.
            try:
                await self._store.keep_alive(self._lease)
            except LeaseExpired:
                return False
            logger.warning("broker %d: its lease was said to have ended, and lives", self.broker.id)
            self._hold()
            return True

    def _hold(self) -> None:
        self._ended = False
        self._renewal.hold(self._lease, self._session_s, partial(self._lease_ended, self._lease))

    async def _register_again(self) -> None:
        async with self._changing:
            self.broker = replace(self.broker, previous_epoch=self.epoch)
            while not self._withdrawn:
                logger.warning("broker %d: registration epoch %d is lost, registering anew", self.broker.id, self.epoch)
                try:
                    await self._register()
                    return
                except (StoreUnavailable, UnknownOutcome, LeaseExpired) as reason:
                    logger.warning("broker %d: can't register: %s", self.broker.id, reason)
                    await asyncio.sleep(_RETRY_S)

    async def _register(self) -> Broker:
        key = keys.broker(self.broker.id)
        self._renewal.let_go()
        self._lease = await self._store.grant(self._session_s)
        put = Put(key, self.broker.encode(), self._lease)
        loop = asyncio.get_running_loop()
        patient_until = loop.time() + self._session_s
        predecessor = Predecessor(self._store)
        said = False
        while True:
            try:
                result = await self._store.transact([Guard(key, 0)], [put])
            except UnknownOutcome:
                continue  # if it did happen, the next try is rejected by our own key
            if isinstance(result, Committed):
                self.broker = replace(self.broker, epoch=result.revision, revision=result.revision)
                break
            entry = result.failed[key]
            if entry is None:
                continue
            if entry.lease == self._lease:
                self._adopt(entry)
                break
            holder = Broker.decode(entry)
            if holder.incarnation == self.broker.incarnation:  # a try of our own, under a lease that was given up
                self.broker = replace(self.broker, previous_epoch=holder.epoch)
                put = Put(key, self.broker.encode(), self._lease)
                await self._store.revoke(entry.lease)
                continue
            if loop.time() > patient_until and await predecessor.lives(entry.lease):
                await self._store.revoke(self._lease)
                raise NodeIdTaken(
                    f"node id {self.broker.id} is registered by a live broker on {holder.host or 'an unknown host'}"
                    f" ({_addresses(holder)}); stop that one, or start this one with another node.id"
                )
            if not said:
                said = True
                logger.info("broker %d: waiting for the registration of a predecessor to end", self.broker.id)
            await asyncio.sleep(_RETRY_S)
            with suppress(StoreUnavailable):  # the next try has more patience, and says whether the lease is gone
                await self._store.keep_alive(self._lease)
        self._hold()
        logger.info("broker %d: registered with epoch %d", self.broker.id, self.epoch)
        self._told(self.broker)
        return self.broker

    async def _reread(self, key: str) -> None:
        self._adopt(await self._find(key))

    async def _find(self, key: str) -> Entry | None:
        return next((entry for entry in (await self._store.read(key)).entries if entry.key == key), None)

    def _adopt(self, entry: Entry | None) -> None:
        """Takes over the revisions of our own registration as the store has it."""
        if entry is None or entry.lease != self._lease:
            raise LeaseExpired(f"the registration of broker {self.broker.id} is gone")
        self.broker = replace(self.broker, epoch=entry.create_revision, revision=entry.mod_revision)


def _addresses(broker: Broker) -> str:
    return ", ".join(f"{e.listener}://{e.host}:{e.port}" for e in broker.endpoints.values())
