"""Whether the process that holds a lease is alive: only if somebody has kept it alive, as the store itself counts.

That a lease exists proves nothing. Whoever held it may have been killed long ago: etcd gives every lease its whole time
anew, and some more, each time that it gets a leader, so after each restart of its own; and the session of the other
process may be longer than one's own.

Numbered argument that a lease which nobody keeps alive is never taken for one of a living process:

1. Within one term of the store, time alone never adds to what a lease has left. It ends at some instant E, until it is
   kept alive.
2. An answer was given between the moments `asked_at` and `answered_at`. So E comes before `answered_at` + `below_s`,
   and not before `asked_at` + `at_least_s`. Where a later answer of the same term has the second beyond the first of
   an earlier one, E has moved.
3. The clocks of the two machines may run at different speeds: by far less than `_CLOCKS_S` in a session.
4. The member of etcd that passes on an answer names the term; it may not have heard of a new leader that gave it. By
   the next answer it has: only if that still names the same term, the former one counts.
"""

from __future__ import annotations

import asyncio
import math

from .store import NO_LEASE, LeaseExpired, LeaseId, LeaseLeft, Store

_CLOCKS_S = 0.25


class SignOfLife:
    """What the answers about one lease prove. Pure."""

    def __init__(self) -> None:
        self._term: int | None = None
        self._ends_before = math.inf  # unless it is kept alive
        self._moved = False

    def seen(self, asked_at: float, answered_at: float, left: LeaseLeft) -> bool:
        """Takes one more answer; whether the lease has been kept alive since the first one of this term."""
        if left.term != self._term:
            self._term, self._ends_before, self._moved = left.term, math.inf, False
        proved = self._moved
        self._moved |= asked_at + left.at_least_s > self._ends_before + _CLOCKS_S
        self._ends_before = min(self._ends_before, answered_at + left.below_s)
        return proved


class Predecessor:
    """Who holds the key that a process wants for itself."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lease = NO_LEASE
        self._sign = SignOfLife()

    async def lives(self, lease: LeaseId) -> bool:
        """Looks once more at the holder's lease; whether it has been kept alive meanwhile. Raises StoreUnavailable."""
        if lease != self._lease:
            self._lease, self._sign = lease, SignOfLife()
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        try:
            left = await self._store.lease_left(lease)
        except LeaseExpired:
            return False
        return self._sign.seen(asked_at, loop.time(), left)
