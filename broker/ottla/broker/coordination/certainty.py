"""A coordinator's wait until it knows whether it has a successor.

A process that was stopped for longer than its session (SIGSTOP, a paused virtual machine) learns of its successor only
some milliseconds after it goes on. Until then it would answer from a state that is older than the successor's. So it
waits, `SURE_S` at most. After a wait that was in vain, further requests don't wait until the store has answered again:
the store may answer nobody for minutes, and coordinators go on meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

SURE_S = 0.5
_AGAIN_S = 0.01


class Certainty:
    """The wait of all requests of one broker. `leads_for_sure` returns False if the metadata store hasn't confirmed the
    broker's registration for a session; `spawn` runs a task until the coordinator stops."""

    def __init__(
        self, leads_for_sure: Callable[[], bool], spawn: Callable[[Coroutine[Any, Any, None]], object]
    ) -> None:
        self._leads_for_sure = leads_for_sure
        self._spawn = spawn
        self._look: asyncio.Future[None] | None = None
        self._in_vain = False  # whether the last wait was in vain

    async def known(self) -> None:
        """Returns when the store has confirmed the registration, at the latest after `SURE_S`."""
        if self._leads_for_sure():
            self._in_vain = False
        elif not self._in_vain:
            if self._look is None:
                self._look = asyncio.get_running_loop().create_future()
                self._spawn(self._watch(self._look))
            await asyncio.wait([self._look])

    async def _watch(self, look: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SURE_S
        try:
            while True:
                self._in_vain = not self._leads_for_sure()
                if not self._in_vain or loop.time() >= deadline:
                    break
                await asyncio.sleep(_AGAIN_S)
        finally:
            self._look = None
            look.set_result(None)
