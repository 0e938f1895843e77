"""Keeps the event loop polling for a moment before it sleeps, if requests follow one another fast.

To sleep and wake up costs a core more time than to poll: in a virtual machine some 35 µs for the broker and as much for
the client, which is longer than a small request itself takes. So if an answer follows soon after the one before it, the
event loop polls for a time window instead of sleeping, and serves all connections as usual. That pays only if a request
arrives within the window. So after each window without a request, the next answers open no window: one answer at first,
then about twice as many each time, up to a thousand. Each request within a window halves this number. So a client that
sends each request after the answer to the last one gets its answers sooner, and traffic with longer pauses doesn't keep
a core busy.

Linux has two similar mechanisms: adaptive halt polling in KVM (`halt_poll_ns`), and busy polling of sockets
(`net.core.busy_poll`).
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

WINDOW_SECONDS = 60e-6
# Two answers are close if the time between them is less than this number of windows. In this time a broker and a client
# can wake up.
SOON = 4
PASSED_MAX = 1023


class BusyPoll:
    """Keeps the event loop polling for a window after an answer, if answers follow one another fast.

    `call_soon` is the event loop's. With a window of 0 s the loop never polls. `looked_seconds` is the total time of
    polling that found no request.
    """

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
        self._found = False  # whether there was an answer since the last look
        self._looked_at = self._until = 0.0
        self._to_pass = 0  # this number of close answers opens no window; the next one does
        self._passed = 0

    def answered(self) -> None:
        """Called by the callback that received requests, when it has sent or queued answers to them."""
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
        """Begins the polling window, after the event loop's iteration in which the answer was sent."""
        self._found = False
        self._looked_at = self._clock()
        self._until = self._looked_at + self._window
        self._call_soon(self._look)

    def _look(self) -> None:
        """Runs once in each iteration of the event loop. While it is scheduled, the loop polls without waiting."""
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
