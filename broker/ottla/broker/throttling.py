"""Enforces the clients' quotas: charges each request to its client, and mutes the connections of throttled clients.

While no client has a limit, requests aren't charged, and dispatch pays for one look at `quotas.enforced`. Otherwise
each request of a client that has a limit has a `Charge`, by which its handler states what it costs; and so has each
request over the brokers' own listener, because the time of brokers' requests is measured. The answer is sent at once,
with the throttle time in it; for this time the broker reads nothing from the connection (KIP-219).

The identity of a connection is read anew for each request, because a login may change it. `ottla.broker.quota` decides;
this module knows the clock, the connections and the metadata.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.broker.part_settings import quota_windows
from ottla.broker.quota.client_quotas import ClientQuotas
from ottla.broker.quota.connection_rates import ConnectionRates, is_address, normal_address
from ottla.broker.quota.entities import IP
from ottla.protocol.applied_revision import AWAIT_REVISION
from ottla.protocol.errors import KafkaError

if TYPE_CHECKING:
    from ottla.broker.quota.mutations import Mutations
    from ottla.metadata.image import Changed, Image
    from ottla.net.connection import Connection
    from ottla.settings.config import BrokerConfig

logger = logging.getLogger(__name__)

T = TypeVar("T")

CONNECTION_CREATION_RATE = "connection_creation_rate"
RESOLVE_AGAIN_SECONDS = 60.0
WRITE_TXN_MARKERS = 27
_CHARGED_MAX = 10_000  # clients of which it is remembered whether they are charged
_CLIENT_ID_KEPT_MAX = 256  # characters; a client may send up to 32,767, which 10,000 clients would keep in memory
_EXEMPT = frozenset({WRITE_TXN_MARKERS, AWAIT_REVISION})  # only brokers send them


class Throttling:
    """The quotas of this broker, as the metadata sets them. `spawn` runs a coroutine in a task of the broker."""

    def __init__(
        self, config: BrokerConfig, now: Callable[[], float], spawn: Callable[[Coroutine[Any, Any, None], str], object]
    ) -> None:
        """`now` is the event loop's clock, in seconds."""
        self._now = now
        self._spawn = spawn
        self.quotas = ClientQuotas(quota_windows(config), quota_windows(config, "controller."))
        self.connection_rates = ConnectionRates(quota_windows(config))
        self._by_name: dict[str | None, float] = {}  # the limits of addresses; None: the default
        self._resolved: dict[str, tuple[str, ...]] = {}  # the addresses of names
        self._inter_broker = config.listeners.inter_broker
        self._charged: dict[tuple[str, str | None], bool] = {}  # by principal and client id
        self.configured(config)

    def now_ms(self) -> int:
        """The time by which quotas are measured, in ms."""
        return int(self._now() * 1000)

    def configured(self, config: BrokerConfig) -> None:
        """Takes over the limits on the rate of new connections."""
        in_all = config.get_int("max.connection.creation.rate")
        self.connection_rates.set_limits(in_all, config.listener_creation_rates)

    def changed(self, image: Image, changed: Changed) -> None:
        """Takes over the quotas of the entities that have changed."""
        by_address = False
        if changed.quotas:
            self._charged.clear()
        for entity in changed.quotas:
            quota = image.quotas.get(entity)
            limits: Mapping[str, float] = {} if quota is None else quota.limits
            kind, name = entity[0]
            if kind != IP:
                self.quotas.set_limits(entity, limits)
                continue
            by_address = True
            self._by_name.pop(name, None)
            if CONNECTION_CREATION_RATE in limits:
                self._by_name[name] = limits[CONNECTION_CREATION_RATE]
        if by_address:
            self._set_addresses()

    def charges(self, connection: Connection, client_id: str | None) -> bool:
        """Whether a request of the client is charged."""
        client = connection.principal, client_id
        charged = self._charged.get(client)
        if charged is None:
            charged = self.quotas.concern(client[0].partition(":")[2], client_id or "")
            if client_id is None or len(client_id) <= _CLIENT_ID_KEPT_MAX:
                if len(self._charged) >= _CHARGED_MAX:
                    self._charged.clear()
                self._charged[client] = charged
        return charged or connection.listener.name == self._inter_broker

    def charge(self, connection: Connection, api_key: int, client_id: str | None, size_bytes: int) -> Charge:
        """Begins to charge a request of `size_bytes` to its client."""
        user = connection.principal.partition(":")[2]
        charge = Charge(self, connection, user, client_id or "", size_bytes)
        charge.exempt = api_key in _EXEMPT
        return charge

    def _set_addresses(self) -> None:
        """Hands on the limits of addresses. Names are resolved in the background, and their limits handed on later."""
        names = [name for name in self._by_name if name is not None and not is_address(name)]
        self._resolved = {name: found for name, found in self._resolved.items() if name in names}
        limits: dict[str, float] = {}
        for name, limit in self._by_name.items():
            if name is not None:
                limits.update(dict.fromkeys(self._resolved.get(name, (normal_address(name),)), limit))
        self.connection_rates.set_host_limits(limits, self._by_name.get(None))
        for name in names:
            if name not in self._resolved:
                self._resolved[name] = ()
                self._spawn(self._resolve(name), f"address of {name}")

    async def _resolve(self, name: str) -> None:
        while name in self._by_name:
            try:
                found = await asyncio.get_running_loop().getaddrinfo(name, None)
            except (OSError, UnicodeError) as error:
                logger.warning("the quota of ip %s has no effect, because the name has no address: %s", name, error)
                await asyncio.sleep(RESOLVE_AGAIN_SECONDS)
                continue
            self._resolved[name] = tuple(dict.fromkeys(normal_address(str(info[4][0])) for info in found))
            self._set_addresses()
            return
        self._resolved.pop(name, None)


