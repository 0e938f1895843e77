"""Calls a coordinator's objects at their deadlines, such as a group whose member's session ends.

If a call raises an error, the object is called again later, for as long as this broker leads its partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ottla.broker.coordination.led import C, Led
from ottla.broker.coordination.runtime import Runtime
from ottla.broker.coordination.wakeups import Wakeups

T = TypeVar("T", bound=Hashable)

WAKE_AGAIN_MS = 10_000


def steady_ms() -> int:
    """The event loop's clock in ms, by which deadlines are given."""
    return int(asyncio.get_running_loop().time() * 1000)


@dataclass(frozen=True, slots=True, eq=False)
class _Seat(Generic[C, T]):
    """An object that has a deadline, and the partition of the internal topic to which the object belongs."""

    led: Led[C]
    thing: T


class Timers(Generic[C, T]):
    """One timer for all objects of a runtime. `woken` is called with an object at its deadline. `named` returns how a
    log line names the object's deadlines."""

    def __init__(self, runtime: Runtime[C], woken: Callable[[Led[C], T], None], named: Callable[[T], str]) -> None:
        self._runtime = runtime
        self._woken = woken
        self._named = named
        self._seats: dict[T, _Seat[C, T]] = {}
        self._wakeups: Wakeups[_Seat[C, T]] = Wakeups(steady_ms, self._wake)

    def ask(self, led: Led[C], thing: T, at_ms: int) -> None:
        """Calls `woken` with `thing` at `at_ms` of the event loop's clock, or earlier if an earlier time was asked for
        before."""
        seat = self._seats.get(thing)
        if seat is None:
            seat = self._seats[thing] = _Seat(led, thing)
        self._wakeups.ask(seat, at_ms)

    def forget(self, thing: T) -> None:
        """Drops the deadline of `thing`, if any."""
        seat = self._seats.pop(thing, None)
        if seat is not None:
            self._wakeups.forget(seat)

    def stop(self) -> None:
        """Drops all deadlines."""
        self._wakeups.stop()

    def _wake(self, seat: _Seat[C, T]) -> None:
        thing = seat.thing
        del self._seats[thing]
        with self._runtime.surviving(self._named(thing)):
            self._woken(seat.led, thing)
            return
        if thing not in self._seats and self._runtime.holds(seat.led):
            self._seats[thing] = seat
            self._wakeups.ask(seat, steady_ms() + WAKE_AGAIN_MS)
