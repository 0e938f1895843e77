"""What must be true of every history, whatever went wrong meanwhile. Pure.

Each oracle takes the events of a run (`history.py`) and says, in sentences, what it found to be wrong. A partition of
which all in-sync replicas lost their unsynced tails at once is excused from that offset on (`permitted` events);
nothing else is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ottla.broker.group.partitioning import OFFSETS_TOPIC, partition_for

from .history import Event

Key = tuple[str, int]
SHOWN_MAX = 5


class Final(NamedTuple):
    """A partition when all is healed."""

    start: int
    records: list[tuple[int, str]]


def check_all(events: Sequence[Event]) -> list[str]:
    """All that is wrong with a history."""
    found: list[str] = []
    for oracle in ORACLES:
        wrong = list(oracle(events))
        found += wrong[:SHOWN_MAX]
        if len(wrong) > SHOWN_MAX:
            found.append(f"… and {len(wrong) - SHOWN_MAX} more of the last kind")
    return found


def lost_writes(events: Sequence[Event]) -> Iterator[str]:
    """Every value acknowledged with acks=all is there at the end, at the offset that was told."""
    final, permitted = _final(events), _permitted(events)
    where = {key: {value: offset for offset, value in found.records} for key, found in final.items()}
    for event in _of(events, "send", "ok"):
        key = _key(event)
        if event["acks"] != -1 or key not in final:
            continue
        for index, value in enumerate(event["values"]):
            offset = event["offset"] + index if event["offset"] >= 0 else None
            at = where[key].get(value)
            excused = key in permitted and (offset is None or offset >= permitted[key])
            if at is None and not excused:
                yield f"lost write: {value} was acknowledged at {_at(key, offset)} at {event['t']} s, and isn't there"
            elif at is not None and offset is not None and at != offset and not excused:
                yield f"moved write: {value} was acknowledged at {_at(key, offset)} and is at {at}"


def unsent_reads(events: Sequence[Event]) -> Iterator[str]:
    """Nobody reads what was never sent, or what was refused."""
    invoked = {value for event in _of(events, "send", "invoke") for value in event["values"]}
    failed = {value for event in _of(events, "send", "fail") for value in event["values"]}
    for key, offset, value, _ in _reads(events):
        if value not in invoked:
            yield f"phantom: {value!r} was read at {_at(key, offset)}, and nobody sent it"
        elif value in failed:
            yield f"aborted read: {value} was refused, and read at {_at(key, offset)}"


def strayed(events: Sequence[Event]) -> Iterator[str]:
    """What is read from a partition was sent to it: not to another, nor to a deleted topic of the same name."""
    sent_to = {value: _key(event) for event in _of(events, "send", "invoke") for value in event["values"]}
    for key, offset, value, _ in _reads(events):
        if sent_to.get(value, key) != key:
            yield f"strayed: {value} was sent to {_name(sent_to[value])}, and read at {_at(key, offset)}"


def two_values_at_one_offset(events: Sequence[Event]) -> Iterator[str]:
    """What is at an offset never changes, once it was read or acknowledged by all."""
    permitted = _permitted(events)
    seen: dict[tuple[Key, int], str] = {}
    told: set[tuple[Key, int]] = set()

    def conflicting(key: Key, offset: int, value: str) -> bool:
        known = seen.setdefault((key, offset), value)
        if known == value or (key in permitted and offset >= permitted[key]) or (key, offset) in told:
            return False
        told.add((key, offset))
        return True

    for event in _of(events, "send", "ok"):
        if event["acks"] == -1 and event["offset"] >= 0:
            for index, value in enumerate(event["values"]):
                if conflicting(_key(event), event["offset"] + index, value):
                    offset = event["offset"] + index
                    yield f"two values at {_at(_key(event), offset)}: {seen[_key(event), offset]} and {value}"
    for key, offset, value, _ in _reads(events):
        if conflicting(key, offset, value):
            yield f"two values at {_at(key, offset)}: {seen[key, offset]} and {value}"


def duplicates(events: Sequence[Event]) -> Iterator[str]:
    """An idempotent producer's values are there once."""
    idempotent = {value for event in _of(events, "send", "invoke") if event["idempotent"] for value in event["values"]}
    for key, found in _final(events).items():
        first: dict[str, int] = {}
        for offset, value in found.records:
            if value in first and value in idempotent:
                yield f"duplicate: {value} is at {_at(key, first[value])} and at {offset}"
            first.setdefault(value, offset)


