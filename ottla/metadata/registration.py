"""A broker's registration: a key with the broker's addresses and state, which exists as long as its lease.

The epoch of a registration is the revision that created its key. A broker registers again, with a new epoch, when its
lease was lost (by a pause longer than the session), or when the controller took the broker for dead and deleted its key
(`quick_death.py` of the controller). By then the controller may have elected other leaders, so the broker leads only
partitions whose states name its new epoch. The process has lost nothing of its logs, so the new registration names the
epoch of the former one. A `Renewal` keeps the lease alive, even while the event loop waits for a disk.

A member of etcd that is still reading its log at its start may report in error that a lease has ended. But the broker
shouldn't register anew without need, because all other processes take a new registration for a restart of the broker.
So the broker reads its key first. If the key still exists under that lease, at the revision that this process wrote
last, no process has deleted it, and the broker renews the lease once more. If any process can have seen the deletion of
a registration, that registration is never resumed.

A broker refuses to register under a finalised level of a feature that it doesn't support. The registration's
transaction guards the levels that were checked, so that no level can be raised between the check and the registration.

If the node id is registered already, the process waits until that registration ends. The registration of a killed
predecessor ends with its lease. The process gives up with NodeIdTaken only if the other process is still alive after a
session (`predecessor.py`).
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
from .features import check_levels
from .image import Changed, Image
from .model.brokers import NO_EPOCH, Broker, BrokerState, Endpoint
from .model.settings import Feature
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
    """One broker's registration. The broker calls `register`, runs `run` as a task, and calls `withdraw` at the end."""

    def __init__(
        self,
        store: Store,
        broker: Broker,
        renewal: Renewal,
        session_s: float = 9.0,
        *,
        told: Callable[[Broker], None],
    ) -> None:
        """`broker` is the registration to make. Its epochs and its revision needn't be set: they are filled in here.

        `renewal` is closed with the registration. `told` is called with each registration, once it has its epoch.
        """
        self._store = store
        self._renewal = renewal
        self._session_s = session_s
        self._lease = NO_LEASE
        self._changing = asyncio.Lock()
        self._withdrawn = False
        self._image: Image | None = None
        self._missed = asyncio.Event()
        self._ended = False  # whether the store has said that the lease has ended
        self.broker = replace(broker, epoch=NO_EPOCH, incarnation=broker.incarnation or secrets.token_hex(8))
        self._told = told

    @property
    def epoch(self) -> int:
        """The epoch of the present registration. Each new registration has a greater one."""
        return self.broker.epoch

    @property
    def made(self) -> bool:
        """Whether this process has registered the broker at least once; False while it waits for the end of a
        predecessor's registration."""
        return self.epoch != NO_EPOCH

    @property
    def unconfirmed_s(self) -> float:
        """Seconds since the store last confirmed the registration.

        While the store answers, this is at most a quarter of the session; while it can't be reached, it is more.
        """
        return self._renewal.unconfirmed_s

    def let_go(self) -> None:
        """Stops keeping the lease alive. When the lease has ended, the broker registers anew."""
        self._renewal.let_go()

    @property
    def lease(self) -> LeaseId:
        """The lease of the present registration. Keys that are attached to this lease end with the registration."""
        return self._lease

    async def register(self, previous_epoch: int = NO_EPOCH) -> Broker:
        """Registers the broker, after the registration of a dead predecessor has ended. May be called again on failure.

        `previous_epoch` is the epoch of the registration that ended with a clean stop. Raises NodeIdTaken,
        UnsupportedLevel, StoreUnavailable, UnknownOutcome.
        """
        self.broker = replace(self.broker, previous_epoch=previous_epoch)
        async with self._changing:
            while True:
                try:
                    return await self._register()
                except LeaseExpired as reason:  # the process was paused for longer than a session
                    logger.warning("broker %d: registers once more: %s", self.broker.id, reason)

    async def run(self) -> None:
        """Registers again whenever the lease has ended or the key is gone, until cancelled. Raises NodeIdTaken,
        UnsupportedLevel."""
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

    def noticed(self, image: Image, _changed: Changed) -> None:
        """Takes each new image of the metadata, and checks whether another process deleted the broker's key although
        its lease hasn't ended.

        The check looks at the image itself, because the difference between two images may not show the deletion. If one
        snapshot brings both the creation and the deletion of the key, then neither the image before the snapshot nor
        the image after it has the key.
        """
        self._image = image
        if self._deleted_by_others():
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
        """Ends the registration. If the store can't be reached, the lease ends with its session."""
        self._withdrawn = True
        self._renewal.let_go()
        async with self._changing:
            try:
                await self._store.revoke(self._lease)
            except (StoreUnavailable, UnknownOutcome) as reason:
                logger.warning(
                    "broker %d: the registration couldn't be deleted, and ends with its session: %s",
                    self.broker.id,
                    reason,
                )
        await self._renewal.close()

    async def abandon(self) -> None:
        """Stops renewing the registration. Sends the store no request, because it isn't this broker's store any
        more."""
        self._withdrawn = True
        await self._renewal.close()

    async def _lives_after_all(self) -> bool:
        """Whether the lease exists although the store said that it has ended. If it exists, it is renewed again.

        Raises StoreUnavailable.
        """
        async with self._changing:
            found = await self._find(keys.broker(self.broker.id))
            if found is None or (found.lease, found.mod_revision) != (self._lease, self.broker.revision):
                return False
            # A member of etcd that has this key has read its whole log, and knows every lease that was granted.
            try:
                await self._store.keep_alive(self._lease)
            except LeaseExpired:
                return False
            logger.warning(
                "broker %d: the store reported its lease as ended, but the lease exists: it is renewed again",
                self.broker.id,
            )
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
        levels = await self._checked_levels()
        self._lease = await self._store.grant(self._session_s)
        put = Put(key, self.broker.encode(), self._lease)
        loop = asyncio.get_running_loop()
        patient_until = loop.time() + self._session_s
        predecessor = Predecessor(self._store)
        said = False
        while True:
            try:
                result = await self._store.transact([Guard(key, 0), *levels], [put])
            except UnknownOutcome:
                continue  # if the key was written, the next attempt finds it
            if isinstance(result, Committed):
                self.broker = replace(self.broker, epoch=result.revision, revision=result.revision)
                break
            if key not in result.failed:  # a level was changed meanwhile
                levels = await self._checked_levels()
                continue
            entry = result.failed[key]
            if entry is None:
                continue
            if entry.lease == self._lease:
                self._adopt(entry)
                break
            holder = Broker.decode(entry)
            # This process wrote the key in an earlier attempt, under another lease.
            if holder.incarnation == self.broker.incarnation:
                self.broker = replace(self.broker, previous_epoch=holder.epoch)
                put = Put(key, self.broker.encode(), self._lease)
                await self._store.revoke(entry.lease)
                continue
            if loop.time() > patient_until and await predecessor.lives(entry.lease):
                await self._store.revoke(self._lease)
                raise NodeIdTaken(
                    f"node id {self.broker.id} is registered by a live broker on {holder.host or 'an unknown host'}"
                    f" ({_addresses(holder)}); stop that broker, or start this one with another node.id"
                )
            if not said:
                said = True
                logger.info("broker %d: waiting for the registration of a predecessor to end", self.broker.id)
            await asyncio.sleep(_RETRY_S)
            with suppress(StoreUnavailable):  # the next transaction waits longer, and shows if the lease has ended
                await self._store.keep_alive(self._lease)
        self._hold()
        logger.info("broker %d: registered with epoch %d", self.broker.id, self.epoch)
        self._told(self.broker)
        return self.broker

    async def _checked_levels(self) -> list[Guard]:
        """Guards on the finalised levels of all features, after the check that this broker supports these levels.

        Raises UnsupportedLevel, StoreUnavailable.
        """
        entries = (await self._store.read(keys.feature.prefix)).entries
        finalised = {keys.feature.of(entry.key): Feature.decode(entry) for entry in entries}
        check_levels(finalised, self.broker.features)
        names = sorted({*finalised, *self.broker.features})
        return [Guard(keys.feature(name), finalised[name].revision if name in finalised else 0) for name in names]

    async def _reread(self, key: str) -> None:
        self._adopt(await self._find(key))

    async def _find(self, key: str) -> Entry | None:
        return next((entry for entry in (await self._store.read(key)).entries if entry.key == key), None)

    def _adopt(self, entry: Entry | None) -> None:
        """Takes over the revisions of this process's registration from the store. Raises LeaseExpired if it is gone."""
        if entry is None or entry.lease != self._lease:
            raise LeaseExpired(f"the registration of broker {self.broker.id} is gone")
        self.broker = replace(self.broker, epoch=entry.create_revision, revision=entry.mod_revision)


def _addresses(broker: Broker) -> str:
    return ", ".join(f"{e.listener}://{e.host}:{e.port}" for e in broker.endpoints.values())
