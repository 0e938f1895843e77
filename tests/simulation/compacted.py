"""The oracles for compacted topics: the last record of each key stays, and no older record comes back. Pure.

A partition is compacted if records with keys were sent to it (`keys` of a history's `send`). Each record has a value of
its own, and so has a tombstone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from .history import Event, Key, finals, key_of, name_of, of, placed, spot
from .losses import Permitted


def compacted(events: Sequence[Event]) -> set[Key]:
    """The compacted partitions."""
    return {key_of(event) for event in of(events, "send", "invoke") if "keys" in event}


class Keyed:
    """The values by key, in the order in which they were sent, and the offsets at which they were found."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.key: dict[str, str] = {}
        self._sent: dict[str, float] = {}  # value → its event's position, plus a fraction for its place in the batch
        self._of: dict[tuple[Key, str], list[str]] = defaultdict(list)
        self._offsets: dict[tuple[Key, str], int] = {}  # (partition, value) → offset, when acknowledged or at the end
        self._going: set[str] = set()  # tombstones that compaction may remove
        for position, event in enumerate(events):
            if event["op"] == "send" and "keys" in event:
                partition = key_of(event)
                for index, (value, key) in enumerate(zip(event["values"], event["keys"], strict=True)):
                    if event["phase"] == "invoke":
                        self.key[value] = key
                        self._sent[value] = position + index / len(event["keys"])
                        self._of[partition, key].append(value)
                    elif event["phase"] == "ok" and event["offset"] >= 0:
                        self._offsets[partition, value] = event["offset"] + index
                if event.get("tombstones_go"):
                    self._going.update(event["tombstones"])
        self.there = {key: dict(found.records) for key, found in finals(events).items()}
        for partition, found in self.there.items():
            self._offsets |= {(partition, value): offset for offset, value in found.items()}
        self._left = {partition: set(found.values()) for partition, found in self.there.items()}

    def outdone(self, partition: Key, offset: int | None, value: str, before: int | None = None) -> bool:
        """Whether compaction may have removed a record because of a later record of its key. Without `before`, the
        later record must be in the partition at the end, unless the later record is a tombstone that compaction may
        remove. With `before`, the later record must have been sent before the event at that position."""
        return any(
            (other in self._going and (other == value or self._later(partition, other, offset, value)))
            or (
                self._later(partition, other, offset, value)
                and (other in self._left[partition] if before is None else self._sent[other] < before)
            )
            for other in self._of[partition, self.key[value]]
        )

    def _later(self, partition: Key, other: str, offset: int | None, value: str) -> bool:
        others = self._offsets.get((partition, other))
        if offset is not None and others is not None:
            return others > offset
        # One producer's records are in the order of sending. Of two producers' requests either may have arrived first.
        return other.partition("/")[0] != value.partition("/")[0] or self._sent[other] > self._sent[value]

    def left(self, partition: Key, value: str) -> bool:
        """Whether the value is in the partition at the end."""
        return value in self._left[partition]


def lost_updates(events: Sequence[Event]) -> Iterator[str]:
    """An acknowledged or read record of a compacted topic is in the partition at the end, unless a later record of its
    key is."""
    keyed, permitted = Keyed(events), Permitted(events)
    told: set[tuple[Key, str]] = set()
    for position, event in enumerate(events):
        if event["phase"] != "ok" or event["op"] not in ("send", "poll") or event.get("acks", -1) != -1:
            continue
        partition = key_of(event)
        if partition not in keyed.there:
            continue
        if event["op"] == "send":
            first = event["offset"]
            found = [(first + at if first >= 0 else None, value) for at, value in enumerate(event["values"])]
        else:
            found = event["records"]
        for offset, value in found:
            if value not in keyed.key or (partition, value) in told:
                continue
            if keyed.left(partition, value) or keyed.outdone(partition, offset, value):
                continue
            asked = permitted.shown(event, position, value) if event["op"] == "poll" else None
            if not permitted.excuses(partition, offset, value, asked or permitted.acknowledged(event, position)):
                told.add((partition, value))
                key = keyed.key[value]
                left = [(at, other) for at, other in keyed.there[partition].items() if keyed.key.get(other) == key]
                yield (
                    f"lost update: {value} was {'read' if asked else 'acknowledged'} at {spot(partition, offset)} at"
                    f" {event['t']} s; at the end the key {key} has {left or 'no record'}"
                )


def skipped_records(events: Sequence[Event]) -> Iterator[str]:
    """A reader of a compacted topic misses only records that a later record of their key has replaced."""
    keyed, permitted = Keyed(events), Permitted(events)
    acknowledged: dict[Key, dict[int, str]] = defaultdict(dict)
    for position, event in enumerate(events):
        partition = key_of(event) if "partition" in event else ("", 0)
        if event["op"] == "send" and event["phase"] == "ok" and "keys" in event and event["offset"] >= 0:
            acknowledged[partition] |= {event["offset"] + at: value for at, value in enumerate(event["values"])}
        elif event["op"] == "poll" and event["phase"] == "ok" and partition in keyed.there and event["records"]:
            got = {offset for offset, _ in event["records"]}
            for offset in range(event["position"], event["records"][-1][0]):
                value = acknowledged[partition].get(offset)
                if offset in got or value is None or keyed.outdone(partition, offset, value, position):
                    continue
                if not permitted.anything(partition):
                    yield f"skipped record: {event['process']} didn't get {value} at {spot(partition, offset)}"


def unsorted(events: Sequence[Event]) -> Iterator[str]:
    """The offsets of a compacted partition grow from record to record, although there may be holes."""
    for partition in sorted(compacted(events)):
        for _, event in (*placed(events, "poll", "ok"), *placed(events, "final", "ok")):
            offsets = [offset for offset, _ in event["records"]] if key_of(event) == partition else []
            if offsets != sorted(set(offsets)) or (offsets and offsets[0] < event.get("position", 0)):
                yield (
                    f"unsorted: reading {name_of(partition)} from {event.get('position', 0)} on gave the"
                    f" offsets {offsets}"
                )


ORACLES = (lost_updates, skipped_records, unsorted)
