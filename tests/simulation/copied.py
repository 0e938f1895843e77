"""The oracle for programs that consume, process and produce in transactions: each record is processed once. Pure.

The events are those of `atomic.py`, and:

| op | fields |
|---|---|
| consumed | group, transaction, partition, first, next: the transaction has written a record for each record that can \
be read from `first` to `next`, and commits the offset `next` |
| settled input | group, partition; ok: offset: the group's offset when all is healed |

An input is judged only if its records, the group's offset and all copies of its records are in partitions that prove
something. A history may have no such input, so a test that wants proof asks `judged_inputs`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ottla.broker.group.partitioning import OFFSETS_TOPIC

from .atomic import Settled
from .history import Event, Key, key_of, of, spot
from .losses import Permitted


class _Judged(NamedTuple):
    """An input that proves something: a group's end of it, and the events of the transactions that consumed it."""

    end: Event
    consumed: list[Event]


def judged_inputs(events: Sequence[Event]) -> int:
    """The number of inputs (pairs of a group and a partition) that `torn_copies` judges, of those that were
    consumed."""
    return sum(1 for judged in _judged(events, Settled(events)) if judged.consumed)


def _judged(events: Sequence[Event], settled: Settled) -> Iterator[_Judged]:
    if settled.nothing or Permitted(events).anything_of(OFFSETS_TOPIC):
        return
    proven = {  # the transactions whose writes are in partitions that prove something
        name
        for name, transaction in settled.transactions.items()
        if all(write.partition in settled.visible for write in transaction.writes.values())
    }
    by_input: dict[tuple[str, Key], list[Event]] = defaultdict(list)
    for event in of(events, "consumed", "ok"):
        by_input[event["group"], key_of(event)].append(event)
    for end in of(events, "settled input", "ok"):
        key = key_of(end)
        consumed = by_input[end["group"], key]
        known = key in settled.committed and not settled.is_lossy(key)
        if known and all(event["transaction"] in proven for event in consumed):
            yield _Judged(end, consumed)


def torn_copies(events: Sequence[Event]) -> Iterator[str]:
    """Each record below the group's offset was processed by exactly one transaction that can be read, and no record
    beyond the offset was."""
    settled = Settled(events)
    whole: set[str] = set()  # the transactions that can be read
    for name, transaction in settled.transactions.items():
        visible, missing = settled.seen(transaction)
        if visible and not missing:
            whole.add(name)
    for end, consumed in _judged(events, settled):
        key = key_of(end)
        by: dict[int, list[str]] = defaultdict(list)
        for event in consumed:
            if event["transaction"] in whole:
                for offset in range(event["first"], event["next"]):
                    by[offset].append(event["transaction"])
        for offset, value in settled.committed[key]:
            found = by[offset]
            if offset < end["offset"] and not found:
                yield (
                    f"offsets without records: {end['group']} is at {end['offset']} at the end, and no transaction"
                    f" that can be read has processed {value} at {spot(key, offset)}"
                )
            elif offset >= end["offset"] and found:
                yield (
                    f"records without offsets: {found[0]} has processed {value} at {spot(key, offset)}, and"
                    f" {end['group']} is at {end['offset']} at the end"
                )
            elif len(found) > 1:
                yield f"processed twice: {value} at {spot(key, offset)} was processed by {' and by '.join(found)}"


ORACLES = (torn_copies,)
