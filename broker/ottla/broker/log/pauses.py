"""Pauses in a thread that works on much: the event loop wants the interpreter, too.

A thread that is made to give the interpreter up keeps it for 5 ms first, and for the whole of one call that is written
in C. So whoever has much to do cuts it into pieces of half a millisecond, and sleeps between two of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")

_PAUSE_SECONDS = 0.0005
_PIECES_AT_ONCE = 4  # little work, as nearly always, is done without a pause


def with_pauses(pieces: Iterator[T]) -> Iterator[T]:
    """The same, each piece made after a pause. Blocks."""
    for number, piece in enumerate(pieces):
        if number > _PIECES_AT_ONCE:
            time.sleep(_PAUSE_SECONDS)
        yield piece
