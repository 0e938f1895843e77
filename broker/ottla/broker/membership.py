"""A broker's membership in its cluster: its registration, under the addresses that it advertises to clients.

The registration is made once the listening sockets are open, because only then all addresses are known. The
registration is kept alive for as long as the broker runs. If it is lost, the broker registers again, with another epoch
(`ottla.metadata.registration`). When a setting changes the addresses, they are written to the present registration.
"""

from __future__ import annotations

import asyncio
import logging
import platform
from collections.abc import Callable
from typing import Any

from ottla.broker.advertised import advertised
from ottla.broker.tasks import Tasks
from ottla.metadata.follower import Follower
from ottla.metadata.model.brokers import Broker as Registered
from ottla.metadata.model.brokers import BrokerState, Endpoint
from ottla.metadata.patience import Patience
from ottla.metadata.registration import Registration
from ottla.metadata.renewal import Renewal
from ottla.metadata.store import LeaseExpired, LeaseId, Store, StoreUnavailable
from ottla.net.server import Server, ServerTls
from ottla.settings.config import BrokerConfig

logger = logging.getLogger(__name__)

_ANNOUNCED_AGAIN_S = 0.5


class Membership:
    """The membership of broker `broker_id`. `told` is called with the epoch and the lease of each registration, also of
    a registration that replaces a lost one."""

    def __init__(
        self,
        broker_id: int,
        store: Store,
        follower: Follower,
        config: Callable[[], BrokerConfig],
        tasks: Tasks,
        renewal: Callable[[Store, float], Renewal],
        told: Callable[[int, LeaseId], None],
    ) -> None:
        self.keeping: asyncio.Task[Any] | None = None  # renews the registration, and registers anew after a loss
        self._broker_id = broker_id
        self._store = store
        self._follower = follower
        self._config = config
        self._tasks = tasks
        self._renewal = renewal
        self._told = told
        self._ports: dict[str, int] = {}
        self._endpoints: dict[str, Endpoint] = {}
        self._registration: Registration | None = None

    @property
    def session_seconds(self) -> float:
        """How many seconds the registration outlives a process that no longer renews it."""
        return self._config().get_int("broker.session.timeout.ms") / 1000

    @property
    def silence_seconds(self) -> float:
        """For how many seconds the metadata store hasn't confirmed the registration; 0 before there is a
        registration."""
        registration = self._registration
        return registration.unconfirmed_s if registration is not None and registration.made else 0.0

    @property
    def registered(self) -> bool:
        """Whether the broker has registered at least once."""
        return self._registration is not None and self._registration.made

    @property
    def shown(self) -> bool:
        """Whether this broker's image shows the broker's present registration."""
        seen = self._follower.image.brokers.get(self._broker_id)
        return seen is not None and self._registration is not None and seen.epoch == self._registration.epoch

    @property
    def incarnation(self) -> str:
        """The random word that distinguishes this process's registrations from registrations of other processes; empty
        before the first registration."""
        return "" if self._registration is None else self._registration.broker.incarnation

    @property
    def bootstrap(self) -> str:
        """An advertised address of the broker, as host:port."""
        endpoint = next(iter(self._endpoints.values()))
        return f"{endpoint.host}:{endpoint.port}"

    async def listen(self, server: Server, tls: Callable[[str], ServerTls | None]) -> None:
        """Opens the listening sockets; `tls` gives TLS of each encrypted listener. Raises OSError."""
        for endpoint in self._config().listeners.opened:
            opened = await server.listen(endpoint.listener, endpoint.host, endpoint.port, tls(endpoint.listener))
            self._ports[endpoint.listener] = opened.port

    async def register(self, patience: Patience, stopped_epoch: int) -> None:
        """Registers as running, with the addresses of the open sockets, and keeps the registration.

        `stopped_epoch` is the epoch of the registration that ended with a clean stop. Raises NodeIdTaken and the errors
        of `Patience.answer`.
        """
        config = self._config()
        self._endpoints = advertised(config, self._ports, platform.node())
        registered = Registered(
            id=self._broker_id,
            epoch=-1,
            endpoints=self._endpoints,
            rack=config.get_str("broker.rack") or None,
            state=BrokerState.RUNNING,
            host=platform.node(),
        )
        renewal = self._renewal(self._store, config.get_int("ottla.event.loop.stall.ms.max") / 1000)
        registration = self._registration = Registration(
            self._store, registered, renewal, self.session_seconds, told=self._made
        )
        self._follower.listen(registration.noticed)
        await patience.answer(lambda: registration.register(stopped_epoch))
        self.keeping = self._tasks.spawn(registration.run(), "registration", vital=True)

    def advertise_anew(self) -> None:
        """Writes the addresses that the present settings give to the registration, if there is one yet."""
        if self._registration is not None:
            self._tasks.spawn(self._advertise(self._registration), "other addresses")

    async def announce_draining(self) -> None:
        """Writes to the registration that the broker is draining. Raises StoreUnavailable, LeaseExpired."""
        assert self._registration is not None
        await self._registration.change(state=BrokerState.DRAINING)

    def let_go(self) -> None:
        """Stops keeping the lease alive, until the broker learns that the lease has ended, and registers anew."""
        assert self._registration is not None
        self._registration.let_go()

    async def end(self, *, withdrawn: bool) -> None:
        """Ends the registration. With `withdrawn`, the registration is deleted from the metadata store; otherwise the
        store isn't called."""
        if self._registration is not None:
            await (self._registration.withdraw() if withdrawn else self._registration.abandon())

    def _made(self, registered: Registered) -> None:
        assert self._registration is not None
        self._told(registered.epoch, self._registration.lease)

    async def _advertise(self, registration: Registration) -> None:
        """Writes the present addresses to the registration, and tries again for as long as the store can't be
        reached."""
        while True:
            self._endpoints = advertised(self._config(), self._ports, platform.node())
            try:
                await registration.change(endpoints=self._endpoints)
                return
            except (StoreUnavailable, LeaseExpired) as reason:
                logger.warning("new addresses couldn't be announced: %s", reason)
                await asyncio.sleep(_ANNOUNCED_AGAIN_S)
