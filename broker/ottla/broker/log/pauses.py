"""Pauses a thread that has much work, because the event loop needs the interpreter, too.

A thread that is asked to give up the interpreter still keeps it for 5 ms, or until a call into C has returned. So a
thread with much work divides it into pieces of half a millisecond, and sleeps between two pieces.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")

_PAUSE_SECONDS = 0.0005
_PIECES_AT_ONCE = 4  # so many pieces are yielded without a pause: nearly always there are no more


def with_pauses(pieces: Iterator[T]) -> Iterator[T]:
    """Yields the given pieces of work, and sleeps before each piece but the first few. Blocks."""
    for number, piece in enumerate(pieces):
        if number > _PIECES_AT_ONCE:
            time.sleep(_PAUSE_SECONDS)
        yield piece
