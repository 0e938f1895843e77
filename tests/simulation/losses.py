"""The records that may be lost by an event, and the answers that such a loss excuses. Pure.

- A `permitted` event: all in-sync replicas lost their power. Records from the event's offset on may be lost.
- An `unclean` event: a replica that may lack records was elected, since the topic allows that. The records of that
  replica stay; all other records may be lost.

Either event excuses only answers to earlier requests. The time of the request doesn't always count: a leader that was
deposed while it was paused or cut off still answers with its old records. Such an answer counts as no newer than the
end of that leadership.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from .history import Event, Key, key_of


class Asked(NamedTuple):
    """The age of an answer: a position among the history's events for each kind of loss. Only a loss after its position
    excuses the answer."""

    when: int  # for losses of power
    as_of: int  # for unclean elections: a deposed leader that doesn't know of the election may still answer


class _Election(NamedTuple):
    position: int
    broker: int
    epoch: int


class Permitted:
    """The answers that the losses of a history excuse."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._power: dict[Key, list[tuple[int, int]]] = defaultdict(list)  # position among the events, offset
        self._unclean: dict[Key, list[tuple[int, dict[int, str]]]] = defaultdict(list)  # position, its records
        self._invoked: dict[int, int] = {}
        self._sent: dict[str, int] = {}  # value → the position of its `send`
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
        """The position of the request that `event`, at `position`, answers; `position` itself if `event` answers no
        request."""
        return self._invoked.get(event.get("id", -1), position)

    def acknowledged(self, event: Event, position: int) -> Asked:
        """The age of the acknowledgement of a write: the position of the request, or the position of the answering
        broker's first election if that election came later. An `unclean` event directly after that election counts as
        earlier than the answer. For unclean elections the age is never later than the end of the broker's leadership.
        """
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
        """The age of a read's statement that a value is committed: the position of the request, or the end of the
        leader epoch in which the read was answered if that came earlier. For losses of power, the end of the epoch
        counts only if the value was sent before it. A value that is sent later is committed in the old epoch only if
        the new leader has the value, too."""
        epoch = event.get("epoch", -1)
        elections = self._elections.get(key_of(event), ())
        invoked = self.invoked(event, position)
        as_of = min(invoked, next((later.position for later in elections if 0 <= epoch < later.epoch), position))
        return Asked(as_of if self._sent.get(value, position) < as_of else invoked, as_of)

    def excuses(self, key: Key, offset: int | None, value: str, asked: Asked) -> bool:
        """Whether a loss excuses that a value is missing, although an answer of the age `asked` said that the value was
        written or committed. `offset` is None if it is unknown."""
        return any(
            at > asked.when and (offset is None or offset >= lost) for at, lost in self._power.get(key, ())
        ) or any(
            at > asked.as_of and (value not in held.values() if offset is None else held.get(offset) != value)
            for at, held in self._unclean.get(key, ())
        )

    def anything(self, key: Key) -> bool:
        """Whether the partition ever had a permitted loss."""
        return key in self._power or key in self._unclean

    def anything_of(self, topic: str) -> bool:
        """Whether a partition of the topic ever had a permitted loss."""
        return any(name == topic for name, _ in (*self._power, *self._unclean))
