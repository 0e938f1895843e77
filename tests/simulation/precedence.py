"""The oracles for transactions that compare the order of events with the order of records. Pure.

The events are those of `atomic.py`, and:

| op | fields |
|---|---|
| patience | seconds: no last stable offset stays below the high watermark for longer than that |

Writes of transactions that are open at the same time may lie between each other in a partition, and in different
orders in different partitions: Kafka promises no isolation among writers. But if a write was over before another one
began, the record of the first one lies before that of the second one in their partition. So transactions of which one
follows the other are in the same order everywhere, and there is no cycle of writes (G0) among them.

A write is over when the first of these things has happened: it was acknowledged; its transaction's end was
acknowledged; a producer that was begun under the same transactional id after its own producer has the id.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from .atomic import Settled
from .history import Event, Key, key_of, name_of, of, placed, spot
from .losses import Permitted


class _Life:
    """A producer: when its first InitProducerId was answered, and when the one of a successor was."""

    def __init__(self, begun: int) -> None:
        self.begun = begun
        self.over = _NEVER


_NEVER = 1 << 62


def _lives(events: Sequence[Event]) -> dict[str, _Life]:
    """The producers by their process. Times are positions among the events."""
    lives: dict[str, _Life] = {}
    of_name: dict[str, list[_Life]] = defaultdict(list)
    invoked: dict[int, int] = {}
    for position, event in enumerate(events):
        if event["op"] == "fence" and event["phase"] == "invoke":
            invoked[event["id"]] = position
        elif event["op"] == "fence" and event["phase"] == "ok":
            for earlier in of_name[event["name"]]:
                if earlier.begun < invoked[event["id"]]:
                    earlier.over = min(earlier.over, position)
            lives[event["process"]] = _Life(position)
            of_name[event["name"]].append(lives[event["process"]])
    return lives


class _Writes:
    """When the write of each value began, and when it was over at the latest. Times are positions among the events."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.begun: dict[str, int] = {}
        self.over: dict[str, int] = {}
        self.transaction: dict[str, str] = {}
        lives = _lives(events)
        ended: dict[str, int] = {}
        for position, event in placed(events, "end", "ok"):
            ended.setdefault(event["transaction"], position)
        for position, event in enumerate(events):
            if event["op"] == "write" and event["phase"] == "invoke":
                life = lives.get(event["process"])
                over = min(ended.get(event["transaction"], _NEVER), _NEVER if life is None else life.over)
                for value in event["values"]:
                    self.begun[value], self.over[value] = position, max(over, position)
                    self.transaction[value] = event["transaction"]
            elif event["op"] == "write" and event["phase"] == "ok":
                for value in event["values"]:
                    self.over[value] = min(self.over[value], position)


def reordered_writes(events: Sequence[Event]) -> Iterator[str]:
    """No record lies before the record of a write that was over when its own write began."""
    settled, writes = Settled(events), _Writes(events)
    for key, found in settled.raw.items():
        if settled.is_lossy(key):
            continue
        first_over, witness = _NEVER, (-1, "")
        for offset, value in reversed(found):
            if value not in writes.begun:
                yield f"unsent write: {value} is at {spot(key, offset)}, and no producer has sent it"
                continue
            if first_over < writes.begun[value]:
                one, other = writes.transaction[value], writes.transaction[witness[1]]
                kind = "reordered writes" if one == other else "write cycle"
                yield (
                    f"{kind}: {value} is at {spot(key, offset)}, before {witness[1]} at {witness[0]}, whose write was"
                    " over when the one of the former began"
                )
            if writes.over[value] < first_over:
                first_over, witness = writes.over[value], (offset, value)


def early_reads(events: Sequence[Event]) -> Iterator[str]:
    """No reader of committed records gets a record before its producer has asked for the transaction's commit."""
    settled, writes = Settled(events), _Writes(events)
    asked: dict[str, int] = {}
    for position, event in placed(events, "end", "invoke"):
        if event["commits"]:
            asked.setdefault(event["transaction"], position)
    for position, event in placed(events, "read", "ok"):
        key = key_of(event)
        if settled.is_lossy(key):
            continue
        for offset, value in event["records"]:
            transaction = writes.transaction.get(value)
            if transaction is None:
                yield f"unsent read: {event['process']} read {value} at {spot(key, offset)}, which no producer has sent"
            elif transaction not in asked:
                yield (
                    f"aborted read: {event['process']} read {value} at {spot(key, offset)} at {event['t']} s, and the"
                    " commit of its transaction was never asked for"
                )
            elif asked[transaction] > position:
                yield (
                    f"intermediate read: {event['process']} read {value} at {spot(key, offset)} at {event['t']} s,"
                    " before the commit of its transaction was asked for"
                )


def stuck_stable_offsets(events: Sequence[Event]) -> Iterator[str]:
    """No last stable offset stays below the high watermark for longer than the run's patience."""
    patience_s = min((event["seconds"] for event in of(events, "patience", "ok")), default=None)
    if patience_s is None:
        return
    permitted = Permitted(events)
    since: dict[Key, tuple[int, float]] = {}
    told: set[tuple[Key, int]] = set()
    for event in of(events, "read", "ok"):
        if "stable" not in event or permitted.anything(key_of(event)):
            continue
        key, stable = key_of(event), event["stable"]
        if stable >= event["high_watermark"]:
            since.pop(key, None)
            continue
        known, at = since.get(key, (-1, 0.0))
        if stable > known:
            since[key] = (stable, event["t"])
        elif stable == known and event["t"] - at > patience_s and (key, stable) not in told:
            told.add((key, stable))
            yield (
                f"stuck: the last stable offset of {name_of(key)} was {stable} from {at} s to {event['t']} s, which is"
                f" longer than {patience_s:g} s, below a high watermark of {event['high_watermark']}"
            )


ORACLES = (reordered_writes, early_reads, stuck_stable_offsets)