def reordered(events: Sequence[Event]) -> Iterator[str]:
    """An idempotent producer's values are in the order in which they were sent."""
    order: dict[str, tuple[str, int]] = {}
    for event in _of(events, "send", "invoke"):
        if event["idempotent"]:
            for value in event["values"]:
                order[value] = (event["process"], len(order))
    for key, found in _final(events).items():
        latest: dict[str, tuple[int, str]] = {}
        seen: set[str] = set()
        for offset, value in found.records:
            if value not in order or value in seen:
                continue
            seen.add(value)
            process, place = order[value]
            if process in latest and latest[process][0] > place:
                yield f"reordered: {value} at {_at(key, offset)} is behind {latest[process][1]}, which was sent later"
            latest[process] = max(latest.get(process, (-1, "")), (place, value))


def skipped_polls(events: Sequence[Event]) -> Iterator[str]:
    """Offsets that a consumer gets are those it asked for, one after the other."""
    for event in _of(events, "poll", "ok"):
        expected = event["position"]
        for offset, _ in event["records"]:
            if offset != expected:
                kind = "skipped" if offset > expected else "repeated"
                yield f"{kind} poll: {event['process']} got offset {offset} of {_name(_key(event))}, not {expected}"
                break
            expected = offset + 1


def reads_out_of_range(events: Sequence[Event]) -> Iterator[str]:
    """A consumer that only goes on from what it read never leaves the log's range."""
    permitted = _permitted(events)
    for event in _of(events, "poll", "fail"):
        if "offset_out_of_range" in event.get("error", "") and _key(event) not in permitted:
            yield f"out of range: {event['process']} at {_at(_key(event), event['position'])}, {event['t']} s"


def vanished_reads(events: Sequence[Event]) -> Iterator[str]:
    """What a consumer has read is committed: it is still there at the end."""
    final, permitted = _final(events), _permitted(events)
    there = {key: dict(found.records) for key, found in final.items()}
    told: set[tuple[Key, int]] = set()
    for key, offset, value, event in _reads(events, final=False):
        if key not in final or (key in permitted and offset >= permitted[key]) or (key, offset) in told:
            continue
        if offset >= final[key].start and there[key].get(offset) != value:
            told.add((key, offset))
            yield (
                f"read before it was committed: {event['process']} read {value} at {_at(key, offset)}, {event['t']} s;"
                f" {there[key].get(offset)} is there"
            )


def holes(events: Sequence[Event]) -> Iterator[str]:
    """Offsets have no gaps."""
    for key, found in _final(events).items():
        expected = found.start
        for offset, _ in found.records:
            if offset != expected:
                yield f"hole: {_name(key)} goes on at {offset}, not {expected}"
            expected = offset + 1


def forgotten_producers(events: Sequence[Event]) -> Iterator[str]:
    """A broker knows the sequences that were acknowledged."""
    permitted = _permitted(events)
    for event in _of(events, "forgotten", "fail"):
        if _key(event) not in permitted:
            yield (
                f"forgotten producer: {event['error']} for {event['value']} in {_name(_key(event))} at {event['t']} s,"
                " though everything before it was acknowledged"
            )


def group_offsets(events: Sequence[Event]) -> Iterator[str]:
    """A group's offset is the last one committed, or one whose commit nobody knows the outcome of: that may have been
    late on its way, and overtaken.

    A coordinator that doesn't know yet that another has taken over answers what it had: Kafka's does, and whoever reads
    it has it read the records again, which at-least-once allows. So those answers prove nothing, unless the offset is
    one that nobody committed.

    A group's offsets grow, and are committed one at a time: by its one process, or by the members that own them.
    """
    permitted = {key for key in _permitted(events) if key[0] == OFFSETS_TOPIC}
    acknowledged: dict[tuple[str, Key], int] = {}
    asked: dict[tuple[str, Key], int] = {}
    unknown: dict[tuple[str, Key], set[int]] = defaultdict(set)
    at_least: dict[int, int] = {}
    coordinators: dict[int, int] = {}
    for event in events:
        if event["op"] == "leads" and event["partition"][0] == OFFSETS_TOPIC:
            coordinators[event["partition"][1]] = event["broker"]
        elif event["op"] == "commit":
            group = (event["group"], _key(event))
            if event["phase"] == "invoke":
                asked[group] = max(asked.get(group, -1), event["offset"])
            elif event["phase"] == "ok":
                acknowledged[group] = event["offset"]
            elif event["phase"] == "unknown":
                unknown[group].add(event["offset"])
        elif event["op"] == "committed":
            group = (event["group"], _key(event))
            if event["phase"] == "invoke":
                at_least[event["id"]] = acknowledged.get(group, -1)
            elif event["phase"] == "ok" and not permitted:
                least = at_least.get(event["id"], acknowledged.get(group, -1))
                if coordinators and event.get("by") != _coordinator(coordinators, event["group"]):
                    least = -1
                if event["offset"] < least and event["offset"] not in unknown[group]:
                    yield (
                        f"lost commit: group {event['group']} has {event['offset']} at {event['t']} s;"
                        f" {least} was acknowledged, or seen"
                    )
                elif event["offset"] > asked.get(group, -1):
                    yield f"phantom commit: group {event['group']} has {event['offset']}, which nobody committed"
                else:  # what was seen committed stays so
                    acknowledged[group] = max(acknowledged.get(group, -1), event["offset"])


