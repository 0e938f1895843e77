"""How much memory all connections together may hold, for frames that arrive and answers that leave; who waits for it.

What a request keeps while it is worked on in the background (`begin_work`) counts, too, until that is done.

Rules: a frame that doesn't fit the shared receive buffer gets memory of its own only out of this budget, first come
first served; connections that get none stop reading. A request of a kind whose answers have been large
(`large_answers`) starts only when there is room for such an answer. A holder that is slow while others wait is dropped,
so that peers that announce large frames and never send them, or ask for large answers and never read them, can't shut
the others out. Room for an answer that the broker hasn't made yet is nobody's slowness: it lapses, and the answer
counts when it is there.

Nobody waits for ever: (1) whoever waits for memory to work or to answer may hold some already, its frame's, and frames
may hold it all; so work may begin whenever no other is under way, and a request with a large answer whenever none has
room for one. (2) Work ends without asking for memory, and so does the sending of an answer. (3) Frames and answers that
don't end are their peers' slowness.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

GRACE_SECONDS = 10.0
SLOWEST_BYTES_PER_SECOND = 1024 * 1024
SMALL_BYTES = 64 * 1024  # what a connection may hold in each direction without asking

_Holdings = dict[Hashable, tuple[int, float]]  # → (bytes, when it must be done if others wait)


class BufferedMemory:
    """A budget of `limit_bytes`. Not thread-safe: everything happens on the event loop.

    `large_answers`: API key → bytes of its largest answer so far, where that isn't small.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.large_answers: dict[int, int] = {}
        self._frames: _Holdings = {}
        self._answers: _Holdings = {}
        self._reserved: _Holdings = {}  # for answers that aren't there yet
        self._work: _Holdings = {}
        self._waiters: OrderedDict[Hashable, tuple[int, _Holdings, Callable[[], None]]] = OrderedDict()

    # ---- frames

    def acquire(self, holder: Hashable, size_bytes: int, now: float) -> bool:
        """Takes `size_bytes` for a frame of `holder` if they are free and nobody waits already. A frame larger than
        the whole budget is let in when nobody else holds any: the limit on a frame's size is checked elsewhere."""
        return self._acquire(self._frames, holder, size_bytes, now)

    def wait(self, holder: Hashable, size_bytes: int, granted: Callable[[], None]) -> None:
        """Queues `holder`, which has one wish at a time; `granted` is called when the bytes are its own."""
        self._waiters[holder] = (size_bytes, self._frames, granted)

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much is free, and nobody waits for it."""
        return not self._waiters and self.used_bytes + size_bytes <= self.limit_bytes

    def hold_frames(self, holder: Hashable, size_bytes: int, now: float) -> None:
        """`holder` has this much of what its peer sent. It is there already, so nobody is asked."""
        self._hold(self._frames, holder, size_bytes, now)

    def release(self, holder: Hashable, now: float) -> None:
        """Gives back what `holder` has for a frame, or waits for, and serves those who wait."""
        self._give_back(self._frames, holder, now)

    # ---- answers

    def answered(self, api_key: int, size_bytes: int) -> None:
        """Learns how large answers become."""
        if size_bytes > max(self.large_answers.get(api_key, 0), SMALL_BYTES):
            self.large_answers[api_key] = size_bytes

    def reserve_answer(self, holder: Hashable, api_key: int, now: float, granted: Callable[[], None]) -> bool:
        """Whether `holder` may start a request now; if not, `granted` is called when it may."""
        size_bytes = self.large_answers.get(api_key, 0)
        if not size_bytes or holder in self._reserved or holder in self._answers:
            return True
        return self._begin(self._reserved, holder, size_bytes, now, granted)

    def hold_answer(self, holder: Hashable, size_bytes: int, now: float) -> None:
        """`holder` has this much that its peer doesn't take. It is there already, so nobody is asked."""
        self._drop(self._reserved, holder)
        self._hold(self._answers, holder, size_bytes, now)

    def answer_sent(self, holder: Hashable, now: float) -> None:
        """`holder` holds no answer any more, and waits for none."""
        self._drop(self._answers, holder)
        self._give_back(self._reserved, holder, now)

    # ---- work

    def reserve_work(self, holder: Hashable, size_bytes: int, now: float, granted: Callable[[], None]) -> bool:
        """Whether `holder` may begin a request that keeps `size_bytes` while it is worked on; if not, `granted` is
        called when it may. What is granted is taken over by `begin_work`, or given back by `forget_work`."""
        return holder in self._work or self._begin(self._work, holder, size_bytes, now, granted)

    def begin_work(self, holder: Hashable, size_bytes: int, now: float) -> Work:
        """Work of `size_bytes`, which counts until its end, in place of what `holder` was granted for it."""
        work = Work(self)
        self._grant(self._work, work, size_bytes, now)
        self.forget_work(holder, now)
        return work

    def forget_work(self, holder: Hashable, now: float) -> None:
        """Gives back what `holder` was granted for work or, called with the work itself, what that kept."""
        self._give_back(self._work, holder, now)

    # ----

    def overdue(self, now: float) -> list[Hashable]:
        """The holders that were too slow, if anybody waits for their memory."""
        if not self._waiters:
            return []
        for holder in [holder for holder, (_, deadline) in self._reserved.items() if deadline < now]:
            self._give_back(self._reserved, holder, now)
        return [
            holder
            for holdings in (self._frames, self._answers, self._work)
            for holder, (_, deadline) in holdings.items()
            if deadline < now and holder not in self._waiters  # who waits for us isn't slow
        ]

    @property
    def waiting(self) -> int:
        """How many connections wait for memory."""
        return len(self._waiters)

    def _begin(
        self, holdings: _Holdings, holder: Hashable, size_bytes: int, now: float, granted: Callable[[], None]
    ) -> bool:
        """Takes memory for work or an answer, of which one may always be under way; queues `holder` where one is."""
        if self._acquire(holdings, holder, size_bytes, now):
            return True
        if self._none_under_way(holdings):
            self._waiters.pop(holder, None)
            self._grant(holdings, holder, size_bytes, now)
            return True
        self._waiters[holder] = (size_bytes, holdings, granted)
        return False

    def _none_under_way(self, holdings: _Holdings) -> bool:
        """Whether nobody works, or whether nobody has an answer or room for one."""
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
        """Whether `holder` had memory of that kind: it has none now."""
        held = holdings.pop(holder, None)
        if held is None:
            return False
        self.used_bytes -= held[0]
        return True

    def _serve_waiters(self, now: float) -> None:
        """Grants what is waited for, as far as there is room now, or as nobody else has anything of the kind."""
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
        """Grants the first wish of that kind, if there is one, however little is free."""
        for waiter, (size_bytes, wanted, granted) in self._waiters.items():
            if wanted is holdings:
                del self._waiters[waiter]
                self._grant(wanted, waiter, size_bytes, now)
                granted()
                return


class Work:
    """What one request keeps in memory while it is worked on in the background."""

    __slots__ = ("_memory",)

    def __init__(self, memory: BufferedMemory) -> None:
        self._memory = memory

    def end(self, now: float) -> None:
        """It keeps nothing any more. May be called again."""
        self._memory.forget_work(self, now)
