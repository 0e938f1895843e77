"""A wait for a condition that other tasks bring about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(holds: Callable[[], bool], limit_s: float = 30.0) -> None:
    """Returns as soon as `holds` returns true. Raises AssertionError if this takes longer than `limit_s`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    while not holds():
        assert loop.time() < deadline, f"the condition doesn't hold after {limit_s:g} s"
        await asyncio.sleep(0.001)
