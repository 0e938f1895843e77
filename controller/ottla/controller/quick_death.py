"""Finds out within moments that a broker's process has died, long before the broker's session ends.

When a process dies, its sockets are closed. When it is suspended, or cut off by the network, they stay open. So the
controller keeps a connection, over which nothing is sent, to every registered broker's inter-broker listener. If the
connection is cut and the next two attempts to connect are *refused*, no process listens there any more. Then the
watching process deletes the broker's registration, in one transaction that is guarded by the revisions of the
registration and of the controller's key. Any other outcome, above all a time-out, proves nothing: the registration
stays until the broker's session ends. If the registration of a live broker was deleted by mistake, the broker finds its
key gone and registers anew (`Registration`). That interrupts the broker for a moment, but loses no record, because the
new registration has another epoch.

A process that is only a candidate for controller watches the process that is the controller. If that process dies, the
same transaction deletes the controller's key too. A controller without a broker is watched at the address that its key
names. A draining broker closes its listener while it is still busy, so its registration isn't deleted here.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from ottla.metadata import keys
from ottla.metadata.follower import Follower
from ottla.metadata.image import Changed, Image
from ottla.metadata.model.brokers import NO_BROKER, Broker, BrokerState, ControllerHolder
from ottla.metadata.store import Committed, Delete, Guard, Store, StoreUnavailable, UnknownOutcome, Write
from ottla.net.streams import Connect, connect_tcp

logger = logging.getLogger(__name__)

_REFUSALS = 2
_REFUSED_S = 0.1  # the pause before the next attempt, after a refusal or after a connection that was cut early
_UNREACHABLE_S = 1.0  # the pause after any other failure; a connection that ends sooner than this was cut early
_CONNECT_S = 5.0


class _Watched(NamedTuple):
    """A broker's registration that is watched, and the address that it names. For a controller without a broker the
    registration is the controller's key, the epoch is that key's revision, and the id is below NO_BROKER."""

    id: int
    epoch: int
    host: str
    port: int


class QuickDeath:
    """Watches other processes on behalf of one process, which is the controller or a candidate. The owner runs `run` as
    a task."""

    def __init__(
        self,
        store: Store,
        follower: Follower,
        own_id: int,
        listener: str,
        connect: Connect,
        connect_to_pages: Connect = connect_tcp,
    ) -> None:
        """`own_id` is the id of the broker in the same process, `listener` the name of the brokers' inter-broker
        listener, to which `connect` connects. Of a controller without a broker the HTTP pages are watched; a connection
        to them needs neither TLS nor a login, since nothing is sent over it."""
        self.found_count = 0  # deaths that this process has declared
        self._store = store
        self._follower = follower
        self._own_id = own_id
        self._listener = listener
        self._connect = connect
        self._connect_to_pages = connect_to_pages
        self._woken = asyncio.Event()
        self._watches: dict[_Watched, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Keeps a connection to each process that this one has to watch, until cancelled."""
        self._follower.listen(self._noticed)
        try:
            while True:
                self._woken.clear()
                self._rewatch(self._follower.image)
                await self._woken.wait()
        finally:
            watches = list(self._watches.values())
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    def _noticed(self, image: Image, changed: Changed) -> None:
        if changed.brokers or changed.controller:
            self._woken.set()

    def _rewatch(self, image: Image) -> None:
        if image.controller is None:
            return  # the present watches stay until the metadata names a controller again
        wanted = self._wanted(image, image.controller)
        for watched in [watched for watched in self._watches if watched not in wanted]:
            self._watches.pop(watched).cancel()
        for watched in wanted:
            if watched not in self._watches:
                self._watches[watched] = asyncio.create_task(self._watch(watched), name=f"watch of broker {watched.id}")

    def _wanted(self, image: Image, holder: ControllerHolder) -> set[_Watched]:
        if holder.broker_id < NO_BROKER and holder.broker_id != self._own_id:
            return {_watched_holder(holder)} if holder.host else set()
        watched = image.brokers if holder.broker_id == self._own_id else {holder.broker_id}
        others = (broker for broker in image.brokers.values() if broker.id in watched and broker.id != self._own_id)
        return {wanted for broker in others if (wanted := self._watched(broker)) is not None}

    def _watched(self, broker: Broker) -> _Watched | None:
        endpoint = broker.endpoints.get(self._listener)
        return None if endpoint is None else _Watched(broker.id, broker.epoch, endpoint.host, endpoint.port)

    async def _watch(self, watched: _Watched) -> None:
        while True:
            try:
                return await self._until_dead(watched)
            except Exception:  # without a watch, this broker's death would be found only when its session ends
                logger.exception("the watch of broker %d has failed unexpectedly; it is started again", watched.id)
                await asyncio.sleep(_UNREACHABLE_S)

    async def _until_dead(self, watched: _Watched) -> None:
        connect = self._connect_to_pages if watched.id < NO_BROKER else self._connect
        was_connected = False
        refusals = 0
        while True:
            try:
                async with asyncio.timeout(_CONNECT_S):
                    stream = await connect(watched.host, watched.port)
            except ConnectionRefusedError:
                refusals += 1
                if was_connected and refusals >= _REFUSALS and await self._declare_dead(watched):
                    return
                await asyncio.sleep(_REFUSED_S if was_connected else _UNREACHABLE_S)
                continue
            except OSError:  # TimeoutError is an OSError
                refusals = 0
                await asyncio.sleep(_UNREACHABLE_S)
                continue
            was_connected, refusals = True, 0
            since = asyncio.get_running_loop().time()
            try:
                await stream.read_exactly(memoryview(bytearray(1)))
            except OSError:
                pass
            finally:
                stream.close()
            if asyncio.get_running_loop().time() - since < _UNREACHABLE_S:
                await asyncio.sleep(_REFUSED_S)  # a broker with too many connections closes each new one

    async def _declare_dead(self, watched: _Watched) -> bool:
        """Deletes the watched registration, unless it has been replaced meanwhile. Returns False if the watch has to
        continue."""
        image = self._follower.image
        broker, holder = image.brokers.get(watched.id), image.controller
        if watched.id < NO_BROKER:
            if holder is None or _watched_holder(holder) != watched:
                return True
            return await self._delete(
                f"controller {holder.name}",
                watched.epoch,
                [Guard(keys.controller.key, holder.revision)],
                [Delete(keys.controller.key)],
            )
        if broker is None or self._watched(broker) != watched:
            return True  # a newer registration or another address: a refusal at the old address proves nothing
        if broker.state is BrokerState.DRAINING:
            return False
        key = keys.broker(broker.id)
        guards = [Guard(key, broker.revision), Guard(keys.controller.key, 0 if holder is None else holder.revision)]
        writes: list[Write] = [Delete(key)]
        if holder is not None and holder.broker_id == broker.id:
            writes.append(Delete(keys.controller.key))
        return await self._delete(f"broker {broker.id}", broker.epoch, guards, writes)

    async def _delete(self, who: str, epoch: int, guards: list[Guard], writes: list[Write]) -> bool:
        try:
            result = await self._store.transact(guards, writes)
        except (StoreUnavailable, UnknownOutcome) as reason:
            logger.warning("%s is dead, but the metadata store didn't delete its registration: %s", who, reason)
            return False
        if not isinstance(result, Committed):
            return False
        self.found_count += 1
        logger.warning(
            "%s is dead: its connection was cut, then %d new ones were refused; registration epoch %d is deleted",
            who,
            _REFUSALS,
            epoch,
        )
        return True


def _watched_holder(holder: ControllerHolder) -> _Watched:
    return _Watched(holder.broker_id, holder.revision, holder.host, holder.port)
