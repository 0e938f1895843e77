"""Answers of handlers that have nothing to await."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .declaration import Response


def at_once(response: Response) -> asyncio.Future[Response]:
    """A future that is done with `response`, as a handler without a task returns it."""
    answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
    answer.set_result(response)
    return answer
