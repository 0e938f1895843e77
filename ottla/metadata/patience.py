"""How a process that starts waits for its metadata store: until that answers, has a leader, and lets it in.

A store that has just been restarted, or is being moved, is away for some seconds. A process that ends at once for want
of it is started again by whoever supervises it, later each time, and reads in no log what it waited for.

Source: Kafka's initial.broker.registration.timeout.ms, after which a broker gives up.
"""

from __future__ import annotations

import asyncio
import logging

from . import keys
from .store import AccessRefused, Store, StoreUnavailable

logger = logging.getLogger(__name__)

_AGAIN_S = 0.2
_SAID_AGAIN_S = 10.0


async def store_answers(store: Store, patience_s: float, stopping: asyncio.Event) -> bool:
    """Waits until the store answers a read, and says why it waits; False where `stopping` is set first.

    Raises StoreUnavailable, the last reason, after `patience_s`, and AccessRefused at once: a password isn't mended by
    waiting.
    """
    loop = asyncio.get_running_loop()
    deadline, say_at = loop.time() + patience_s, loop.time()
    waited = False
    while not stopping.is_set():
        try:
            await store.read(keys.CLUSTER)
        except AccessRefused:
            raise
        except StoreUnavailable as reason:
            if loop.time() >= deadline:
                raise
            if loop.time() >= say_at:
                logger.warning("waits for the metadata store, %.0f s more: %s", deadline - loop.time(), reason)
                say_at = loop.time() + _SAID_AGAIN_S
            waited = True
        else:
            if waited:
                logger.info("the metadata store answers")
            return True
        try:
            await asyncio.wait_for(stopping.wait(), _AGAIN_S)
        except TimeoutError:
            continue
    return False
