"""A coordinator's wait until it knows whether it has a successor.

A process that was stopped for longer than its session (SIGSTOP, a paused virtual machine) learns of its successor only
some milliseconds after it goes on. Until then it would answer from a state that is older than the successor's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

SURE_S = 0.5
_AGAIN_S = 0.01


async def known_again(leads_for_sure: Callable[[], bool], holds: Callable[[], bool]) -> None:
    """Waits until the metadata store has confirmed this broker's registration (`leads_for_sure`), or this broker no
    longer leads the partition in question (`holds` returns False). Waits `SURE_S` at most, because coordinators go on
    while the store answers nobody."""
    for _ in range(round(SURE_S / _AGAIN_S)):
        if leads_for_sure() or not holds():
            return
        await asyncio.sleep(_AGAIN_S)
