"""The transactions of one partition that are open, or whose markers may still be lost. Pure.

Consumers that read committed records only stop at the *first unstable offset*: the least first offset of the
transactions that are open, and of the ended transactions whose marker isn't below the high watermark yet. Another
replica may be elected that lacks such a marker, and on that replica the transaction is open.

All questions are answered in constant time, however many transactions there are:

- Open transactions are in the order of their first offsets, because each begins at the log's end.
- Ended transactions are in the order of their markers. The high watermark passes the markers in this order, and a
  truncation drops the newest ones. `_least` has each ended transaction that began before all transactions that ended
  after it. So the first transaction in `_least` has the least first offset of all ended ones.

With each ended transaction its producer's state from before the marker is kept. A truncation that drops the marker
takes that state back, so that the log needn't be read.

Source: Kafka's ProducerStateManager (ongoingTxns, unreplicatedTxns).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any, Generic, NamedTuple, TypeVar

EMPTY = -1  # in place of the first offset of a transaction that has no data
State = TypeVar("State")
_NOTHING_OPEN: OrderedDict[int, int] = OrderedDict()  # shared by all partitions without transactions: it takes memory
_NOTHING_ENDED: deque[Any] = deque()


class Ended(NamedTuple, Generic[State]):
    """A transaction whose marker has the offset `marker`. `first_offset` is EMPTY where the transaction has no data.
    `before` is the producer's state before the marker, None for a producer that was unknown then."""

    marker: int
    producer_id: int
    first_offset: int
    before: State | None


class Transactions(Generic[State]):
    """The transactions of one partition.

    A marker below `known_from` can't be taken back, because its producer's state from before the marker isn't known any
    more. Markers below `replicated_to` are below the high watermark.
    """

    __slots__ = ("_ended", "_least", "_open", "known_from", "replicated_to")

    def __init__(self, replicated_to: int = 0) -> None:
        self.known_from = 0
        self.replicated_to = replicated_to
        self._open: OrderedDict[int, int] = _NOTHING_OPEN  # first offset → producer id
        self._ended: deque[Ended[State]] = _NOTHING_ENDED
        self._least: deque[Ended[State]] = _NOTHING_ENDED

    @property
    def open_count(self) -> int:
        """The number of open transactions."""
        return len(self._open)

    @property
    def oldest_producer_id(self) -> int | None:
        """The producer of the open transaction that began first; None where none is open."""
        return next(iter(self._open.values()), None)

    def open_transactions(self) -> list[tuple[int, int]]:
        """(first offset, producer id) of each open transaction, in order."""
        return list(self._open.items())

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """The first unstable offset by `high_watermark`; None where every transaction has ended, and its marker is
        below the high watermark."""
        if self._ended and self._ended[0].marker < high_watermark:
            self.replicated(high_watermark)
        first = next(iter(self._open)) if self._open else None
        if self._least and (first is None or self._least[0].first_offset < first):
            return self._least[0].first_offset
        return first

    def began(self, first_offset: int, producer_id: int) -> None:
        """Notes a transaction that begins at `first_offset`, the log's end before its first batch."""
        if self._open is _NOTHING_OPEN:
            self._open = OrderedDict()
        self._open[first_offset] = producer_id

    def ended(self, ended: Ended[State]) -> int:
        """Notes the marker of a transaction. Returns the first offset of the earliest transaction that is still open,
        or the offset after the marker where there is none: the log's last stable offset if the marker were below the
        high watermark."""
        if ended.first_offset != EMPTY:
            self._open.pop(ended.first_offset, None)
        if ended.marker < self.replicated_to:
            self.known_from = ended.marker + 1
        else:
            if self._ended is _NOTHING_ENDED:
                self._ended, self._least = deque(), deque()
            self._ended.append(ended)
            self._note_least(ended)
        return next(iter(self._open), ended.marker + 1)

    def replicated(self, high_watermark: int) -> None:
        """Forgets the ended transactions whose markers are below the high watermark."""
        if high_watermark <= self.replicated_to:
            return
        self.replicated_to = high_watermark
        ended, least = self._ended, self._least
        while ended and ended[0].marker < high_watermark:
            self.known_from = ended.popleft().marker + 1
        while least and least[0].marker < high_watermark:
            least.popleft()

    def restore(self, still_open: list[tuple[int, int]], known_from: int) -> None:
        """Takes over the (first offset, producer id) of open transactions. Markers below `known_from` can't be taken
        back."""
        replicated_to = self.replicated_to
        self.clear()
        self.replicated_to = replicated_to
        if still_open:
            self._open = OrderedDict(sorted(still_open))
        self.known_from = known_from

    def truncate_to(self, end_offset: int) -> list[Ended[State]]:
        """Takes back what happened from `end_offset` on. Returns the ended transactions whose markers were at or above
        `end_offset`, newer ones first. `end_offset` must not be below `known_from`."""
        while self._open and next(reversed(self._open)) >= end_offset:
            self._open.popitem()
        undone = []
        while self._ended and self._ended[-1].marker >= end_offset:
            undone.append(self._ended.pop())
        self.replicated_to = min(self.replicated_to, end_offset)
        if undone:
            self._least.clear()
            for ended in self._ended:
                self._note_least(ended)
        if again := [
            (each.first_offset, each.producer_id) for each in undone if EMPTY < each.first_offset < end_offset
        ]:
            self._open = OrderedDict(sorted([*self._open.items(), *again]))
        return undone

    def clear(self) -> None:
        """Forgets all transactions."""
        self._open = _NOTHING_OPEN
        self._ended = self._least = _NOTHING_ENDED
        self.known_from = self.replicated_to = 0

    def _note_least(self, ended: Ended[State]) -> None:
        """Adds a transaction with the newest marker to `_least`."""
        if ended.first_offset == EMPTY:
            return
        while self._least and self._least[-1].first_offset > ended.first_offset:
            self._least.pop()
        self._least.append(ended)
