"""The budget of memory that all connections share, for received frames and unsent answers, and the queue for it.

Memory that a request keeps while it is worked on in the background (`begin_work`) counts, too, until the work is done.
A *holder* is a connection that has memory of the budget or waits for it, or a `Work`.

Rules: a frame that doesn't fit into the shared receive buffer gets memory of its own only from this budget, first come
first served. A connection that gets none stops reading. A request of an API whose answers have been large
(`large_answers`) starts only when there is room for such an answer. If holders wait for memory, connections whose peers
are too slow with their frames or answers are closed. So peers that announce large frames and never send them, or
request large answers and never read them, can't keep other connections from being served. If the broker itself is slow
with a large answer, the room that was reserved for the answer is released; the answer takes memory of the budget when
the broker has made it.

No connection waits for ever:

1. A connection that waits for memory for work or for an answer may already have memory for its frame, and frames may
   take the whole budget. So work may begin, without free memory, whenever no other work is under way. A request with a
   large answer may begin whenever no other connection has a large answer or room for one.
2. Neither work under way nor the sending of an answer needs more memory before it ends.
3. If a frame or an answer doesn't end, its peer is too slow, and the connection is closed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

GRACE_SECONDS = 10.0
SLOWEST_BYTES_PER_SECOND = 1024 * 1024
SMALL_BYTES = 64 * 1024  # a connection may have this much in each direction outside the budget

_Holdings = dict[Hashable, tuple[int, float]]  # holder → (bytes, the holder's deadline if other holders wait)


class BufferedMemory:
    """A budget of `limit_bytes`. Not thread-safe: everything happens on the event loop.

    `large_answers` maps an API key to the bytes of the API's largest answer so far, if that exceeds `SMALL_BYTES`.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.large_answers: dict[int, int] = {}
        self._frames: _Holdings = {}
        self._answers: _Holdings = {}
        self._reserved: _Holdings = {}  # room for answers that the broker hasn't made yet
        self._work: _Holdings = {}
        self._waiters: OrderedDict[Hashable, tuple[int, _Holdings, Callable[[], None]]] = OrderedDict()

    # ---- frames

    def acquire(self, holder: Hashable, size_bytes: int, now: float) -> bool:
        """Takes `size_bytes` for a frame of `holder`, if they are free and no holder waits. Returns whether it did.

        A frame larger than the whole budget gets its memory when no memory is in use. (The limit on a frame's size is
        checked elsewhere.)
        """
        return self._acquire(self._frames, holder, size_bytes, now)

    def wait(self, holder: Hashable, size_bytes: int, granted: Callable[[], None]) -> None:
        """Queues `holder` for `size_bytes` for a frame, and calls `granted` when it has them. A holder may be in the
        queue only once."""
        self._waiters[holder] = (size_bytes, self._frames, granted)

    def has_room(self, size_bytes: int) -> bool:
        """Whether `size_bytes` are free, and no holder waits."""
        return not self._waiters and self.used_bytes + size_bytes <= self.limit_bytes

    def hold_frames(self, holder: Hashable, size_bytes: int, now: float) -> None:
        """Sets the memory that `holder` has for frames to `size_bytes`, whatever is free: its bytes exist already."""
        self._hold(self._frames, holder, size_bytes, now)

    def release(self, holder: Hashable, now: float) -> None:
        """Gives back the memory that `holder` has for frames, or ends its wait for it. Serves waiting holders."""
        self._give_back(self._frames, holder, now)

    # ---- answers

    def answered(self, api_key: int, size_bytes: int) -> None:
        """Notes the size of an answer to a request of this API, if it is the API's largest so far."""
        if size_bytes > max(self.large_answers.get(api_key, 0), SMALL_BYTES):
            self.large_answers[api_key] = size_bytes

    def reserve_answer(self, holder: Hashable, api_key: int, now: float, granted: Callable[[], None]) -> bool:
        """Reserves room for the answer to a request of this API, if such answers have been large.

        Returns whether `holder` may start the request now. If not, `granted` is called when it may.
        """
        size_bytes = self.large_answers.get(api_key, 0)
        if not size_bytes or holder in self._reserved or holder in self._answers:
            return True
        return self._begin(self._reserved, holder, size_bytes, now, granted)

    def hold_answer(self, holder: Hashable, size_bytes: int, now: float) -> None:
        """Sets the memory that `holder` has for unsent answers to `size_bytes`, whatever is free: the answers exist
        already. Releases the room that was reserved for them."""
        self._drop(self._reserved, holder)
        self._hold(self._answers, holder, size_bytes, now)

    def answer_sent(self, holder: Hashable, now: float) -> None:
        """Gives back the memory and the room that `holder` has for answers, or ends its wait for room."""
        self._drop(self._answers, holder)
        self._give_back(self._reserved, holder, now)

    # ---- work

    def reserve_work(self, holder: Hashable, size_bytes: int, now: float, granted: Callable[[], None]) -> bool:
        """Grants `holder` memory for a request that keeps `size_bytes` while it is worked on. Returns False if `holder`
        has to wait; `granted` is called when it has the memory.

        Afterwards either `begin_work` takes over the granted memory, or `forget_work` gives it back.
        """
        return holder in self._work or self._begin(self._work, holder, size_bytes, now, granted)

    def begin_work(self, holder: Hashable, size_bytes: int, now: float) -> Work:
        """Counts `size_bytes` until the returned `Work` ends, in place of the memory granted to `holder` for it."""
        work = Work(self)
        self._grant(self._work, work, size_bytes, now)
        self.forget_work(holder, now)
        return work

    def forget_work(self, holder: Hashable, now: float) -> None:
        """Gives back the memory that `holder` was granted for work. Called with a `Work`, gives back its memory."""
        self._give_back(self._work, holder, now)

    # ----

    def overdue(self, now: float) -> list[Hashable]:
        """The holders that are too slow; none if no holder waits for memory. Also releases overdue room for answers."""
        if not self._waiters:
            return []
        for holder in [holder for holder, (_, deadline) in self._reserved.items() if deadline < now]:
            self._give_back(self._reserved, holder, now)
        return [
            holder
            for holdings in (self._frames, self._answers, self._work)
            for holder, (_, deadline) in holdings.items()
            if deadline < now and holder not in self._waiters  # a holder that waits for memory isn't slow itself
        ]

    @property
    def waiting(self) -> int:
        """The number of connections that wait for memory."""
        return len(self._waiters)

    def _begin(
        self, holdings: _Holdings, holder: Hashable, size_bytes: int, now: float, granted: Callable[[], None]
    ) -> bool:
        """Takes memory for work or an answer, and returns True; or queues `holder`, and returns False.

        One piece of work, and one answer, may always begin, however little is free.
        """
        if self._acquire(holdings, holder, size_bytes, now):
            return True
        if self._none_under_way(holdings):
            self._waiters.pop(holder, None)
            self._grant(holdings, holder, size_bytes, now)
            return True
        self._waiters[holder] = (size_bytes, holdings, granted)
        return False

    def _none_under_way(self, holdings: _Holdings) -> bool:
        """With `_work`, whether no work is under way; with `_reserved`, whether no holder has an answer or room for
        one."""
        return not holdings and not (holdings is self._reserved and self._answers)

    def _acquire(self, holdings: _Holdings, holder: Hashable, size_bytes: int, now: float) -> bool:
        if self._waiters or (self.used_bytes and self.used_bytes + size_bytes > self.limit_bytes):
            return False
        self._grant(holdings, holder, size_bytes, now)
        return True

    def _grant(self, holdings: _Holdings, holder: Hashable, size_bytes: int, now: float) -> None:
        self.used_bytes += size_bytes
        holdings[holder] = (size_bytes, now + GRACE_SECONDS + size_bytes / SLOWEST_BYTES_PER_SECOND)

    def _hold(self, holdings: _Holdings, holder: Hashable, size_bytes: int, now: float) -> None:
        self._drop(holdings, holder)
        self._grant(holdings, holder, size_bytes, now)
        self._serve_waiters(now)

    def _give_back(self, holdings: _Holdings, holder: Hashable, now: float) -> None:
        if not self._drop(holdings, holder) and holder in self._waiters and self._waiters[holder][1] is holdings:
            del self._waiters[holder]
        self._serve_waiters(now)

    def _drop(self, holdings: _Holdings, holder: Hashable) -> bool:
        """Takes the memory in `holdings` from `holder`. Returns whether it had any."""
        held = holdings.pop(holder, None)
        if held is None:
            return False
        self.used_bytes -= held[0]
        return True

    def _serve_waiters(self, now: float) -> None:
        """Grants waiting holders their memory while there is room. If no work is under way, the first holder that waits
        for memory for work gets it in any case; the same holds for answers."""
        while self._waiters:
            waiter, (size_bytes, wanted, granted) = next(iter(self._waiters.items()))
            if self.used_bytes and self.used_bytes + size_bytes > self.limit_bytes:
                break
            del self._waiters[waiter]
            self._grant(wanted, waiter, size_bytes, now)
            granted()
        for holdings in (self._work, self._reserved):
            if self._none_under_way(holdings):
                self._let_begin(holdings, now)

    def _let_begin(self, holdings: _Holdings, now: float) -> None:
        """Grants memory to the first holder that waits for memory in `holdings`, however little is free."""
        for waiter, (size_bytes, wanted, granted) in self._waiters.items():
            if wanted is holdings:
                del self._waiters[waiter]
                self._grant(wanted, waiter, size_bytes, now)
                granted()
                return


class Work:
    """The memory that one request keeps while it is worked on in the background."""

    __slots__ = ("_memory",)

    def __init__(self, memory: BufferedMemory) -> None:
        self._memory = memory

    def end(self, now: float) -> None:
        """Gives the memory back. May be called again."""
        self._memory.forget_work(self, now)
