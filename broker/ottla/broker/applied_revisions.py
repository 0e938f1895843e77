"""Delays an administrator's answer until the other brokers have applied the metadata that the answer is about.

A broker answers an administrator from its own image. Every other broker reaches the revision of that image some
milliseconds later, and a client that asked another broker at once would get an older revision. So the answer waits
until every live broker has *applied* the revision: the broker's image shows the revision, and the logs that the broker
leads by that revision are open. Brokers ask each other for revisions over the inter-broker listener, by the protocol of
`protocol/applied_revision.py`; the store takes no part. Rules:

1. An answer waits `WAIT_S` at most. A broker that hasn't applied the revision by then is a *straggler*: the answers
   that wait for it are sent, and no further answer waits for it until it has caught up. So a stopped or slow broker
   delays answers by that time once. A broker whose connection fails is a straggler at once: a dead broker, or a broker
   of a version that doesn't know the question, costs no time.
2. A straggler has caught up (a) when it has applied the newest revision that it was asked for, or (b) when it has
   applied a revision within `WAIT_S` after an answer needed that revision. After (a), answers wait for the broker
   again, but for `TRUST_S` only: a broker that was stopped for a while keeps up again, but a slow broker doesn't. If
   the broker is late again, only (b) counts. While a broker is late, it is asked for every new revision, so that it can
   catch up without an administrator's request.
3. At most one question is under way to each broker. The question is for the newest revision that any answer waits for
   when the question is sent, so many waiting answers share it.
4. The state kept about a broker belongs to the broker's registration: a broker that registers anew is asked anew. If
   the revision of the image falls, the metadata store has been replaced by another one, and the state about all brokers
   is dropped.

This module makes the links to the other brokers (`broker_link.py`), so it also tells `AwaitedElections` which broker
has closed its connection. Source: ours; in Apache Kafka each client waits and asks again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from ottla.broker.awaited_elections import AwaitedElections
from ottla.broker.broker_link import BrokerLink
from ottla.metadata.image import Changed, Image
from ottla.metadata.model.brokers import Broker
from ottla.net.peer import Peer
from ottla.net.streams import Connect

logger = logging.getLogger(__name__)

WAIT_S = 0.2
TRUST_S = WAIT_S / 4  # twice the time in which a broker applies a change on an idle machine

_LATE_MAX = 2  # times; a broker that was late so often in a row has to show that it keeps up

Spawn = Callable[[Coroutine[Any, Any, None], str], asyncio.Task[Any]]


class AppliedRevisions:
    """The revisions that the other brokers have applied, as far as they were asked. Owned by the event loop."""

    def __init__(
        self,
        broker_id: int,
        image: Callable[[], Image],
        listener: str,
        elections: AwaitedElections,
        spawn: Spawn,
        connect: Connect,
    ) -> None:
        """`listener` is the name of the brokers' inter-broker listener; `spawn` runs a task until the broker stops."""
        self.went_ahead_count = 0  # answers that were sent before every live broker had applied their revision
        self._id = broker_id
        self._image = image
        self._listener = listener
        self._elections = elections
        self._spawn = spawn
        self._connect = connect
        self._revision = 0
        self._others: dict[int, _Other] = {}

    def changed(self, image: Image, changed: Changed) -> None:
        """Notes new and vanished registrations of brokers. A listener of the image."""
        fell, self._revision = image.revision < self._revision, image.revision
        for other in self._others.values():
            other.look_after(image.revision)
        if not changed.brokers and not fell:
            return
        for other in list(self._others.values()):
            registered = image.brokers.get(other.id)
            if fell or registered is None or registered.epoch != other.epoch:
                del self._others[other.id]
                other.end()
        for broker in image.brokers.values():
            if broker.id != self._id and broker.id not in self._others:
                other = self._others[broker.id] = _Other(broker, self._dial, self._elections)
                other.task = self._spawn(other.link.run(), f"link to broker {broker.id}")

    async def everywhere(self) -> frozenset[int]:
        """Waits until all live brokers have applied the revision of the image, for `WAIT_S` at most. Returns the ids of
        the live brokers that may not have applied it."""
        revision = self._image().revision
        others = [other for other in self._others.values() if other.applied < revision]
        waits = {other: wait for other in others if (wait := other.wait_for(revision)) is not None}
        if waits:
            await asyncio.wait(waits.values(), timeout=WAIT_S)
            for other, wait in waits.items():
                other.was_late(revision, wait, WAIT_S)
        behind = frozenset(other.id for other in others if other.applied < revision and not other.ended)
        self.went_ahead_count += bool(behind)
        return behind

    async def everywhere_by(self, deadline: float) -> frozenset[int]:
        """Waits until all registered brokers have applied the revision of the image, also brokers that are stragglers,
        and brokers that register meanwhile. The wait lasts until `deadline`, a time of the event loop. Returns the ids
        of the brokers that may not have applied the revision by then.

        A change of clients' rights waits in this way: its administrator has to know whether it is in force. A broker
        that died holds the wait up until its registration ends."""
        revision, loop = self._image().revision, asyncio.get_running_loop()
        while behind := [other for other in self._others.values() if other.applied < revision]:
            waits = [other.until_applied(revision) for other in behind]
            _, pending = await asyncio.wait(waits, timeout=max(0.0, deadline - loop.time()))
            if pending:
                return frozenset(other.id for other in behind if other.applied < revision and not other.ended)
        return frozenset()

    @property
    def straggler_count(self) -> int:
        """How many live brokers are stragglers, for which no answer waits at present."""
        return sum(other.straggles for other in self._others.values())

    def _dial(self, broker_id: int) -> Peer:
        """A connection to the broker's present address, not open yet. Raises OSError where the broker has no
        address."""
        registered = self._image().brokers.get(broker_id)
        endpoint = None if registered is None else registered.endpoints.get(self._listener)
        if endpoint is None:
            raise OSError(f"broker {broker_id} has no listener {self._listener}")
        return Peer(self._connect, endpoint.host, endpoint.port, f"broker-{self._id}-link")


