"""Runs a request's many small operations a few at a time: a request with thousands of operations mustn't keep the event
loop from other requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

AT_A_TIME = 32


async def gather_bounded(operation: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
    """The results of `operation` for all items, in the items' order. At most AT_A_TIME operations run at once."""
    results: list[R] = []
    for start in range(0, len(items), AT_A_TIME):
        results += await asyncio.gather(*map(operation, items[start : start + AT_A_TIME]))
        await asyncio.sleep(0)
    return results
