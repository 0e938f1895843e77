"""How a process that starts waits for its metadata store: until that answers, has a leader, and lets it in.

A store that has just been restarted, or is being moved, is away for some seconds. A process that ends at once for want
of it is started again by whoever supervises it, later each time, and reads in no log what it waited for. So every
question of a start is waited for, the last as the first: a store may lose its leader while a broker reads its logs.

Source: Kafka's initial.broker.registration.timeout.ms, after which a broker gives up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from .store import AccessRefused, ForeignStore, StoreUnavailable, UnknownOutcome

logger = logging.getLogger(__name__)

T = TypeVar("T")

_AGAIN_S = 0.2
_SAID_AGAIN_S = 10.0


class GivenUp(Exception):
    """The process is to stop before its store has answered."""


class Patience:
    """Of one start, which `stopping` ends."""

    def __init__(self, patience_s: float, stopping: asyncio.Event) -> None:
        """`patience_s`: for how long each question is waited for, and asked at least once."""
        self._patience_s = patience_s
        self._stopping = stopping

    async def answer(self, ask: Callable[[], Awaitable[T]]) -> T:
        """What `ask` returns, which is called again while the store doesn't answer; says for what it waits.

        Raises StoreUnavailable or UnknownOutcome, the last reason, when the patience is over; GivenUp; and at once
        AccessRefused and ForeignStore: neither a password nor a wrong store is mended by waiting.
        """
        loop = asyncio.get_running_loop()
        deadline, say_at = loop.time() + self._patience_s, loop.time()
        waited = False
        while not self._stopping.is_set():
            try:
                answer = await ask()
            except (AccessRefused, ForeignStore):
                raise
            except (StoreUnavailable, UnknownOutcome) as reason:
                if loop.time() >= deadline:
                    raise
                if loop.time() >= say_at:
                    logger.warning("waits for the metadata store, %.0f s more: %s", deadline - loop.time(), reason)
                    say_at = loop.time() + _SAID_AGAIN_S
                waited = True
            else:
                if waited:
                    logger.info("the metadata store answers")
                return answer
            try:
                await asyncio.wait_for(self._stopping.wait(), _AGAIN_S)
            except TimeoutError:
                continue
        raise GivenUp
