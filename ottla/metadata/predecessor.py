"""Finds out whether the process that owns a lease is alive: it is, if the store's answers show renewals of the lease.

The existence of a lease proves nothing: its owner may have been killed long ago. Each time that etcd elects a leader,
so also after each restart of etcd, it starts the time of every lease anew, and adds some more. Besides, the lease may
have been granted for a longer session than that of the process which waits for the lease's end.

Numbered argument that a lease which no process keeps alive is never taken for one of a living process:

1. Within one term of the store, the time that a lease has left grows only by a keep-alive. Until the next keep-alive,
   the instant E at which the lease will end is fixed.
2. The store gives an answer at some instant between `asked_at` and `answered_at`. So E comes before `answered_at` +
   `below_s` (the upper bound), and not before `asked_at` + `at_least_s` (the lower bound). If the lower bound of a
   later answer of the same term lies beyond the upper bound of an earlier one, E has moved.
3. The clocks of the two machines may run at different speeds. Within a session they differ by far less than
   `_CLOCKS_S`.
4. The term in an answer is that of the member of etcd which forwards the answer of etcd's leader. The member may not
   know yet that the leader is a new one, but it knows by the next answer. So an answer counts only if the next one has
   the same term.
"""

from __future__ import annotations

import asyncio
import math

from .store import NO_LEASE, LeaseExpired, LeaseId, LeaseLeft, Store

_CLOCKS_S = 0.25


class SignOfLife:
    """Decides, from the store's answers about one lease, whether the lease is being kept alive. Pure."""

    def __init__(self) -> None:
        self._term: int | None = None
        self._ends_before = math.inf  # the lease ends before this instant unless it is kept alive
        self._moved = False

    def seen(self, asked_at: float, answered_at: float, left: LeaseLeft) -> bool:
        """Takes one more answer. Returns whether the earlier answers of its term show that the lease was kept alive."""
        if left.term != self._term:
            self._term, self._ends_before, self._moved = left.term, math.inf, False
        proved = self._moved
        self._moved |= asked_at + left.at_least_s > self._ends_before + _CLOCKS_S
        self._ends_before = min(self._ends_before, answered_at + left.below_s)
        return proved


class Predecessor:
    """Finds out whether another process is alive: the owner of a key that this process wants for itself."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lease = NO_LEASE
        self._sign = SignOfLife()

    async def lives(self, lease: LeaseId) -> bool:
        """Asks the store once more about the owner's lease. Returns whether the answers so far show a renewal of it.

        Raises StoreUnavailable.
        """
        if lease != self._lease:
            self._lease, self._sign = lease, SignOfLife()
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        try:
            left = await self._store.lease_left(lease)
        except LeaseExpired:
            return False
        return self._sign.seen(asked_at, loop.time(), left)
