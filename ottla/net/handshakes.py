"""Gives TLS handshakes their turns, so that many of them at once don't hold the event loop.

A step of a handshake costs up to a few milliseconds of CPU time: a signature, and the verification of a client's
certificates. So a handshake that has received bytes waits for its turn in a queue of its own (`ottla.net.turns`).

The peer of a handshake has `HANDSHAKE_SECONDS` to send what the handshake needs. The time that a handshake waits for
its turn doesn't count, so an overloaded broker never gives up handshakes because it is slow itself. But no signature is
made for a peer that has hung up meanwhile, as clients do that have waited for too long.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import Protocol

from ottla.net.turns import Clock, Turns

TURN_SECONDS = 0.001  # and one step, which takes up to 4 ms on a busy machine
HANDSHAKE_SECONDS = 10.0
RAW_BYTES = 256 * 1024


class UnderWay(Protocol):
    """A handshake that has begun and hasn't ended."""

    def give_up_if_late(self, now: float) -> None:
        """Ends the handshake if its peer has taken too long. `now` is the event loop's time."""


class Handshakes:
    """The handshakes of one server. `raw` is the buffer into which all of its TLS channels receive encrypted bytes."""

    def __init__(self, clock: Clock = perf_counter) -> None:
        self.raw = bytearray()
        self.under_way: dict[UnderWay, None] = {}
        self.turns = Turns(clock, TURN_SECONDS)

    def begin(self, handshake: UnderWay) -> None:
        """Adds a handshake."""
        if not self.raw:
            self.raw = bytearray(RAW_BYTES)
        self.under_way[handshake] = None

    def end(self, handshake: UnderWay) -> None:
        """Removes a handshake that has succeeded or failed."""
        self.under_way.pop(handshake, None)

    def give_up_late_ones(self, now: float, turns: Turns) -> None:
        """Ends the handshakes whose peers have taken too long, in the given turns."""
        turns.wait_for_each(list(self.under_way), partial(_give_up_if_late, now))


def _give_up_if_late(now: float, handshake: UnderWay) -> None:
    handshake.give_up_if_late(now)
