"""How far the other brokers have applied the metadata, so that what one of them answered an administrator holds at all.

A broker answers an administrator from its own image. Every other broker reaches the revision of that image some
milliseconds later, and a client that asks there at once would be told of an older one. So the answer waits until every
live broker has *applied* the revision: its image shows it, and the logs that it leads by it are open. Revisions are
asked for by `protocol/applied_revision.py` over the inter-broker listener; the store takes no part. Rules:

1. An answer waits `WAIT_S` at most. A broker that hasn't applied the revision by then is a *straggler*: whoever waits
   for it goes on, and nobody waits for it again until it has caught up. So a stopped or slow broker costs that time
   once. A broker whose connection fails is a straggler at once: a dead one, or one of a version that doesn't know the
   question, costs nothing.
2. A straggler has caught up when it has applied the newest revision that anybody wanted, or when it answers within
   `WAIT_S` that it has applied the revision which it was asked for.
3. One question at a time is under way to each broker, for the newest revision wanted when it was sent: many answers
   that wait at the same time share it.
4. What is known of a broker belongs to its registration; a broker that registers anew is asked anew. Where the image's
   own revision falls, the store is another one, and all is forgotten.

Source: ours; in Apache Kafka each client waits and asks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from ottla.metadata.image import Changed, Image
from ottla.metadata.model import Broker
from ottla.net.peer import Connect, Peer
from ottla.protocol.applied_revision import AWAIT_REVISION, VERSION, Question, read_answer, write_question
from ottla.protocol.errors import ProtocolError

logger = logging.getLogger(__name__)

WAIT_S = 0.2
_ASKED_FOR_MS = 1000  # a broker answers after that, however far it is
_ANSWERED_S = 5.0  # or the connection is given up
_BACK_OFF_S_MIN = 0.05
_BACK_OFF_S_MAX = 5.0

Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[Any]]


class AppliedRevisions:
    """What the other brokers have applied, as far as this one has asked. Owned by the event loop."""

    def __init__(
        self, broker_id: int, image: Callable[[], Image], listener: str, spawn: Spawn, connect: Connect
    ) -> None:
        """`listener` is the name of the brokers' inter-broker listener; `spawn` runs a task until the broker stops."""
        self.went_ahead_count = 0  # answers that some live broker hadn't applied
        self._id = broker_id
        self._image = image
        self._listener = listener
        self._spawn = spawn
        self._connect = connect
        self._revision = 0
        self._others: dict[int, _Other] = {}

    def changed(self, image: Image, changed: Changed) -> None:
        """Follows the registrations: a listener of the image."""
        fell, self._revision = image.revision < self._revision, image.revision
        if not changed.brokers and not fell:
            return
        for other in list(self._others.values()):
            registered = image.brokers.get(other.id)
            if fell or registered is None or registered.epoch != other.epoch:
                del self._others[other.id]
                other.end()
        for broker in image.brokers.values():
            if broker.id != self._id and broker.id not in self._others:
                other = self._others[broker.id] = _Other(broker, self._dial)
                other.task = self._spawn(other.run(), f"revisions applied by broker {broker.id}")

    async def everywhere(self) -> frozenset[int]:
        """Waits until all live brokers have applied the revision of the image; those that may not have in the end."""
        revision = self._image().revision
        others = [other for other in self._others.values() if other.applied < revision]
        waits = {other: wait for other in others if (wait := other.wait_for(revision)) is not None}
        if waits:
            await asyncio.wait(waits.values(), timeout=WAIT_S)
            for other, wait in waits.items():
                if not wait.done():
                    other.fell_behind(f"hasn't applied revision {revision} within {WAIT_S:g} s")
        behind = frozenset(other.id for other in others if other.applied < revision and not other.ended)
        self.went_ahead_count += bool(behind)
        return behind

    @property
    def straggler_count(self) -> int:
        """Live brokers that nobody waits for at present."""
        return sum(other.straggles for other in self._others.values())

    def _dial(self, other: _Other) -> Peer:
        """A peer at the broker's present address. Raises OSError where it has none."""
        registered = self._image().brokers.get(other.id)
        endpoint = None if registered is None else registered.endpoints.get(self._listener)
        if endpoint is None:
            raise OSError(f"broker {other.id} has no listener {self._listener}")
        return Peer(self._connect, endpoint.host, endpoint.port, f"broker-{self._id}-revisions")


class _Other:
    """One registration of another broker, and the task that asks it."""

    def __init__(self, broker: Broker, dial: Callable[[_Other], Peer]) -> None:
        self.id = broker.id
        self.epoch = broker.epoch
        self.applied = 0
        self.straggles = False
        self.ended = False
        self.task: asyncio.Task[Any] | None = None
        self._dial = dial
        self._peer: Peer | None = None
        self._wanted = 0  # the newest revision that anybody wanted applied
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._news = asyncio.Event()
        self._failures = 0  # in a row

    def wait_for(self, revision: int) -> asyncio.Future[None] | None:
        """Wants a revision applied. The future is done when it is, or when nobody waits for this broker any more; None
        where that is so already."""
        self._wanted = max(self._wanted, revision)
        self._news.set()
        if self.straggles:
            return None
        wait: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((revision, wait))
        return wait

    def fell_behind(self, why: str) -> None:
        """Nobody waits for this broker until it has caught up."""
        if not self.straggles:
            self.straggles = True
            logger.warning("broker %d %s: administrators' answers don't wait for it until it does", self.id, why)
        self._release(self._wanted)

    def end(self) -> None:
        """The registration is gone."""
        self.ended = True
        self._release(self._wanted)
        if self.task is not None:
            self.task.cancel()

    async def run(self) -> None:
        """Asks for what is wanted until cancelled."""
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                while self.applied < self._wanted:
                    await self._ask()
        finally:
            if self._peer is not None:
                self._peer.close()

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        wanted, began = self._wanted, loop.time()
        kept = self._peer is not None and self._peer.connected
        try:
            if self._peer is None or not kept:
                self._peer = self._dial(self)
            question = write_question(Question(wanted, _ASKED_FOR_MS))
            answer = await self._peer.request(AWAIT_REVISION, VERSION, question, _ANSWERED_S)
            applied = read_answer(answer.frame, answer.start, answer.end)
        except (OSError, ProtocolError) as error:
            if kept:
                return  # an idle connection may have been closed: a new one tells
            self.fell_behind(f"doesn't say what it has applied ({str(error) or 'timed out'})")
            seconds = min(_BACK_OFF_S_MIN * 2.0 ** min(self._failures, 16), _BACK_OFF_S_MAX)
            self._failures += 1
            await asyncio.sleep(seconds)
            return
        self._failures = 0
        self.applied = max(self.applied, applied)
        self._release(self.applied)
        in_time = applied >= wanted and loop.time() - began <= WAIT_S
        if self.straggles and (in_time or self.applied >= self._wanted):
            self.straggles = False
            logger.info("broker %d has caught up with revision %d", self.id, self.applied)

    def _release(self, revision: int) -> None:
        """Those who wait for that revision or an older one go on."""
        for wanted, wait in self._waiting:
            if wanted <= revision and not wait.done():
                wait.set_result(None)
        self._waiting = [(wanted, wait) for wanted, wait in self._waiting if not wait.done()]