class Charge:
    """What one request costs its client. Exactly one of `produced`, `fetched` and `answered` is called, when the answer
    is made; each returns the answer's throttle time in ms, and mutes the connection for this time."""

    __slots__ = (
        "_client_id",
        "_connection",
        "_made",
        "_mutations",
        "_size_bytes",
        "_throttling",
        "_until_ms",
        "_user",
        "exempt",
        "meter",
        "unanswered",
    )

    def __init__(
        self, throttling: Throttling, connection: Connection, user: str, client_id: str, size_bytes: int
    ) -> None:
        self._throttling = throttling
        self._connection = connection
        self.meter = connection.metered()
        """Measures the request's time: the event loop works on the request in its contexts."""
        self._user = user
        self._client_id = client_id
        self._size_bytes = size_bytes
        self._mutations: Mutations | None = None
        self._made = False
        self._until_ms = 0
        self.exempt = False
        """Whether nothing is charged, because the request comes from another broker."""
        self.unanswered = False
        """Whether the request gets no answer (acks=0): then its time isn't counted. Produce sets it."""

    def produced(self) -> int:
        """Charges a Produce request, once: if its answer has to wait, the charge is made before, when the request's
        bytes have been taken over. Later calls return how much is left of the throttle time."""
        now_ms = self._throttling.now_ms()
        if not self._made:
            self._made = True
            work_ns = self.meter.take_ns()
            counted = None if self.unanswered else work_ns
            quotas = self._throttling.quotas
            if self.unanswered:
                quotas.exempted(work_ns, now_ms)
            self._mute(quotas.produced(self._user, self._client_id, self._size_bytes, counted, now_ms), now_ms)
        return max(self._until_ms - now_ms, 0)

    def fetched(self, size_bytes: int) -> tuple[int, bool]:
        """Charges a consumer's fetch, whose answer has `size_bytes`. Returns also whether the answer must be empty."""
        now_ms = self._throttling.now_ms()
        quotas = self._throttling.quotas
        time_ms, empty = quotas.fetched(self._user, self._client_id, size_bytes, self.meter.take_ns(), now_ms)
        return self._mute(time_ms, now_ms), empty

    def fetch_bytes_max(self, asked: int) -> int:
        """The largest answer to a fetch of `asked` bytes: a larger one would always be throttled."""
        largest = self._throttling.quotas.fetch.largest(self._user, self._client_id)
        return asked if largest is None or asked <= largest else int(largest)

    def answered(self) -> int:
        """Charges a request of any other API."""
        now_ms = self._throttling.now_ms()
        quotas = self._throttling.quotas
        work_ns = self.meter.take_ns()
        if self.exempt:
            quotas.exempted(work_ns, now_ms)
            return 0
        return self._mute(quotas.answered(self._user, self._client_id, work_ns, self._mutations, now_ms), now_ms)

    def mutates(self, partitions: int, *, strict: bool) -> None:
        """Charges the creation or deletion of partitions. Raises KafkaError(throttling_quota_exceeded) if the quota is
        `strict` and used up."""
        now_ms = self._throttling.now_ms()
        if self._mutations is None:
            self._mutations = self._throttling.quotas.mutations(self._user, self._client_id, strict, now_ms)
        if self._mutations is not None:
            self._mutations.take(partitions, now_ms)

    def affords(self, partitions: int) -> bool:
        """Whether the client's quota allows it to create partitions, which are charged then. A client that names a
        missing topic by mistake isn't throttled for it."""
        now_ms = self._throttling.now_ms()
        mutations = self._throttling.quotas.mutations(self._user, self._client_id, True, now_ms)
        try:
            if mutations is not None:
                mutations.take(partitions, now_ms)
        except KafkaError:
            return False
        return True

    def _mute(self, time_ms: int, now_ms: int) -> int:
        if time_ms:
            self._until_ms = now_ms + time_ms
            self._connection.mute(time_ms / 1000)
        return time_ms


class Metered(Coroutine[Any, Any, T]):
    """A coroutine whose steps are charged as a request's time. Its waits aren't."""

    __slots__ = ("_charge", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, T], charge: Charge) -> None:
        self._coroutine = coroutine
        self._charge = charge

    def send(self, value: Any) -> Any:
        """Runs the coroutine's next step."""
        with self._charge.meter:
            return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:
        """Runs the coroutine's next step, which begins with an exception."""
        with self._charge.meter:
            return self._coroutine.throw(*error)

    def close(self) -> None:
        """Ends the coroutine."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()


def metered(charge: Charge | None, coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
    """The coroutine, with its steps charged to the request if the request is charged."""
    return coroutine if charge is None else Metered(coroutine, charge)
