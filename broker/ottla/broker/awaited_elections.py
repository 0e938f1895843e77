"""Delays the answer to a client that asks for a partition's leader while an election is due within a moment.

A client that has lost its connection to a leader asks at once for the new leader. If the answer names the dead broker,
or no leader, the client asks again after a pause of its own of up to a second. The election takes some 0.15 s. So an
answer about a partition waits for the election where all of this holds:

1. The leader is known to be dead: it closed its connection to this broker, or its registration vanished, no longer ago
   than `RECENT_S`. After that time either the broker isn't dead or the election can't take place, and waiting wouldn't
   help.
2. A replica can be elected: it is in the ISR under its broker's present registration, the broker may lead, and the
   broker isn't known to be dead.
3. The wait delays no other request of the client's connection, although a connection's answers are sent in order:
   Produce requests that arrive during the wait are served, and any other request ends the wait, unless that request
   asks for leaders, too.

The wait lasts `WAIT_S` at most. A broker that died stays in the list of brokers for `LISTED_S` after its registration
vanished. The reason is librdkafka: if one answer says both that a broker is gone and that another broker leads,
librdkafka often loses the new leader (its thread for the old broker unassigns the partition after the partition was
assigned to the new broker), and asks again a second later.

Source: ours; Apache Kafka answers at once from its present metadata.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from uuid import UUID

from ottla.metadata.image import Changed, Image
from ottla.metadata.model.brokers import Broker
from ottla.metadata.model.partitions import Partition
from ottla.net.pending import Pending

WAIT_S = 0.3
RECENT_S = 0.5
LISTED_S = 2.0
# A leader that closed its connection to the client has closed its connection to this broker, too. The event loop
# notices that within so many turns.
_TURNS = 3
_ASKS_FOR_LEADERS = frozenset({3, 10})  # Metadata, FindCoordinator

Wanted = Mapping[UUID, Collection[int]]
"""The partitions that an answer describes: their indexes, by topic id."""


@dataclass(slots=True, eq=False)
class _Waiter:
    wanted: Wanted
    answer: Pending
    over: asyncio.Future[None]

    def hurried(self) -> None:
        """Called when another request of the same connection can't start before this answer is sent. Ends the wait,
        unless the other request asks for leaders, too."""
        if self.answer.behind not in _ASKS_FOR_LEADERS:
            self.end()

    def end(self) -> None:
        """Ends the wait, so that the answer is sent now."""
        if not self.over.done():
            self.over.set_result(None)


class AwaitedElections:
    """The answers of this broker that wait for elections. Owned by the event loop."""

    def __init__(self, broker_id: int, image: Callable[[], Image], clock: Callable[[], float]) -> None:
        self._id = broker_id
        self._image = image
        self._clock = clock
        self._lost_at: dict[int, float] = {}
        # Registrations that vanished, and when; not those of drained brokers.
        self._vanished: dict[int, tuple[Broker, float]] = {}
        self._brokers: Mapping[int, Broker] = {}
        self._waiting: list[_Waiter] = []

    # ---- events about other brokers

    def changed(self, image: Image, changed: Changed) -> None:
        """Follows registrations that vanish and appear, and elections of leaders: a listener of the image."""
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
        """Called when another broker has closed its connection to this broker."""
        self._lost_at[broker_id] = self._clock()

    def found(self, broker_id: int) -> None:
        """Called when this broker has a connection to another broker again: that broker has restarted, or never
        died."""
        if broker_id in self._brokers:
            self._lost_at.pop(broker_id, None)
            self._look_again(None)

    @property
    def dead(self) -> frozenset[int]:
        """The ids of the brokers that are known to have died within the last `RECENT_S`."""
        if not self._lost_at:
            return frozenset()
        since = self._clock() - RECENT_S
        return frozenset(broker_id for broker_id, lost_at in self._lost_at.items() if lost_at > since)

    @property
    def just_died(self) -> list[Broker]:
        """The brokers whose registration has vanished within the last `LISTED_S`, although they didn't drain."""
        since = self._clock() - LISTED_S
        return [
            broker
            for broker, vanished_at in self._vanished.values()
            if vanished_at > since and broker.id not in self._brokers
        ]

    # ---- answers that wait

    async def settled(self, wanted: Wanted, answer: Pending) -> None:
        """Waits for `WAIT_S` at most until each of the partitions has a leader that isn't known to be dead, or until no
        such leader can be elected. `answer` is the answer that waits."""
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
        """Ends the waits whose elections have taken place, or can't take place any more. `topics` limits this to the
        waits for those topics; None means all."""
        for waiter in self._waiting:
            if (topics is None or not waiter.wanted.keys().isdisjoint(topics)) and not self._due(waiter.wanted):
                waiter.end()

    def _due(self, wanted: Wanted) -> bool:
        """Whether the leader of any of these partitions is known to be dead while another replica can be elected."""
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