class _Other:
    """One registration of another broker: the revision that the broker has applied, and the answers that wait for
    it."""

    def __init__(self, broker: Broker, dial: Callable[[int], Peer], elections: AwaitedElections) -> None:
        self.id = broker.id
        self.epoch = broker.epoch
        self.applied = 0
        self.straggles = False
        self._late = 0  # how many times in a row this broker was late
        self.ended = False
        self.task: asyncio.Task[Any] | None = None
        self.link = BrokerLink(lambda: dial(self.id), self)
        self._elections = elections
        self._wanted = 0  # the newest revision that this broker was asked for
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._unconditional: list[tuple[int, asyncio.Future[None]]] = []  # the waits of `until_applied`

    def wait_for(self, revision: int) -> asyncio.Future[None] | None:
        """Asks the broker for a revision. The future is done when the broker has applied the revision, or has become a
        straggler; None where the broker is a straggler already."""
        self._wanted = max(self._wanted, revision)
        self.link.want(revision)
        if self.straggles:
            return None
        loop = asyncio.get_running_loop()
        wait: asyncio.Future[None] = loop.create_future()
        self._waiting.append((revision, wait))
        if self._late:
            loop.call_later(TRUST_S, self.was_late, revision, wait, TRUST_S)
        return wait

    def until_applied(self, revision: int) -> asyncio.Future[None]:
        """Asks the broker for a revision. The future is done when the broker has applied the revision, or its
        registration has ended, and not when the broker becomes a straggler."""
        self._wanted = max(self._wanted, revision)
        self.link.want(revision)
        wait: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._unconditional.append((revision, wait))
        return wait

    def look_after(self, revision: int) -> None:
        """Asks a straggler for a new revision, to find out whether the straggler keeps up again."""
        if self._late:
            self._wanted = max(self._wanted, revision)
            self.link.want(revision)

    def was_late(self, revision: int, wait: asyncio.Future[None], seconds: float) -> None:
        """Called when an answer has waited `seconds` for this broker. If the wait hasn't ended, the broker becomes a
        straggler."""
        if wait.done():
            return
        self._late += 1
        again = "again " if self._late > 1 else ""
        self._fell_behind(f"{again}hasn't applied metadata revision {revision} within {seconds:g} s")

    def _fell_behind(self, why: str) -> None:
        if not self.straggles:
            self.straggles = True
            logger.warning(
                "broker %d %s: until it has caught up, administrators' answers don't wait for it", self.id, why
            )
        self._release(self._wanted)

    def end(self) -> None:
        """Ends all waits and the link, because the registration is gone."""
        self.ended = True
        self._release(self._wanted)
        self._unconditional = _without(self._unconditional, self._wanted)
        if self.task is not None:
            self.task.cancel()

    # ---- the calls of the link

    def answered(self, wanted: int, applied: int, seconds: float) -> None:
        """Called when the broker has said which revision it has applied; see `broker_link.Told`."""
        self.applied = max(self.applied, applied)
        self._release(self.applied)
        self._unconditional = _without(self._unconditional, self.applied)
        if applied >= wanted and seconds <= WAIT_S:
            self._late = 0
            self._caught_up()
        elif self.applied >= self._wanted:
            self._caught_up_late()

    def unanswered(self, why: str) -> None:
        """Called when the broker can't be reached, or doesn't answer: the broker becomes a straggler."""
        self._fell_behind(f"doesn't say which metadata revision it has applied ({why})")

    def cut(self) -> None:
        """Called when the open connection to the broker has ended, maybe because the broker died."""
        self._elections.lost(self.id)

    def back(self) -> None:
        """Called when there is a connection to the broker again."""
        self._elections.found(self.id)
        if self.applied >= self._wanted:
            self._caught_up_late()

    def _caught_up_late(self) -> None:
        """Called when the broker has applied every wanted revision, in time or not (rule 2a)."""
        if self._late < _LATE_MAX:
            self._caught_up()

    def _caught_up(self) -> None:
        if self.straggles:
            self.straggles = False
            logger.info("broker %d has caught up with metadata revision %d", self.id, self.applied)

    def _release(self, revision: int) -> None:
        """Ends the waits for `revision` and for older revisions."""
        self._waiting = _without(self._waiting, revision)


def _without(waits: list[tuple[int, asyncio.Future[None]]], revision: int) -> list[tuple[int, asyncio.Future[None]]]:
    """Ends the waits for `revision` and for older revisions. Returns the other ones."""
    for wanted, wait in waits:
        if wanted <= revision and not wait.done():
            wait.set_result(None)
    return [(wanted, wait) for wanted, wait in waits if not wait.done()]
