"""What may be lost, by which event, and whom that excuses. Pure.

- A `permitted` event: everybody who was in sync lost its power. What lies from its offset on may be gone.
- An `unclean` one: a replica leads that may lack something, since the topic allows that. What it has stays; all else
  may be gone.

Either excuses only what was asked for before. It isn't always the moment of the request that counts: a leader that was
deposed while it slept, or is cut off, answers what it had; that is as old as its leadership.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from .history import Event, Key, key_of


class Asked(NamedTuple):
    """Of when an answer is, as a place among the events."""

    when: int  # for a loss of power: nothing that is asked for after it may be lost by it
    as_of: int  # for an unclean election: as long as nobody tells it, a deposed leader goes on to acknowledge


class _Election(NamedTuple):
    position: int
    broker: int
    epoch: int


class Permitted:
    """What the losses of a history excuse."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._power: dict[Key, list[tuple[int, int]]] = defaultdict(list)  # position among the events, offset
        self._unclean: dict[Key, list[tuple[int, dict[int, str]]]] = defaultdict(list)  # position, who has what
        self._invoked: dict[int, int] = {}
        self._sent: dict[str, int] = {}  # value → when
        self._elections: dict[Key, list[_Election]] = defaultdict(list)
        for position, event in enumerate(events):
            if event["op"] == "permitted":
                self._power[key_of(event)].append((position, event["offset"]))
            elif event["op"] == "unclean":
                self._unclean[key_of(event)].append((position, dict(event["held"])))
            elif event["op"] == "leads" and "epoch" in event:
                self._elections[key_of(event)].append(_Election(position, event["broker"], event["epoch"]))
            elif "id" in event:
                self._invoked.setdefault(event["id"], position)
                if event["op"] == "send" and event["phase"] == "invoke":
                    self._sent.update(dict.fromkeys(event["values"], position))

    def invoked(self, event: Event, position: int) -> int:
        """When what ended with this event, which is at `position`, was asked for."""
        return self._invoked.get(event.get("id", -1), position)

    def acknowledged(self, event: Event, position: int) -> Asked:
        """As of when a write that ended there was: of when it was asked for, or since who answered leads for the first
        time (its unclean election is the event after that); at the latest of the end of its leadership."""
        invoked, by = self.invoked(event, position), event.get("by", -1)
        elections = [election for election in self._elections.get(key_of(event), ()) if election.position < position]
        began = next((election.position for election in elections if election.broker == by), -1)
        when, as_of = max(invoked, began), max(invoked, began + 1)
        led, ended = False, as_of
        for election in elections:
            if election.broker == by:
                led, ended = True, as_of
            elif led:
                led, ended = False, min(election.position, as_of)
        return Asked(when, ended)

    def shown(self, event: Event, position: int, value: str) -> Asked:
        """As of when a read that ended there tells that a value was committed: of when it was asked for, but at the
        latest of the end of the leader epoch it was answered in. For losses of power only if the value was sent before
        that: afterwards nothing is committed in that epoch that another leader doesn't have."""
        epoch = event.get("epoch", -1)
        elections = self._elections.get(key_of(event), ())
        invoked = self.invoked(event, position)
        as_of = min(invoked, next((later.position for later in elections if 0 <= epoch < later.epoch), position))
        return Asked(as_of if self._sent.get(value, position) < as_of else invoked, as_of)

    def excuses(self, key: Key, offset: int | None, value: str, asked: Asked) -> bool:
        """Whether what was told then of a value may not hold any more (without an offset: nobody knows which)."""
        return any(
            at > asked.when and (offset is None or offset >= lost) for at, lost in self._power.get(key, ())
        ) or any(
            at > asked.as_of and (value not in held.values() if offset is None else held.get(offset) != value)
            for at, held in self._unclean.get(key, ())
        )

    def anything(self, key: Key) -> bool:
        """Whether the partition lost anything, ever."""
        return key in self._power or key in self._unclean

    def anything_of(self, topic: str) -> bool:
        """Whether a partition of the topic did."""
        return any(name == topic for name, _ in (*self._power, *self._unclean))
