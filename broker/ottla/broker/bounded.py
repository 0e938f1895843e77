"""Many small operations of one request, some at a time: one of thousands mustn't keep the loop from the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

AT_A_TIME = 32


async def gather_bounded(operation: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
    """What `operation` makes of each item, in their order; at most AT_A_TIME run at once."""
    results: list[R] = []
    for start in range(0, len(items), AT_A_TIME):
        results += await asyncio.gather(*map(operation, items[start : start + AT_A_TIME]))
        await asyncio.sleep(0)
    return results