def superseded_generations(events: Sequence[Event]) -> Iterator[str]:
    """Nobody commits under a generation after a commit under a later one was acknowledged."""
    if any(key[0] == OFFSETS_TOPIC for key in _permitted(events)):
        return
    latest: dict[str, int] = defaultdict(lambda: -1)
    allowed: dict[int, int] = {}
    for event in events:
        if event["op"] == "commit" and "generation" in event:
            if event["phase"] == "invoke":
                allowed[event["id"]] = latest[event["group"]]
            elif event["phase"] == "ok":
                if event["generation"] < allowed[event["id"]]:
                    yield (
                        f"superseded generation: {event['process']} committed under generation {event['generation']} at"
                        f" {event['t']} s, when there had been {allowed[event['id']]}"
                    )
                latest[event["group"]] = max(latest[event["group"]], event["generation"])


def two_assignments(events: Sequence[Event]) -> Iterator[str]:
    """The members of a generation got the same leader's assignment, and no partition is two members'."""
    if any(key[0] == OFFSETS_TOPIC for key in _permitted(events)):
        return
    tokens: dict[tuple[str, int], str] = {}
    owners: dict[tuple[str, int, int], str] = {}
    for event in _of(events, "sync", "ok"):
        generation = (event["group"], event["generation"])
        if tokens.setdefault(generation, event["token"]) != event["token"]:
            yield f"two assignments: {event['process']} has another in generation {event['generation']}"
        for index in event["partitions"]:
            if owners.setdefault((*generation, index), event["member"]) != event["member"]:
                yield f"two owners: of partition {index} in generation {event['generation']}"


def _coordinator(leaders: dict[int, int], group: str) -> int:
    return leaders.get(partition_for(group, max(leaders) + 1), -1)


ORACLES = (
    lost_writes,
    unsent_reads,
    strayed,
    two_values_at_one_offset,
    duplicates,
    reordered,
    skipped_polls,
    reads_out_of_range,
    vanished_reads,
    holes,
    forgotten_producers,
    group_offsets,
    superseded_generations,
    two_assignments,
)


def _of(events: Iterable[Event], op: str, phase: str) -> Iterator[Event]:
    return (event for event in events if event["op"] == op and event["phase"] == phase)


def _key(event: Event) -> Key:
    topic, index = event["partition"]
    return topic, index


def _final(events: Iterable[Event]) -> dict[Key, Final]:
    return {
        _key(event): Final(event["start"], [(offset, value) for offset, value in event["records"]])
        for event in _of(events, "final", "ok")
    }


def _permitted(events: Iterable[Event]) -> dict[Key, int]:
    """From which offset on a partition may have lost something."""
    found: dict[Key, int] = defaultdict(lambda: 1 << 62)
    for event in _of(events, "permitted", "ok"):
        found[_key(event)] = min(found[_key(event)], event["offset"])
    return dict(found)


def _reads(events: Iterable[Event], *, final: bool = True) -> Iterator[tuple[Key, int, str, Event]]:
    for event in events:
        if event["phase"] == "ok" and (event["op"] == "poll" or (final and event["op"] == "final")):
            for offset, value in event["records"]:
                yield _key(event), offset, value, event


def _name(key: Key) -> str:
    return f"{key[0]}-{key[1]}"


def _at(key: Key, offset: int | None) -> str:
    return _name(key) if offset is None else f"{_name(key)}@{offset}"
