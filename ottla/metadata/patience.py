"""How a starting process waits for its metadata store, until the store answers and has a leader.

A store that has just been restarted, or is being moved, can't be reached for some seconds. If a starting process ended
at the first failed request, its supervisor would start it again after longer and longer pauses, and no log would say
why. So the process waits for the answer to each of its requests. Not only the first one may fail: the store may lose
its leader while a broker reads its logs.

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
    """The process got a request to stop before its store had answered."""


class Patience:
    """Repeats each of a starting process's requests to the store until it is answered. `stopping` ends the waiting."""

    def __init__(self, patience_s: float, stopping: asyncio.Event) -> None:
        """Each request is repeated for up to `patience_s`, and made at least once."""
        self._patience_s = patience_s
        self._stopping = stopping

    async def answer(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Calls `ask` until the store answers, and returns the answer. Meanwhile logs why the store doesn't answer.

        After `patience_s` it raises the last StoreUnavailable or UnknownOutcome. When `stopping` is set, it raises
        GivenUp. AccessRefused and ForeignStore are raised immediately, because waiting corrects neither a wrong
        password nor a wrong store.
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
                    logger.warning(
                        "this process waits for the metadata store, for at most %.0f s more: %s",
                        deadline - loop.time(),
                        reason,
                    )
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
