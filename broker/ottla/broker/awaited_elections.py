"""Elections that are due in a moment: who asks for the leader meanwhile waits for the answer that helps.

A client that has lost a leader asks at once who leads now. If it is told that the dead broker does, or nothing, it asks
again after a pause of its own, up to a second. The election takes some 0.15 s. So an answer about a partition waits
for it where all of this holds:

1. The leader is known to be dead: it hung up on this broker, or its registration vanished, no longer ago than
   `RECENT_S`. After that the death was none, or the election can't take place, and waiting wouldn't help.
2. A replica may be elected: it is in the ISR under its present registration, may lead, and isn't known to be dead.
3. Nothing waits behind the answer, although a connection's answers leave in order: Produce requests that come behind
   it are served meanwhile, and any other request ends the wait, unless it asks for leaders, too.

The wait lasts `WAIT_S` at most. A broker that died stays in the list of brokers for `LISTED_S` longer than it is
registered. librdkafka, which learns in one answer that a broker is gone and that another one leads, often forgets the
second over the first (its thread for the old broker gives the partition to nobody after it was given to the new one),
and asks again a second later.

Source: ours; Apache Kafka answers at once, with what it knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from ottla.metadata.image import Changed, Image
from ottla.metadata.model import Broker, Partition
from ottla.net.pending import Pending

WAIT_S = 0.3
RECENT_S = 0.5
LISTED_S = 2.0
_TURNS = (
    3  # of the event loop: the leader that hung up on the client hung up on this broker, too, and that is read then
)
_ASKS_FOR_LEADERS = frozenset({3, 10})  # Metadata, FindCoordinator

Wanted = Mapping[UUID, Collection[int]]
"""The partitions that an answer is about: indexes by topic id."""


@dataclass(slots=True, eq=False)
class _Waiter:
    wanted: Wanted
    answer: Pending
    over: asyncio.Future[None]

    def hurried(self) -> None:
        """A request can't start before the answer: the wait ends, unless that request would wait for the same."""
        if self.answer.behind not in _ASKS_FOR_LEADERS:
            self.end()

    def end(self) -> None:
        """The answer is given now."""
        if not self.over.done():
            self.over.set_result(None)


class AwaitedElections:
    """Who waits for elections in this broker. Owned by the event loop."""

    def __init__(self, broker_id: int, image: Callable[[], Image], clock: Callable[[], float]) -> None:
        self._id = broker_id
        self._image = image
        self._clock = clock
        self._lost_at: dict[int, float] = {}
        self._vanished: dict[int, tuple[Broker, float]] = {}  # registrations, and when; not of brokers that drained
        self._brokers: Mapping[int, Broker] = {}
        self._waiting: list[_Waiter] = []

    # ---- what is known of other brokers

    def changed(self, image: Image, changed: Changed) -> None:
        """A listener of the image: registrations vanish and appear, leaders are elected."""
        before, self._brokers = self._brokers, image.brokers
        for broker_id in changed.brokers:
            registered, known = image.brokers.get(broker_id), before.get(broker_id)
            if registered is None:
                self._lost_at[broker_id] = self._clock()
                if known is not None and known.electable:
                    self._vanished[broker_id] = (known, self._clock())
            elif known is None or known.epoch != registered.epoch:
                self._lost_at.pop(broker_id, None)
        if changed.brokers or changed.topics:
            self._look_again(changed.topics if not changed.brokers else None)

    def lost(self, broker_id: int) -> None:
        """The broker hung up."""
        self._lost_at[broker_id] = self._clock()

    def found(self, broker_id: int) -> None:
        """The broker is there again, or was there all the time."""
        if broker_id in self._brokers:
            self._lost_at.pop(broker_id, None)
            self._look_again(None)

    @property
    def dead(self) -> frozenset[int]:
        """Brokers that are known to have died just now."""
        if not self._lost_at:
            return frozenset()
        since = self._clock() - RECENT_S
        return frozenset(broker_id for broker_id, lost_at in self._lost_at.items() if lost_at > since)

    @property
    def just_died(self) -> list[Broker]:
        """Brokers whose registration has vanished just now, although they didn't drain."""
        since = self._clock() - LISTED_S
        return [
            broker
            for broker, vanished_at in self._vanished.values()
            if vanished_at > since and broker.id not in self._brokers
        ]

    # ---- who waits

    async def settled(self, wanted: Wanted, answer: Pending) -> None:
        """Waits until each of the partitions has a leader that isn't known to be dead, or none can be elected; `answer`
        is what waits."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        if not self._due(wanted):
            return
        waiter = _Waiter(wanted, answer, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        answer.hurry = waiter.hurried
        if answer.behind is not None:
            waiter.hurried()
        answer.let_others_start()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT_S):
                    await waiter.over
        finally:
            answer.hurry = None
            answer.overtakable = False
            self._waiting.remove(waiter)

    def _look_again(self, topics: Collection[UUID] | None) -> None:
        """Ends the waits that are over; `topics`: only theirs."""
        for waiter in self._waiting:
            if (topics is None or not waiter.wanted.keys().isdisjoint(topics)) and not self._due(waiter.wanted):
                waiter.end()

    def _due(self, wanted: Wanted) -> bool:
        """Whether a dead broker leads any of these partitions, and another one may be elected in its place."""
        dead = self.dead
        if not dead:
            return False
        image = self._image()
        states = (image.partition(topic_id, index) for topic_id, indexes in wanted.items() for index in indexes)
        return any(state is not None and state.leader in dead and self._electable(state, dead) for state in states)

    def _electable(self, state: Partition, dead: frozenset[int]) -> bool:
        brokers = self._brokers
        return any(
            (broker := brokers.get(replica)) is not None and broker.electable and broker.epoch == epoch
            for replica, epoch in zip(state.isr, state.isr_epochs, strict=True)
            if replica not in dead
        )
