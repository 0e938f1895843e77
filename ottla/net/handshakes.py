"""Gives TLS handshakes their turns, so that many of them at once don't hold the event loop.

A step of a handshake costs up to a few milliseconds of CPU time: a signature, and the verification of a client's
certificates. When a broker starts anew, thousands of clients reconnect at once. So a handshake that has received bytes
waits for its turn, in a queue. In each turn of the event loop, steps are taken for `TURN_SECONDS`; then the other
connections are served, before the next turn.

The peer of a handshake has `HANDSHAKE_SECONDS` to send what the handshake needs. The time that a handshake waits for
its turn doesn't count, so an overloaded broker never gives up handshakes because it is slow itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

logger = logging.getLogger(__name__)

TURN_SECONDS = 0.003
HANDSHAKE_SECONDS = 10.0
RAW_BYTES = 256 * 1024


class UnderWay(Protocol):
    """A handshake that has begun and hasn't ended."""

    def give_up_if_late(self, now: float) -> None:
        """Ends the handshake if its peer has taken too long. `now` is the event loop's time."""


class Handshakes:
    """The handshakes of one server. `raw` is the buffer into which all of its TLS channels receive encrypted bytes."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.raw = bytearray()
        self.under_way: dict[UnderWay, None] = {}
        self._clock = clock
        self._waiting: deque[Callable[[], None]] = deque()

    def begin(self, handshake: UnderWay) -> None:
        """Adds a handshake."""
        if not self.raw:
            self.raw = bytearray(RAW_BYTES)
        self.under_way[handshake] = None

    def end(self, handshake: UnderWay) -> None:
        """Removes a handshake that has succeeded or failed."""
        self.under_way.pop(handshake, None)

    def wait_for_turn(self, step: Callable[[], None]) -> None:
        """Calls `step` when its turn has come."""
        self._waiting.append(step)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._turn)

    def give_up_late_ones(self, now: float) -> None:
        """Ends the handshakes whose peers have taken too long."""
        for handshake in list(self.under_way):
            handshake.give_up_if_late(now)

    def _turn(self) -> None:
        waiting = self._waiting
        until = self._clock() + TURN_SECONDS
        while waiting:
            step = waiting[0]
            try:
                step()
            except Exception:  # a bug that one handshake meets mustn't end the handshakes of others
                logger.exception("a step of a TLS handshake failed")
            waiting.popleft()
            if self._clock() >= until:
                break
        if waiting:
            asyncio.get_running_loop().call_soon(self._turn)
