"""Answers of handlers that run without a task and have nothing to await."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .declaration import Response


def at_once(response: Response) -> asyncio.Future[Response]:
    """A future whose result is `response` already. A handler that runs without a task returns it."""
    answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    answer.set_result(response)
    return answer
