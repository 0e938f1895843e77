"""The part of a run that has transactions: their topic, the producers of some transactional ids, readers of committed
records, and what must hold when all faults are healed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from ottla.broker.group.partitioning import OFFSETS_TOPIC
from ottla.broker.transaction.partitioning import TRANSACTIONS_TOPIC
from ottla.metadata.features import TRANSACTIONS
from ottla.protocol.errors import KafkaError

from .client import FIND_COORDINATOR, OFFSET_FETCH, Client, Unavailable, create_topic, finalise
from .committed import CommittedReader
from .history import name_of, of
from .losses import Permitted
from .topics import TRANSACTED
from .transactional import GROUP, TransactionalId

if TYPE_CHECKING:
    from .cluster import World
    from .faults import Knobs
    from .observer import Observer

SETTLES_WITHIN_S = 15.0  # after the transactions' time-outs: markers are sent again after 2 s at the latest
BEGUN_WITHIN_S = 2.0
READ_WITHIN_S = 30.0
LOOK_S = 0.1
LEVEL = 2  # of `transaction.version`


class Transacting:
    """The transactional ids of one run, and the readers of their topic. `client_of` makes a client with a name."""

    def __init__(self, world: World, knobs: Knobs, random: Random, client_of: Callable[[str], Client]) -> None:
        self.partitions = [(TRANSACTED, index) for index in range(knobs.transacted_partitions)]
        self.ids = [
            TransactionalId(client_of, f"x{number}", self.partitions, knobs.habits, self._slow_down)
            for number in range(knobs.transactional_ids)
        ]
        self.readers = [
            CommittedReader(client_of(f"rc{partition[1]}"), partition) for partition in self.partitions if self.ids
        ]
        self._world = world
        self._knobs = knobs
        self._random = random
        self._client_of = client_of
        self._reading: list[asyncio.Task[None]] = []
        self._raising: asyncio.Task[None] | None = None

    async def begin(self, setup: Client) -> list[tuple[TransactionalId, asyncio.Task[None]]]:
        """Creates the topic and starts producers and readers. Returns the ids, with the tasks of their producers, when
        each id has a producer: the faults are for its transactions."""
        if not self.ids:
            return []
        nodes, factor = list(self._world.nodes), self._knobs.replication_factor
        assignments = [self._random.sample(nodes, factor) for _ in self.partitions]
        await create_topic(setup, TRANSACTED, assignments, self._knobs.transacted_topic)
        self._reading = [asyncio.create_task(reader.run(0.1, 300)) for reader in self.readers]
        running = [(each, asyncio.create_task(each.run())) for each in self.ids]

        async def begun() -> bool:
            await asyncio.sleep(LOOK_S / 10)
            return self._world.counts["fence ok"] >= len(self.ids)

        await self._within(BEGUN_WITHIN_S, begun)
        return running

    def healed(self) -> None:
        """Begins to raise the level of `transaction.version` again: at level 0 no producer gets an id. An administrator
        may have lowered the level, or the store may have been replaced by one with an older level. The first attempts
        may find no broker, so they go on until all transactions are over."""
        if self.ids:
            self._raising = asyncio.create_task(self._raise_level())

    async def _raise_level(self) -> None:
        admin = self._client_of("raising")
        while True:
            await finalise(admin, TRANSACTIONS, LEVEL)
            await asyncio.sleep(1)

    def _slow_down(self) -> None:
        node = self._random.choice(list(self._world.nodes.values()))
        self._world.network.stall_some(node.host, 0.5, self._random.choice((0.01, 0.1)))

    def may_be_stuck(self) -> bool:
        """Whether an id's state may be older than the markers that were written for it, because the coordinator's
        records were lost: then the id may never get a producer again, as in Kafka."""
        return any(
            event["partition"][0] == TRANSACTIONS_TOPIC for event in of(self._world.history.events, "permitted", "ok")
        )

    async def settle(self, observer: Observer) -> str:
        """Waits until no transaction is open, and reads everything. Returns a sentence where that can't be done, or an
        empty text."""
        if not self.ids:
            return ""
        for task in self._reading:
            task.cancel()
        permitted = Permitted(self._world.history.events)
        complete = not any(permitted.anything_of(topic) for topic in (TRANSACTED, OFFSETS_TOPIC, TRANSACTIONS_TOPIC))
        refused = await self._all_over(observer)
        if self._raising is not None:
            self._raising.cancel()
        if refused and complete:
            return refused  # otherwise the record or the marker that ends a transaction may be lost
        for partition in self.partitions:
            if refused := await self._read(CommittedReader(self._client_of("final"), partition)):
                return refused
        for each in self.ids if complete else ():
            if not await self._within(READ_WITHIN_S, lambda group=each.group: self._offset_of(group)):  # type: ignore[misc]
                return f"the offsets of {each.group} can't be read"
        return ""

    async def _all_over(self, observer: Observer) -> str:
        """Waits until each transaction has ended: at the latest by its time-out. A transaction that began while its
        coordinator's clock was ahead ends when a new producer of its id begins."""
        topics = (TRANSACTED, OFFSETS_TOPIC)
        if self._world.counts["fault: clock"]:
            for each in self.ids:
                await each.take_over()

        async def over() -> bool:
            await asyncio.sleep(LOOK_S)
            return not observer.unstable(topics)

        limit_s = SETTLES_WITHIN_S + self._knobs.habits.timeout_ms / 1000
        if await self._within(limit_s, over):
            return ""
        return f"a transaction isn't over {limit_s:.0f} s after healing: {observer.unstable(topics)}"

    async def _read(self, reader: CommittedReader) -> str:
        """Notes the content of a partition, unless a transaction in it isn't over."""
        committed: list[tuple[int, str]] = []
        raw: list[tuple[int, str]] = []

        async def at_end() -> bool:
            found = await reader.poll(10)
            committed.extend(found or ())
            raw.extend(() if found is None else reader.raw)
            return found is not None and reader.position >= reader.stable

        if not await self._within(READ_WITHIN_S, at_end):
            return f"the committed records of {name_of(reader.partition)} can't be read"
        if reader.stable == reader.high_watermark:
            self._world.history.add("settled", "ok", partition=list(reader.partition), records=committed, raw=raw)
        return ""

    async def _offset_of(self, group: str) -> bool:
        """Notes the offset of a group. Returns whether that worked."""
        client = self._client_of("final")
        topic, index = self.partitions[0]
        message = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [index]}], "require_stable": True}
        try:
            found = await client.to_any(FIND_COORDINATOR, {"key": group, "key_type": GROUP})
            await client.refresh(topic)
            answer = await client.to_broker(found.node_id, OFFSET_FETCH, message)
            (result,) = answer.topics[0].partitions if not answer.error_code else (answer,)
            if result.error_code:
                raise KafkaError(result.error_code)
        except (Unavailable, KafkaError):
            await asyncio.sleep(LOOK_S)
            return False
        self._world.history.add("settled offset", "ok", group=group, offset=result.committed_offset)
        return True

    async def _within(self, limit_s: float, attempt: Callable[[], object]) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + limit_s
        while not await attempt():  # type: ignore[misc]
            if loop.time() > deadline:
                return False
        return True
