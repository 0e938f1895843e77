"""What clients did and saw, one event a line: the record that the oracles judge.

Events are mappings; `phase` is "invoke" before a request, and then "ok", "fail" (it certainly did nothing) or
"unknown".

| op | fields |
|---|---|
| send | process, partition, values, acks, idempotent; ok: offset of the first value, −1 where it isn't known |
| poll | process, partition, position; ok: records as [offset, value], epoch: the leader epoch that was asked |
| forgotten | process, partition, value, error, sequence; sent_behind: records behind it that had been sent before |
| leads | partition, broker, epoch: who was made its leader |
| commit | group, partition, offset; of members: generation |
| sync | process, group, generation, member; ok: token of the assignment, partitions that are the member's |
| committed | group, partition; ok: offset |
| final | partition; ok: start, records: what is there when all is healed |
| permitted | partition, offset: what lies from there on may be lost: all of the ISR lost its unsynced tail |

Process, crash and end-to-end tests write the same lines.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

Event = dict[str, Any]


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
