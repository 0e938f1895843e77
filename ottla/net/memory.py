"""How much memory half-received frames may hold in all, and who waits for some.

Rule: a frame that doesn't fit the shared receive buffer gets memory of its own only out of this budget, first come
first served; connections that get none stop reading. A holder that is slow while others wait is dropped, so that peers
that announce large frames and never send them can't shut the others out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

GRACE_SECONDS = 10.0
SLOWEST_BYTES_PER_SECOND = 1024 * 1024


class FrameMemory:
    """A budget of `limit_bytes`. Not thread-safe: everything happens on the event loop."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._holders: dict[Hashable, tuple[int, float]] = {}  # → (bytes, when it must be done if others wait)
        self._waiters: OrderedDict[Hashable, tuple[int, Callable[[], None]]] = OrderedDict()

    def acquire(self, holder: Hashable, size_bytes: int, now: float) -> bool:
        """Takes `size_bytes` for `holder` if they are free and nobody waits already. A frame larger than the whole
        budget is let in when nobody else holds any: the limit on a frame's size is checked elsewhere."""
        if self._waiters or (self.used_bytes and self.used_bytes + size_bytes > self.limit_bytes):
            return False
        self._grant(holder, size_bytes, now)
        return True

    def wait(self, holder: Hashable, size_bytes: int, granted: Callable[[], None]) -> None:
        """Queues `holder`; `granted` is called when the bytes are its own."""
        self._waiters[holder] = (size_bytes, granted)

    def release(self, holder: Hashable, now: float) -> None:
        """Gives back what `holder` has or waits for, and serves those who wait."""
        self._waiters.pop(holder, None)
        held = self._holders.pop(holder, None)
        if held is not None:
            self.used_bytes -= held[0]
        while self._waiters:
            waiter, (size_bytes, granted) = next(iter(self._waiters.items()))
            if self.used_bytes and self.used_bytes + size_bytes > self.limit_bytes:
                return
            del self._waiters[waiter]
            self._grant(waiter, size_bytes, now)
            granted()

    def overdue(self, now: float) -> list[Hashable]:
        """The holders that were too slow, if anybody waits for their memory."""
        if not self._waiters:
            return []
        return [holder for holder, (_, deadline) in self._holders.items() if deadline < now]

    @property
    def waiting(self) -> int:
        """How many connections wait for memory."""
        return len(self._waiters)

    def _grant(self, holder: Hashable, size_bytes: int, now: float) -> None:
        self.used_bytes += size_bytes
        self._holders[holder] = (size_bytes, now + GRACE_SECONDS + size_bytes / SLOWEST_BYTES_PER_SECOND)
