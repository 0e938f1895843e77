"""The first unstable offset of a partition, compared with a list of all that happened, and its cost."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.log.transactions import EMPTY, Ended, Transactions

Step = tuple[str, int]
PRODUCERS = 4


class Happened:
    """A list of what happened at each offset, and the high watermark: the specification of `Transactions`.

    Kinds: "data" of a producer's transaction, and "marker"."""

    def __init__(self) -> None:
        self.log: list[Step] = []
        self.high_watermark = 0

    def transactions(self, end: int) -> list[tuple[int, int, int | None]]:
        """(producer, first offset, marker's offset or None) of each transaction with data, as of `end`."""
        found: list[tuple[int, int, int | None]] = []
        still_open: dict[int, int] = {}
        for offset, (kind, producer) in enumerate(self.log[:end]):
            if kind == "data":
                still_open.setdefault(producer, offset)
            elif producer in still_open:
                found.append((producer, still_open.pop(producer), offset))
        return found + [(producer, first, None) for producer, first in still_open.items()]

    def first_unstable(self) -> int | None:
        return min(
            (
                first
                for _, first, marker in self.transactions(len(self.log))
                if marker is None or marker >= self.high_watermark
            ),
            default=None,
        )


steps = st.lists(
    st.tuples(st.sampled_from(["data", "data", "marker", "marker", "high watermark", "truncate"]), st.integers(0, 9)),
    max_size=60,
)


def played(taken: Sequence[Step]) -> None:
    happened, real = Happened(), Transactions[int]()
    for kind, number in taken:
        log, producer = happened.log, number % PRODUCERS
        opened = {first: owner for owner, first, marker in happened.transactions(len(log)) if marker is None}
        if kind == "data":
            if producer not in opened.values():
                real.began(len(log), producer)
            log.append((kind, producer))
        elif kind == "marker":
            first = next((first for first, owner in opened.items() if owner == producer), EMPTY)
            others = [first for first, owner in opened.items() if owner != producer]
            stable = real.ended(Ended(len(log), producer, first, len(log)))
            assert stable == min(others, default=len(log) + 1)
            log.append((kind, producer))
        elif kind == "high watermark":
            happened.high_watermark = min(happened.high_watermark + number, len(log))
        else:
            end = max(len(log) - number, 0)
            if end < real.known_from:
                continue
            undone = real.truncate_to(end)
            markers = [at for at, (what, _) in enumerate(log) if what == "marker" and at >= end]
            assert [each.marker for each in undone] == markers[::-1]
            assert [each.before for each in undone] == markers[::-1]
            del log[end:]
            happened.high_watermark = min(happened.high_watermark, end)
        assert real.first_unstable_offset(happened.high_watermark) == happened.first_unstable()
        assert real.known_from <= happened.high_watermark
        assert real.open_transactions() == sorted(
            (first, owner) for owner, first, marker in happened.transactions(len(log)) if marker is None
        )


@given(steps)
def test_the_first_unstable_offset_is_that_of_the_history(taken: list[Step]) -> None:
    played(taken)


def test_a_marker_that_was_committed_before_is_not_waited_for() -> None:
    transactions = Transactions[int](replicated_to=10)
    transactions.began(3, 7)
    transactions.ended(Ended(5, 7, 3, None))
    assert transactions.first_unstable_offset(10) is None
    assert transactions.known_from == 6


def test_ten_thousand_open_transactions_cost_a_look_at_none_of_them() -> None:
    """The transactions end in the order in which they began. This is the worst order for a plain dictionary: a search
    for its first entry passes the places of all entries that were removed."""
    transactions = Transactions[None]()
    count = 10_000
    for producer in range(count):
        transactions.began(producer, producer)
    began = time.thread_time()
    for producer in range(count):
        transactions.ended(Ended(count + producer, producer, producer, None))
        assert transactions.first_unstable_offset(count + producer) == producer
    took = time.thread_time() - began
    began = time.thread_time()
    for _ in range(100):
        min(range(count))
    assert took < (time.thread_time() - began) * 2, "100 walks over 10,000 numbers take longer"
