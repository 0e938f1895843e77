"""The requests about transactions to other brokers: over one connection for each broker, one request at a time.

All work that comes up while a request is under way goes into the next request. So a slow broker gets few large
requests, and never a queue of requests. An outbox ends when there was no work for a while, which closes its connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Generic, Protocol, TypeVar

from ottla.metadata.image import Image
from ottla.net.peer import Answer, Peer
from ottla.net.streams import Connect
from ottla.protocol.errors import ProtocolError

logger = logging.getLogger(__name__)

# After this time a request is given up. A broker that has vanished holds up all work for it so long, although others
# may lead its partitions already; Kafka waits for 30 s.
ANSWERED_S = 10.0
IDLE_S = 60.0  # after which an outbox without work ends

B = TypeVar("B")
W = TypeVar("W", bound="Work[Any]")
Spawn = Callable[[Coroutine[Any, Any, None]], Any]


class Work(Protocol[B]):
    """The work that waits for one broker. `B` is the work of one request."""

    def __len__(self) -> int:
        """How much work waits; 0 if there is none."""

    def take(self) -> B | None:
        """Takes the work for the next request out of the waiting work; None if all of the waiting work has become
        unnecessary."""

    def request_of(self, batch: B) -> tuple[int, int, bytes]:
        """The API key, the version and the body of the request for `batch`."""

    def answered(self, batch: B, answer: Answer) -> None:
        """Called when the broker's answer has come. Raises ProtocolError if the answer is malformed."""

    def unanswered(self, batch: B, failures: int) -> None:
        """Called when no answer has come, or a malformed one. `failures` is how many requests in a row have failed."""


class Dial:
    """Makes connections to the brokers of the image, by their addresses on the inter-broker `listener`. `client_id` is
    the client id that this broker states to the others."""

    def __init__(self, image: Callable[[], Image], listener: str, connect: Connect, client_id: str) -> None:
        self._image = image
        self._listener = listener
        self._connect = connect
        self._client_id = client_id

    def knows(self, broker_id: int) -> bool:
        """Whether the broker is registered, and has an address on the listener."""
        broker = self._image().brokers.get(broker_id)
        return broker is not None and self._listener in broker.endpoints

    def __call__(self, broker_id: int) -> Peer:
        """A connection, which isn't open yet. Raises OSError for a broker without an address."""
        broker = self._image().brokers.get(broker_id)
        endpoint = None if broker is None else broker.endpoints.get(self._listener)
        if endpoint is None:
            raise OSError(f"broker {broker_id} has no listener {self._listener}")
        return Peer(self._connect, endpoint.host, endpoint.port, self._client_id)


class Outboxes(Generic[W]):
    """The outboxes of the brokers that there was work for lately. `new_work` makes an empty `Work`; `spawn` runs a task
    until this broker stops."""

    def __init__(self, dial: Callable[[int], Peer], spawn: Spawn, new_work: Callable[[], W]) -> None:
        self._dial = dial
        self._spawn = spawn
        self._new_work = new_work
        self._boxes: dict[int, Outbox[W]] = {}

    def work(self, broker_id: int) -> W:
        """The work for a broker. The caller adds to it before it awaits anything."""
        box = self._boxes.get(broker_id)
        if box is None:
            box = self._boxes[broker_id] = Outbox(broker_id, self._dial, self._new_work())
            self._spawn(self._run(box))
        box.added()
        return box.work

    def works(self) -> list[W]:
        """The work for each broker."""
        return [box.work for box in self._boxes.values()]

    async def _run(self, box: Outbox[W]) -> None:
        try:
            await box.run()
        finally:
            if self._boxes.get(box.broker_id) is box:
                del self._boxes[box.broker_id]


class Outbox(Generic[W]):
    """The requests to broker `broker_id`, over the connections that `dial` makes."""

    def __init__(self, broker_id: int, dial: Callable[[int], Peer], work: W) -> None:
        self.broker_id = broker_id
        self.work = work
        self._dial = dial
        self._peer: Peer | None = None
        self._failures = 0  # of requests, in a row
        self._added = asyncio.Event()

    def added(self) -> None:
        """Called when work has been added, or will be added in the present iteration of the event loop."""
        self._added.set()

    async def run(self) -> None:
        """Sends requests until there was no work for `IDLE_S`, and closes the connection then."""
        try:
            while await self._has_work():
                batch = self.work.take()
                if batch is not None:
                    await self._send(batch)
        finally:
            if self._peer is not None:
                self._peer.close()

    async def _has_work(self) -> bool:
        if not self.work:
            self._added.clear()
            try:
                async with asyncio.timeout(IDLE_S):
                    await self._added.wait()
            except TimeoutError:
                return bool(self.work)
        return True

    async def _send(self, batch: Any) -> None:
        try:
            peer = self._peer
            if peer is None or not peer.connected:
                peer = self._peer = self._dial(self.broker_id)
            key, version, body = self.work.request_of(batch)
            self.work.answered(batch, await peer.request(key, version, body, ANSWERED_S))
        except Exception as error:  # whatever it is, the work must not be lost
            self._failures += 1
            level = logging.WARNING if self._failures == 1 else logging.DEBUG
            if not isinstance(error, (OSError, ProtocolError)):
                logger.exception("a request to broker %d has failed unexpectedly", self.broker_id)
            logger.log(level, "broker %d didn't answer a request about transactions: %s", self.broker_id, error)
            self.work.unanswered(batch, self._failures)
        else:
            self._failures = 0
