"""The record of the clients' requests and answers, one event a line, which the oracles check.

Events are mappings. `phase` is "invoke" before a request, and then "ok", "fail" (it certainly had no effect) or
"unknown".

| op | fields |
|---|---|
| send | process, partition, values, acks, idempotent, renumbers: whether the client begins new producer epochs by \
itself; ok: offset of the first value, −1 if it isn't known, and by: the broker that answered. \
To a compacted topic: keys, tombstones (the values that are tombstones), tombstones_go (whether \
compaction may remove them) |
| poll | process, partition, position; ok: records as [offset, value], epoch: the leader epoch that the fetch named |
| forgotten | process, partition, value, error, sequence of a refused batch; sent_behind: the count of later batches |
| leads | partition, broker, epoch: the broker was elected leader in this epoch |
| commit | group, partition, offset; generation, if a member of the group commits |
| sync | process, group, generation, member; ok: token of the assignment, partitions of the member |
| committed | group, partition; ok: offset |
| final | partition; ok: start, records: the content when all is healed; producers: [id, epoch] for each record |
| permitted | partition, offset: records from this offset on may be lost: all in-sync replicas lost unsynced data |
| unclean | partition, broker, held: a replica that may lack committed records was elected; held are its records |

Process, crash and end-to-end tests write the same lines.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

Event = dict[str, Any]
Key = tuple[str, int]  # topic, index


class History:
    """Events in order, with their times, and a digest of all of them: runs with the same digest are the same."""

    def __init__(self, now: Callable[[], float] = lambda: 0.0) -> None:
        self.events: list[Event] = []
        self.counts: Counter[str] = Counter()
        self.notes: list[tuple[float, str]] = []  # faults and other notes, for the analysis of a failure
        self.now = now
        self._digest = hashlib.blake2b(digest_size=12)
        self._next_id = 0

    def add(self, op: str, phase: str, **fields: Any) -> Event:
        """Notes an event."""
        event = {"t": round(self.now(), 6), "op": op, "phase": phase, **fields}
        self.events.append(event)
        self.counts[f"{op} {phase}"] += 1
        self.trace(event)
        return event

    def invoke(self, op: str, **fields: Any) -> Event:
        """Notes the beginning of a request. Pass the returned event to `end`."""
        self._next_id += 1
        return self.add(op, "invoke", id=self._next_id, **fields)

    def end(self, begun: Event, phase: str, **fields: Any) -> None:
        """Notes the outcome of a request."""
        known = {name: value for name, value in begun.items() if name not in ("t", "op", "phase")}
        self.add(begun["op"], phase, **{**known, **fields})

    def trace(self, event: object) -> None:
        """Adds to the digest something that isn't a client's event."""
        self._digest.update(repr(event).encode())

    @property
    def digest(self) -> str:
        """The digest of the run so far."""
        return self._digest.copy().hexdigest()

    def lines(self) -> Iterator[str]:
        """The events as JSON."""
        for event in self.events:
            yield json.dumps(event, separators=(",", ":"))

    @classmethod
    def of(cls, *events: Event) -> History:
        """A history written by hand."""
        history = cls()
        for event in events:
            history.add(**event)
        return history


# ---- queries of the oracles


class Final(NamedTuple):
    """The content of a partition when all is healed."""

    start: int
    records: list[tuple[int, str]]
    producers: list[tuple[int, int]]
    """(id, epoch) of each record's producer; empty if the run didn't note them."""


def of(events: Iterable[Event], op: str, phase: str) -> Iterator[Event]:
    """The events of one kind."""
    return (event for event in events if event["op"] == op and event["phase"] == phase)


def placed(events: Sequence[Event], op: str, phase: str) -> Iterator[tuple[int, Event]]:
    """The events of one kind, with their positions among all events."""
    return ((at, event) for at, event in enumerate(events) if event["op"] == op and event["phase"] == phase)


def key_of(event: Event) -> Key:
    """The partition of an event."""
    topic, index = event["partition"]
    return topic, index


def finals(events: Iterable[Event]) -> dict[Key, Final]:
    """The content of each partition at the end."""
    return {
        key_of(event): Final(
            event["start"],
            [(offset, value) for offset, value in event["records"]],
            [(producer_id, epoch) for producer_id, epoch in event.get("producers", ())],
        )
        for event in of(events, "final", "ok")
    }


def reads(events: Iterable[Event]) -> Iterator[tuple[Key, int, str]]:
    """(partition, offset, value) of all records that any client read."""
    for event in events:
        if event["phase"] == "ok" and event["op"] in ("poll", "final"):
            for offset, value in event["records"]:
                yield key_of(event), offset, value


def name_of(key: Key) -> str:
    """The name of a partition in messages."""
    return f"{key[0]}-{key[1]}"


def spot(key: Key, offset: int | None) -> str:
    """An offset of a partition, in messages."""
    return name_of(key) if offset is None else f"{name_of(key)}@{offset}"
