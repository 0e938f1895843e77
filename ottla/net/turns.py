"""Bounds the work of one turn of the event loop, so that many connections at once don't hold the loop.

When a broker starts anew, or a network comes back, thousands of clients connect, and send their first requests, at the
same time; when a client's process dies, thousands of its connections end at once. An event loop calls every socket that
is ready before it looks at its timers again: a thousand of them would hold it for a twentieth of a second.

`Turns` is a queue of steps. In each turn of the event loop, steps are taken for a bounded time; then the other
connections are served, before the next turn. Handshakes wait in such a queue, requests that have been received and
couldn't start, and the closing of connections that a check has found. `Reads` does the same for sockets that are
readable. It has an epoll of its own, which the event loop watches as one file descriptor: the kernel keeps the sockets
that are ready, each turn takes some of them, and the others cost nothing meanwhile. (With all sockets in the event
loop's own epoll, libuv asks up to 48 times in a turn for up to 1,024 of them, and calls each.) Sockets that a turn has
asked for and not served are the first of the next turn, so that each gets its turn.
"""

from __future__ import annotations

import asyncio
import logging
import select
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Protocol, TypeVar

logger = logging.getLogger(__name__)

TURN_SECONDS = 0.003
READS_PER_TURN = 256
ITEMS_PER_STEP = 16  # of `Turns.wait_for_each`: to close a connection takes 30 µs, to look at it 0.1 µs

Clock = Callable[[], float]
Item = TypeVar("Item")


class Readers(Protocol):
    """Calls back when file descriptors are readable, as an event loop does."""

    def add_reader(self, descriptor: int, callback: Callable[[], None], /) -> object:
        """From now on calls `callback`, in place of an earlier one, while the descriptor is readable."""

    def remove_reader(self, descriptor: int, /) -> object:
        """No longer calls the callback, if there is one."""


class Epoll(Protocol):
    """What `Reads` uses of `select.epoll`."""

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""

    def fileno(self) -> int:
        """The descriptor that is readable while one of the registered descriptors is ready."""

    def register(self, descriptor: int, events: int, /) -> None:
        """Adds a descriptor."""

    def unregister(self, descriptor: int, /) -> None:
        """Removes a descriptor."""

    def poll(self, seconds: float, count: int, /) -> list[tuple[int, int]]:
        """Up to `count` descriptors that are ready, with their events. They come last the next time."""

    def close(self) -> None:
        """Closes the descriptor."""


class Turns:
    """Steps that wait, in the order in which they came."""

    def __init__(self, clock: Clock = perf_counter, seconds: float = TURN_SECONDS) -> None:
        self._clock = clock
        self._seconds = seconds
        self._waiting: deque[Callable[[], None]] = deque()
        self._due = False  # whether `_turn` will be called again
        self._until = 0.0  # when this turn's time is used up

    @property
    def waiting(self) -> bool:
        """Whether a step waits."""
        return bool(self._waiting)

    def wait(self, step: Callable[[], None]) -> None:
        """Calls `step` when its turn has come."""
        self._waiting.append(step)
        if not self._due:
            self._turn_soon()

    def wait_for_each(self, items: Sequence[Item], step: Callable[[Item], None]) -> None:
        """Calls `step` with each of the items when its turn has come."""
        for start in range(0, len(items), ITEMS_PER_STEP):
            self.wait(partial(_for_each, items[start : start + ITEMS_PER_STEP], step))

    def go_on(self, step: Callable[[], None]) -> None:
        """Calls `step` now if none waits and the time of this turn isn't used up, and else when its turn has come."""
        if not self._due:
            self._until = self._clock() + self._seconds
            self._turn_soon()
        elif self._waiting or self._clock() >= self._until:
            self._waiting.append(step)
            return
        step()

    def _turn_soon(self) -> None:
        self._due = True
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        waiting = self._waiting
        if not waiting:
            self._due = False
            return
        until = self._until = self._clock() + self._seconds
        while waiting:
            step = waiting[0]
            try:
                step()
            except Exception:  # a bug that one connection meets mustn't end the turns of others
                logger.exception("a step of a connection failed")
            waiting.popleft()
            if self._clock() >= until:
                break
        self._turn_soon()  # also if no step waits: whatever goes on before the next turn shares the time of this one


class Reads:
    """Readers of the running event loop, whose turns are bounded. The caller must call `close`."""

    def __init__(
        self,
        clock: Clock = perf_counter,
        seconds: float = TURN_SECONDS,
        open_epoll: Callable[[], Epoll] = select.epoll,
    ) -> None:
        self._clock = clock
        self._seconds = seconds
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._ready: deque[int] = deque()  # to be served; a callback copes with a socket that isn't readable any more
        self._epoll = open_epoll()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._epoll.fileno(), self._turn)

    def add_reader(self, descriptor: int, callback: Callable[[], None], /) -> None:
        """See `Readers`."""
        if descriptor not in self._callbacks:
            self._epoll.register(descriptor, select.EPOLLIN)
        self._callbacks[descriptor] = callback

    def remove_reader(self, descriptor: int, /) -> None:
        """See `Readers`. The descriptor must still be open."""
        if self._callbacks.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def close(self) -> None:
        """Calls no callback any more."""
        self._callbacks.clear()
        if not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()

    def _turn(self) -> None:
        callbacks, ready = self._callbacks, self._ready
        until = self._clock() + self._seconds
        if not ready:
            ready.extend(descriptor for descriptor, _ in self._epoll.poll(0, READS_PER_TURN))
        while ready:
            callback = callbacks.get(ready.popleft())
            if callback is None:  # it was removed since
                continue
            try:
                callback()
            except Exception:  # a bug that one connection meets mustn't end the turns of others
                logger.exception("a read from a connection failed")
            if self._clock() >= until:
                break


def _for_each(items: Sequence[Item], step: Callable[[Item], None]) -> None:
    for item in items:
        try:
            step(item)
        except Exception:  # a bug that one connection meets mustn't end the turns of others
            logger.exception("a step of a connection failed")
