"""What clients did and saw, one event a line: the record that the oracles judge.

Events are mappings; `phase` is "invoke" before a request, and then "ok", "fail" (it certainly did nothing) or
"unknown".

| op | fields |
|---|---|
| send | process, partition, values, acks, idempotent, renumbers: whether the client begins new producer epochs by \
itself; ok: offset of the first value, −1 where it isn't known, and by: the broker that answered. \
To a compacted topic: keys, tombstones (those of the values), tombstones_go (whether \
compaction may take them) |
| poll | process, partition, position; ok: records as [offset, value], epoch: the leader epoch that was asked |
| forgotten | process, partition, value, error, sequence; sent_behind: batches behind it that had been sent before |
| leads | partition, broker, epoch: who was made its leader |
| commit | group, partition, offset; of members: generation |
| sync | process, group, generation, member; ok: token of the assignment, partitions that are the member's |
| committed | group, partition; ok: offset |
| final | partition; ok: start, records: what is there when all is healed; producers: [id, epoch] of each record's |
| permitted | partition, offset: what lies from there on may be lost: all of the ISR lost its unsynced tail |
| unclean | partition, broker, held: who was elected from outside of those who have everything, and its records |

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
    """Events in order, with the time and a digest over all of them: two runs with the same digest were the same."""

    def __init__(self, now: Callable[[], float] = lambda: 0.0) -> None:
        self.events: list[Event] = []
        self.counts: Counter[str] = Counter()
        self.notes: list[tuple[float, str]] = []  # faults and the like, for who reads a failure
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
        """Notes the beginning of a request; hand its event to `end`."""
        self._next_id += 1
        return self.add(op, "invoke", id=self._next_id, **fields)

    def end(self, begun: Event, phase: str, **fields: Any) -> None:
        """Notes how a request ended."""
        known = {name: value for name, value in begun.items() if name not in ("t", "op", "phase")}
        self.add(begun["op"], phase, **{**known, **fields})

    def trace(self, event: object) -> None:
        """Puts into the digest what isn't an event of clients."""
        self._digest.update(repr(event).encode())

    @property
    def digest(self) -> str:
        """What distinguishes this run from others."""
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


# ---- what oracles look for in events


class Final(NamedTuple):
    """A partition when all is healed."""

    start: int
    records: list[tuple[int, str]]
    producers: list[tuple[int, int]]
    """(id, epoch) of each record's producer; empty where nobody looked."""


def of(events: Iterable[Event], op: str, phase: str) -> Iterator[Event]:
    """The events of one kind."""
    return (event for event in events if event["op"] == op and event["phase"] == phase)


def placed(events: Sequence[Event], op: str, phase: str) -> Iterator[tuple[int, Event]]:
    """The events of one kind, with their places among all."""
    return ((at, event) for at, event in enumerate(events) if event["op"] == op and event["phase"] == phase)


def key_of(event: Event) -> Key:
    """The partition that an event is about."""
    topic, index = event["partition"]
    return topic, index


def finals(events: Iterable[Event]) -> dict[Key, Final]:
    """What is there at the end."""
    return {
        key_of(event): Final(
            event["start"],
            [(offset, value) for offset, value in event["records"]],
            [(producer_id, epoch) for producer_id, epoch in event.get("producers", ())],
        )
        for event in of(events, "final", "ok")
    }


def reads(events: Iterable[Event]) -> Iterator[tuple[Key, int, str]]:
    """All that was read by anybody, with where."""
    for event in events:
        if event["phase"] == "ok" and event["op"] in ("poll", "final"):
            for offset, value in event["records"]:
                yield key_of(event), offset, value


def name_of(key: Key) -> str:
    """A partition for people."""
    return f"{key[0]}-{key[1]}"


def spot(key: Key, offset: int | None) -> str:
    """An offset of it."""
    return name_of(key) if offset is None else f"{name_of(key)}@{offset}"
