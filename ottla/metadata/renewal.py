"""Keeps a lease alive from a thread of its own, so that a slow disk alone doesn't end a broker's registration.

A broker writes its logs on one event loop, where it does nearly everything else, too. A write to a volume that doesn't
answer blocks that loop. Without the thread, the registration would end a session later, although the broker only waits
for its disk. The thread isn't blocked, and has its own connection to the store. But a broker that serves no client
mustn't keep its partitions for ever. So the thread renews the lease only if the event loop has run callbacks within a
bound (`stall_s`). The thread tests the loop several times within that bound, however long the session is. If it tested
the loop only once for each renewal, and the bound were shorter than the time between two renewals, then a running loop
would seem to be blocked.

1. A process that is killed or suspended renews nothing, because its threads don't run either.
2. If a broker's event loop is blocked for longer than the bound, the broker's registration ends a session later, and
   other brokers lead its partitions. When the loop runs again, the lease has ended, and the broker registers anew
   (`registration.py`).
3. If the whole process didn't run, as on a machine that sleeps, its event loop didn't wait for a disk. So the time by
   which the thread itself is late isn't counted. All other time is counted: on a machine whose processors are all busy,
   the thread is late again and again, and a blocked event loop must be noticed there as well.
4. The store alone decides whether the lease has ended; the thread decides only whether to renew it.

Where there are no threads, as in the simulation, a task on the event loop renews the lease.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

from .store import LeaseExpired, LeaseId, LeaseLine, Store, StoreUnavailable, UnknownOutcome

logger = logging.getLogger(__name__)

_RENEWALS_A_SESSION = 4
_QUESTIONS_A_STALL = 3


class Renewal(Protocol):
    """Keeps one lease at a time alive. Belongs to the event loop on which it was created."""

    def hold(self, lease: LeaseId, session_s: float, ended: Callable[[], None]) -> None:
        """Renews this lease from now on, and no other. Calls `ended` on the event loop when the lease has ended."""

    def let_go(self) -> None:
        """Stops renewing the lease."""

    @property
    def unconfirmed_s(self) -> float:
        """Seconds since the store last confirmed the lease: up to a quarter of the session, more if renewals fail."""

    async def close(self) -> None:
        """Stops renewing the lease, and ends the task or thread that renewed it."""


class RenewalTask:
    """A `Renewal` as a task of the event loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._task: asyncio.Task[None] | None = None
        self._confirmed_at = 0.0

    def hold(self, lease: LeaseId, session_s: float, ended: Callable[[], None]) -> None:
        """See `Renewal.hold`."""
        self.let_go()
        self._confirmed_at = asyncio.get_running_loop().time()
        self._task = asyncio.create_task(self._renew(lease, session_s, ended), name="lease")

    def let_go(self) -> None:
        """See `Renewal.let_go`."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    @property
    def unconfirmed_s(self) -> float:
        """See `Renewal.unconfirmed_s`."""
        return asyncio.get_running_loop().time() - self._confirmed_at

    async def close(self) -> None:
        """See `Renewal.close`."""
        self.let_go()

    async def _renew(self, lease: LeaseId, session_s: float, ended: Callable[[], None]) -> None:
        while True:
            await asyncio.sleep(session_s / _RENEWALS_A_SESSION)
            try:
                await self._store.keep_alive(lease)
                self._confirmed_at = asyncio.get_running_loop().time()
            except LeaseExpired:
                ended()
                return
            except (StoreUnavailable, UnknownOutcome) as reason:
                logger.warning("the lease couldn't be kept alive: %s", reason)


class _Held(NamedTuple):
    lease: LeaseId
    session_s: float
    ended: Callable[[], None]


class RenewalThread:
    """A `Renewal` as a thread, which renews the lease only if the event loop has run callbacks within `stall_s`."""

    def __init__(self, line: LeaseLine, stall_s: float) -> None:
        self._line = line
        self._stall_s = stall_s
        self._question_s = stall_s / _QUESTIONS_A_STALL
        self._loop = asyncio.get_running_loop()
        self._held: _Held | None = None
        self._confirmed_at = 0.0
        self._turned_at = time.monotonic()
        self._asked = False  # whether a call of `_turned` waits on the event loop
        self._stalled = False
        self._closed = False
        self._woken = threading.Event()
        # Used by the thread alone: a time of the loop's last `_turned`, and the seconds by which the thread has been
        # late since then.
        self._late_s, self._late_since = 0.0, self._turned_at
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def hold(self, lease: LeaseId, session_s: float, ended: Callable[[], None]) -> None:
        """See `Renewal.hold`."""
        self._confirmed_at = time.monotonic()
        self._turned_at = self._confirmed_at  # the event loop runs now, because it runs this method
        self._held = _Held(lease, session_s, ended)
        self._woken.set()

    def let_go(self) -> None:
        """See `Renewal.let_go`. A keep-alive that is under way may still reach the store."""
        self._held = None
        self._woken.set()

    @property
    def unconfirmed_s(self) -> float:
        """See `Renewal.unconfirmed_s`."""
        return time.monotonic() - self._confirmed_at

    async def close(self) -> None:
        """See `Renewal.close`."""
        self.let_go()
        self._closed = True
        self._woken.set()
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._line.close)

    def _turned(self) -> None:
        self._asked = False
        self._turned_at = time.monotonic()
        if self._stalled:
            self._woken.set()

    # The methods below run in the thread.

    def _run(self) -> None:
        known: _Held | None = None
        due_at = 0.0
        while not self._closed:
            held = self._held
            if held is None:
                self._woken.wait()
                self._woken.clear()
                continue
            if held is not known:  # a new lease, whose time begins now
                known, due_at = held, time.monotonic() + held.session_s / _RENEWALS_A_SESSION
            self._wait(min(max(due_at - time.monotonic(), 0), self._question_s))
            if held is not self._held:
                continue
            try:
                self._ask_the_loop()
                if time.monotonic() < due_at and not self._stalled:
                    continue
                due_at = time.monotonic() + held.session_s / _RENEWALS_A_SESSION
                if self._may_renew():
                    self._renew(held)
            except Exception:  # a bug here must not end the lease
                if self._loop.is_closed():
                    return
                logger.exception("the lease couldn't be kept alive")

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self._woken.wait(seconds)
        self._woken.clear()
        self._was_due_at(end)

    def _was_due_at(self, moment: float) -> None:
        """Notes that the thread runs again now, although it was due at `moment`.

        During the time in between, the process was suspended or waited for a processor.
        """
        turned_at = self._turned_at
        if turned_at != self._late_since:
            self._late_s, self._late_since = 0.0, turned_at
        self._late_s += max(time.monotonic() - max(moment, turned_at), 0.0)

    def _ask_the_loop(self) -> None:
        if not self._asked:
            self._asked = True
            self._loop.call_soon_threadsafe(self._turned)

    def _may_renew(self) -> bool:
        turned_at = self._turned_at
        still_s = time.monotonic() - turned_at
        if turned_at == self._late_since:
            still_s -= self._late_s
        stalled = still_s > self._stall_s
        if stalled and not self._stalled:
            logger.error(
                "the event loop has stood still for %.0f s (a disk that doesn't answer can cause this): this process's "
                "registration is no longer renewed, and other brokers take over",
                still_s,
            )
        elif self._stalled and not stalled:
            logger.warning("the event loop runs again: the registration is renewed, or made anew if it has ended")
        self._stalled = stalled
        return not stalled

    def _renew(self, held: _Held) -> None:
        timeout_s = held.session_s / (_RENEWALS_A_SESSION - 1)
        end = time.monotonic() + timeout_s
        try:
            self._line.keep_alive(held.lease, timeout_s)
        except LeaseExpired:
            if held is self._held:
                self._held = None
                self._loop.call_soon_threadsafe(held.ended)
        except (StoreUnavailable, UnknownOutcome) as reason:
            logger.warning("the lease couldn't be kept alive: %s", reason)
        else:
            self._confirmed_at = time.monotonic()
        self._was_due_at(end)
