"""Looks for the next request for a moment before the event loop sleeps, where requests come that fast.

To sleep and to be woken costs a core more than to look around: some 35 µs of the broker's and as much of the client's
in a virtual machine, longer than a small request itself takes. So after an answer the loop is kept from sleeping for a
window, in which it serves everybody as ever. That pays only if somebody asks again within it. If nobody does, answers
are let pass without a look, one at first and twice as many after each look in vain, up to a thousand; each look that
finds a request halves them. So a client that asks and waits is answered sooner, and traffic with longer pauses doesn't
keep a core busy.

Source: adaptive halt polling in Linux's KVM (`halt_poll_ns`), which decides by the same rule whether to put a core to
sleep; `net.core.busy_poll` is its like for sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

WINDOW_SECONDS = 60e-6
PASSED_MAX = 1023


class BusyPoll:
    """`call_soon` is the event loop's; a window of 0 s means never."""

    __slots__ = ("_answered", "_call_soon", "_clock", "_looking", "_passed", "_to_pass", "_until", "_window")

    def __init__(
        self,
        call_soon: Callable[[Callable[[], None]], object],
        window_seconds: float = WINDOW_SECONDS,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._call_soon = call_soon
        self._clock = clock
        self._window = window_seconds
        self._looking = False
        self._answered = False  # since the last look
        self._until = 0.0
        self._to_pass = 0  # answers, between two looks
        self._passed = 0

    def answered(self) -> None:
        """A request has just been answered from the read callback."""
        if self._looking:
            self._answered = True
        elif self._passed < self._to_pass:
            self._passed += 1
        elif self._window:
            self._passed = 0
            self._looking = True
            self._until = self._clock() + self._window
            self._call_soon(self._look)

    def _look(self) -> None:
        """Runs between two rounds of the loop; while it is due, the loop asks for events without waiting for them."""
        now = self._clock()
        if self._answered:
            self._answered = False
            self._to_pass >>= 1
            self._until = now + self._window
        elif now >= self._until:
            self._looking = False
            self._to_pass = min(2 * self._to_pass + 1, PASSED_MAX)
            return
        self._call_soon(self._look)
