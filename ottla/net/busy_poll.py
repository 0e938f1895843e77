"""Looks for the next request for a moment before the event loop sleeps, where requests come that fast.

To sleep and to be woken costs a core more than to look around: some 35 µs of the broker's and as much of the client's
in a virtual machine, longer than a small request itself takes. So after an answer that came soon after the one before,
the loop is kept from sleeping for a window, in which it serves everybody as ever. That pays only if somebody asks
within it. After a look in vain some answers are let pass without one, twice as many each time, up to a thousand; each
look that finds a request halves them. So a client that asks and waits is answered sooner, and traffic with longer
pauses doesn't keep a core busy.

Of the family of Linux's adaptive halt polling in KVM (`halt_poll_ns`) and busy polling of sockets
(`net.core.busy_poll`).
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

WINDOW_SECONDS = 60e-6
SOON = 4  # windows between two answers: a client that asks and waits, its wake-up and ours
PASSED_MAX = 1023


class BusyPoll:
    """`call_soon` is the event loop's; a window of 0 s means never. `looked_seconds`: how long it looked in all."""

    __slots__ = (
        "_answered_at",
        "_call_soon",
        "_clock",
        "_found",
        "_looked_at",
        "_looking",
        "_passed",
        "_to_pass",
        "_until",
        "_window",
        "looked_seconds",
    )

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        window_seconds: float = WINDOW_SECONDS,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._call_soon = call_soon
        self._clock = clock
        self._window = window_seconds
        self.looked_seconds = 0.0
        self._answered_at = -1.0
        self._looking = False
        self._found = False  # an answer since the last look
        self._looked_at = self._until = 0.0
        self._to_pass = 0  # answers, between two looks
        self._passed = 0

    def answered(self) -> None:
        """Answers have just been sent, or queued, from the read callback."""
        if self._looking:
            self._found = True
            return
        now = self._clock()
        soon = now - self._answered_at < SOON * self._window
        self._answered_at = now
        if not soon:
            return
        if self._passed < self._to_pass:
            self._passed += 1
            return
        self._passed = 0
        self._looking = True
        self._call_soon(self._first_look)

    def _first_look(self) -> None:
        """The round in which the answer was sent is over; the window begins."""
        self._found = False
        self._looked_at = self._clock()
        self._until = self._looked_at + self._window
        self._call_soon(self._look)

    def _look(self) -> None:
        """Runs between two rounds of the loop; while it is due, the loop asks for events without waiting for them."""
        now = self._clock()
        if self._found:
            self._found = False
            self._to_pass >>= 1
            self._until = now + self._window
        else:
            self.looked_seconds += now - self._looked_at
            if now >= self._until:
                self._looking = False
                self._answered_at = now
                self._to_pass = min(2 * self._to_pass + 1, PASSED_MAX)
                return
        self._looked_at = now
        self._call_soon(self._look)
