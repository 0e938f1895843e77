"""The oracle for programs that consume, process and produce in transactions: each record is processed once. Pure.

The events are those of `atomic.py`, and:

| op | fields |
|---|---|
| consumed | group, transaction, partition, first, next: the transaction has written a record for each record that can \
be read from `first` to `next`, and commits the offset `next` |
| settled input | group, partition; ok: offset: the group's offset when all is healed |
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ottla.broker.group.partitioning import OFFSETS_TOPIC

from .atomic import Settled
from .history import Event, Key, key_of, of, spot
from .losses import Permitted


def torn_copies(events: Sequence[Event]) -> Iterator[str]:
    """Each record below the group's offset was processed by exactly one transaction that can be read, and no record
    beyond the offset was."""
    settled = Settled(events)
    if settled.nothing or Permitted(events).anything_of(OFFSETS_TOPIC):
        return
    whole: set[str] = set()  # the transactions that can be read
    proven: set[str] = set()  # the transactions whose writes are in partitions that prove something
    for name, transaction in settled.transactions.items():
        visible, missing = settled.seen(transaction)
        if visible and not missing:
            whole.add(name)
        if all(write.partition in settled.visible for write in transaction.writes.values()):
            proven.add(name)
    by_input: dict[tuple[str, Key], list[Event]] = defaultdict(list)
    for event in of(events, "consumed", "ok"):
        by_input[event["group"], key_of(event)].append(event)
    for end in of(events, "settled input", "ok"):
        key = key_of(end)
        if key not in settled.committed or key in settled.lossy:
            continue
        consumed = by_input[end["group"], key]
        if any(event["transaction"] not in proven for event in consumed):
            continue
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
