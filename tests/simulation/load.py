"""A follower comes back while producers write without a pause to its leader, the only in-sync replica.

As in Kafka, the follower can join the ISR, because the high watermark waits for a follower that has caught up. While
there are other faults, the outcome of the scene isn't checked. After all faults are healed, the scene is played once
more, and the follower has to join.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ottla.metadata.model.partitions import NO_LEADER

from .producer import Producer
from .topics import LOADED

if TYPE_CHECKING:
    from ottla.metadata.model.partitions import Partition

    from .cluster import Node
    from .faults import Faults

LOOK_S = 0.01
LEAVES_WITHIN_S = 15.0  # sessions and the allowed lag are shorter
JOINS_WITHIN_S = 1.0  # virtual time, from the moment at which the broker serves: the follower has little to copy


class Load:
    """Producers with acks=1. While the load is on, each sends one batch after the other."""

    def __init__(self, producers: Sequence[Producer]) -> None:
        self._producers = producers
        self._on = asyncio.Event()
        self._stopped = False

    async def run(self) -> None:
        """Runs the producers until `stop`."""
        async with asyncio.TaskGroup() as group:
            for producer in self._producers:
                group.create_task(self._send(producer))

    def begin(self) -> None:
        self._on.set()

    def end(self) -> None:
        if not self._stopped:
            self._on.clear()

    def stop(self) -> None:
        """Ends the load for ever."""
        self._stopped = True
        self._on.set()

    async def _send(self, producer: Producer) -> None:
        while True:
            await self._on.wait()
            if self._stopped:
                return
            await producer.send_one()


def follower_under_load(faults: Faults) -> str:
    """Begins the scene of this module while other faults happen. Returns the host of the follower that is killed; empty
    if there is no follower to kill."""
    chosen = _choose(faults)
    if chosen is None:
        return ""
    state, node = chosen
    faults.world.loop.create_task(_play(faults, state, node, lambda: faults.over))
    return node.host


async def joins_under_load(faults: Faults) -> str:
    """Plays the scene of this module without other faults. Returns a sentence if the killed follower doesn't join the
    ISR again, else an empty text."""
    chosen = _choose(faults)
    if chosen is None:
        return f"{LOADED} has no leader or no follower that runs, although all faults are healed"
    state, node = chosen
    if await _play(faults, state, node, lambda: False):
        return ""
    return f"{LOADED}: {node.host} doesn't join the ISR under load: {faults.observer.state((state.topic_id, 0))}"


def _choose(faults: Faults) -> tuple[Partition, Node] | None:
    """(the partition's state, a follower that can be killed); None if there is no such follower."""
    for state in faults.observer.states((LOADED,)):
        nodes = [faults.world.nodes[replica] for replica in state.replicas if replica != state.leader]
        alive = [node for node in nodes if node.process is not None and not node.stopping and not node.process.paused]
        if state.leader != NO_LEADER and alive:
            return state, faults.random.choice(alive)
    return None


async def _play(faults: Faults, state: Partition, node: Node, over: Callable[[], bool]) -> bool:
    """Kills the follower, starts it under load, and returns whether it joined the ISR."""
    load = faults.load
    assert load is not None
    key = (state.topic_id, state.index)

    async def until(condition: Callable[[], bool], limit_s: float) -> bool:
        for _ in range(int(limit_s / LOOK_S)):
            if condition():
                return True
            if over():
                break
            await asyncio.sleep(LOOK_S)
        return False

    def in_sync() -> bool:
        now = faults.observer.state(key)
        return now is not None and node.id in now.isr

    node.kill()
    await until(lambda: not in_sync(), LEAVES_WITHIN_S)
    load.begin()
    try:
        if over():
            return False
        faults.start(node)
        await until(lambda: node.serving, LEAVES_WITHIN_S)
        joined = await until(in_sync, JOINS_WITHIN_S)
        faults.world.counts["joins under load"] += joined
        return joined
    finally:
        load.end()
