"""Hands a broker's partitions over to other brokers, before the broker stops (Kafka's controlled shutdown).

The broker is announced as draining. The controller then elects other leaders for its partitions and takes it out of the
ISRs, wherever the ISR has another running member. A follower that merely stopped would keep its leaders waiting for
fetches that don't come any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

from ottla.metadata.follower import Follower
from ottla.metadata.image import Image
from ottla.metadata.model.partitions import Partition

logger = logging.getLogger(__name__)

# The longest wait for the announcement: a metadata store without room for writes refuses every attempt. It is well
# below the time after which a supervisor kills a stopping process.
_ANNOUNCING_S = 5.0
_HANDING_OVER_S = 15.0
# How long clients' connections stay open after the hand-over. Meanwhile this broker's answers name the new leaders. A
# client whose connection is closed asks any broker for the new leader, so all brokers must know it by then.
_LINGERING_S = 0.5


async def hand_over(broker_id: int, follower: Follower, announce_draining: Callable[[], Awaitable[None]]) -> None:
    """Announces that the broker is draining, and waits until the broker has handed over its partitions, for some
    seconds at most. Returns also if the announcement fails, or if other brokers don't take over in time, because the
    broker stops in any case."""
    led = any(partition.leader == broker_id for partition in _to_hand_over(broker_id, follower.image))
    try:
        async with asyncio.timeout(_ANNOUNCING_S):
            await announce_draining()
    except Exception as error:  # whatever the store's error is, the stop goes on: the logs must be closed
        reason = str(error) or f"the metadata store didn't answer within {_ANNOUNCING_S:g} s"
        logger.warning("the broker couldn't announce that it drains: %s", reason)
        return
    try:
        await follower.wait(lambda image: None if any(_to_hand_over(broker_id, image)) else True, _HANDING_OVER_S)
    except TimeoutError:
        left = sum(partition.leader == broker_id for partition in _to_hand_over(broker_id, follower.image))
        logger.warning("the broker stops, although it still leads %d partitions that other brokers could lead", left)
    if led:
        await asyncio.sleep(_LINGERING_S)


def _to_hand_over(broker_id: int, image: Image) -> Iterator[Partition]:
    """The partitions whose ISR has this broker and another running broker. Partitions restored from a backup are left
    out, because their ISR isn't decided yet."""
    running = {broker.id for broker in image.brokers.values() if broker.electable and broker.id != broker_id}
    for partitions in image.partitions.values():
        for partition in partitions.values():
            if broker_id in partition.isr and not running.isdisjoint(partition.isr) and not partition.restored:
                yield partition
