"""Oracles: properties that every history must have, whatever faults occurred. Pure.

Each oracle takes the events of a run (`history.py`) and yields a sentence for each violation. Permitted losses
(`losses.py`) excuse answers to earlier requests, and nothing else. `compacted.py` has the oracles for compacted topics;
`atomic.py`, `precedence.py` and `copied.py` have those for transactions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from ottla.broker.group.partitioning import OFFSETS_TOPIC, partition_for

from . import atomic, compacted, copied, precedence
from .history import Event, Key, finals, key_of, name_of, of, placed, reads, spot
from .losses import Asked, Permitted

SHOWN_MAX = 5
BATCHES_KNOWN = 5  # a broker's memory of a producer (Kafka's ProducerStateEntry.NUM_BATCHES_TO_RETAIN)


def check_all(events: Sequence[Event]) -> list[str]:
    """All violations in a history."""
    found: list[str] = []
    for oracle in (*ORACLES, *compacted.ORACLES, *atomic.ORACLES, *precedence.ORACLES, *copied.ORACLES):
        wrong = list(oracle(events))
        found += wrong[:SHOWN_MAX]
        if len(wrong) > SHOWN_MAX:
            found.append(f"… and {len(wrong) - SHOWN_MAX} more violations like the last one")
    return found


def lost_writes(events: Sequence[Event]) -> Iterator[str]:
    """Every value acknowledged with acks=all is in the partition at the end, at the acknowledged offset."""
    final, permitted = finals(events), Permitted(events)
    where = {key: {value: offset for offset, value in found.records} for key, found in final.items()}
    sparse = compacted.compacted(events)
    for position, event in placed(events, "send", "ok"):
        key = key_of(event)
        if event["acks"] != -1 or key not in final:
            continue
        for index, value in enumerate(event["values"]):
            offset = event["offset"] + index if event["offset"] >= 0 else None
            at = where[key].get(value)
            excused = permitted.excuses(key, offset, value, permitted.acknowledged(event, position))
            if at is None and not excused and key not in sparse:
                yield (
                    f"lost write: {value} was acknowledged at {spot(key, offset)} at {event['t']} s, and is"
                    " missing at the end"
                )
            elif at is not None and offset is not None and at != offset and not excused:
                yield f"moved write: {value} was acknowledged at {spot(key, offset)}, but is at {at} at the end"


def unsent_reads(events: Sequence[Event]) -> Iterator[str]:
    """No client reads a value that was never sent, or a value whose request was refused."""
    invoked = {value for event in of(events, "send", "invoke") for value in event["values"]}
    failed = {value for event in of(events, "send", "fail") for value in event["values"]}
    for key, offset, value in reads(events):
        if value not in invoked:
            yield f"phantom: {value!r} was read at {spot(key, offset)}, but no client sent it"
        elif value in failed:
            yield f"aborted read: {value} was refused, but was read at {spot(key, offset)}"


def strayed(events: Sequence[Event]) -> Iterator[str]:
    """A value that is read from a partition was sent to that partition, neither to another partition nor to a deleted
    topic of the same name."""
    sent_to = {value: key_of(event) for event in of(events, "send", "invoke") for value in event["values"]}
    for key, offset, value in reads(events):
        if sent_to.get(value, key) != key:
            yield f"strayed: {value} was sent to {name_of(sent_to[value])}, but was read at {spot(key, offset)}"


def two_values_at_one_offset(events: Sequence[Event]) -> Iterator[str]:
    """The value at an offset never changes, once it was read or acknowledged by all in-sync replicas."""
    permitted = Permitted(events)
    seen: dict[tuple[Key, int], tuple[str, Asked]] = {}  # value, age of the answer
    told: set[tuple[Key, int]] = set()

    def conflicting(key: Key, offset: int, value: str, asked: Asked) -> str:
        known, since = seen.setdefault((key, offset), (value, asked))
        if known == value:
            return ""
        if permitted.excuses(key, offset, known, since) or permitted.excuses(key, offset, value, asked):
            seen[key, offset] = (value, asked) if asked.when > since.when else (known, since)
            return ""
        if (key, offset) in told:
            return ""
        told.add((key, offset))
        return f"two values at {spot(key, offset)}: {known} and {value}"

    for position, event in placed(events, "send", "ok"):
        if event["acks"] == -1 and event["offset"] >= 0:
            for index, value in enumerate(event["values"]):
                asked = permitted.acknowledged(event, position)
                if found := conflicting(key_of(event), event["offset"] + index, value, asked):
                    yield found
    for position, event in enumerate(events):
        if event["phase"] == "ok" and event["op"] in ("poll", "final"):
            for offset, value in event["records"]:
                if found := conflicting(key_of(event), offset, value, permitted.shown(event, position, value)):
                    yield found


def duplicates(events: Sequence[Event]) -> Iterator[str]:
    """Each value of an idempotent producer is in the log once.

    A client may break this rule itself: it begins a new epoch, and sends unanswered values again in that epoch. A
    broker can't recognise these values as duplicates. librdkafka does so if its next request overtakes a request that a
    deposed leader has refused (librdkafka's issue 4953). Each value of such a client (`renumbers`) is in the log at
    most once in each epoch.
    """
    sends = [event for event in of(events, "send", "invoke") if event["idempotent"]]
    idempotent = {value for event in sends for value in event["values"]}
    renumbered = {value for event in sends if event.get("renumbers") for value in event["values"]}
    for key, found in finals(events).items():
        first: dict[tuple[str, tuple[int, int] | None], int] = {}
        for (offset, value), producer in zip_longest(found.records, found.producers):
            written = (value, producer if value in renumbered else None)
            if written in first and value in idempotent:
                yield f"duplicate: {value} is at {spot(key, first[written])} and at {offset}"
            first.setdefault(written, offset)


def reordered(events: Sequence[Event]) -> Iterator[str]:
    """The values of an idempotent producer are in the log in the order in which they were sent."""
    order: dict[str, tuple[str, int]] = {}
    for event in of(events, "send", "invoke"):
        if event["idempotent"]:
            for value in event["values"]:
                order[value] = (event["process"], len(order))
    for key, found in finals(events).items():
        latest: dict[str, tuple[int, str]] = {}
        seen: set[str] = set()
        for offset, value in found.records:
            if value not in order or value in seen:
                continue
            seen.add(value)
            process, place = order[value]
            if process in latest and latest[process][0] > place:
                yield f"reordered: {value} at {spot(key, offset)} is behind {latest[process][1]}, which was sent later"
            latest[process] = max(latest.get(process, (-1, "")), (place, value))


def skipped_polls(events: Sequence[Event]) -> Iterator[str]:
    """A poll returns the offsets from the requested offset on, without a gap; compacted partitions may have gaps."""
    sparse = compacted.compacted(events)
    for event in of(events, "poll", "ok"):
        if key_of(event) in sparse:
            continue
        expected = event["position"]
        for offset, _ in event["records"]:
            if offset != expected:
                kind = "skipped" if offset > expected else "repeated"
                yield f"{kind} poll: {event['process']} got offset {offset} of {name_of(key_of(event))}, not {expected}"
                break
            expected = offset + 1


def reads_out_of_range(events: Sequence[Event]) -> Iterator[str]:
    """A consumer that always continues after its last read never gets OFFSET_OUT_OF_RANGE."""
    permitted = Permitted(events)
    for event in of(events, "poll", "fail"):
        if "offset_out_of_range" in event.get("error", "") and not permitted.anything(key_of(event)):
            yield f"out of range: {event['process']} polled at {spot(key_of(event), event['position'])}, {event['t']} s"


def vanished_reads(events: Sequence[Event]) -> Iterator[str]:
    """A record that a consumer has read is committed, so it is still in the partition at the end."""
    final, permitted = finals(events), Permitted(events)
    there = {key: dict(found.records) for key, found in final.items()}
    told: set[tuple[Key, int]] = set()
    sparse = compacted.compacted(events)
    for position, event in placed(events, "poll", "ok"):
        key = key_of(event)
        for offset, value in event["records"] if key in final and key not in sparse else ():
            if offset < final[key].start or there[key].get(offset) == value or (key, offset) in told:
                continue
            if not permitted.excuses(key, offset, value, permitted.shown(event, position, value)):
                told.add((key, offset))
                yield (
                    f"read before it was committed: {event['process']} read {value} at {spot(key, offset)},"
                    f" {event['t']} s; at the end this offset has {there[key].get(offset)}"
                )


def holes(events: Sequence[Event]) -> Iterator[str]:
    """Offsets have no gaps, except in compacted partitions."""
    sparse = compacted.compacted(events)
    for key, found in finals(events).items():
        if key in sparse:
            continue
        expected = found.start
        for offset, _ in found.records:
            if offset != expected:
                yield f"hole: the next offset of {name_of(key)} is {offset}, not {expected}"
            expected = offset + 1


def forgotten_producers(events: Sequence[Event]) -> Iterator[str]:
    """A broker knows the sequence numbers that were acknowledged.

    There are exceptions, as in Kafka. A broker accepts any sequence number from an unknown producer (KIP-360). So if a
    producer's first batch is refused and the next one, already in flight, is accepted (because the ISR has just become
    large enough), the first batch comes too late. A broker knows a producer's last five batches: a repeat of an earlier
    batch is out of order. After compaction and a restart, it may know only the last batch.
    """
    compacted = {key_of(event) for event in of(events, "send", "invoke") if "keys" in event}
    permitted = Permitted(events)
    for event in of(events, "forgotten", "fail"):
        known = 1 if event["sequence"] == 0 or key_of(event) in compacted else BATCHES_KNOWN
        overtaken = event["sent_behind"] >= known
        if overtaken and event["error"] == "out_of_order_sequence_number":
            continue
        if not permitted.anything(key_of(event)):
            yield (
                f"forgotten producer: {event['error']} for {event['value']} in {name_of(key_of(event))} at"
                f" {event['t']} s, although all earlier batches were acknowledged"
            )


def group_offsets(events: Sequence[Event]) -> Iterator[str]:
    """A group's offset is the last committed offset, or the offset of a commit with an unknown outcome, which may have
    arrived late and out of order.

    A coordinator that doesn't know yet that another coordinator has taken over answers with its old offsets, as Kafka's
    does. A consumer then reads records again, which at-least-once allows. So an old offset in such an answer is no
    violation; an offset that was never committed is.

    A group's offsets grow, and are committed one at a time: by its one process, or by the members that own them.
    """
    lost = -1  # the position of the last loss of commits: answers to earlier requests prove nothing
    permitted = Permitted(events)
    acknowledged: dict[tuple[str, Key], int] = {}
    asked: dict[tuple[str, Key], int] = {}
    unknown: dict[tuple[str, Key], set[int]] = defaultdict(set)
    at_least: dict[int, int] = {}
    coordinators: dict[int, int] = {}
    for position, event in enumerate(events):
        invoked = permitted.invoked(event, position)
        if event["op"] == "permitted" and event["partition"][0] == OFFSETS_TOPIC:
            lost = position
            acknowledged.clear()
        elif event["op"] == "leads" and event["partition"][0] == OFFSETS_TOPIC:
            coordinators[event["partition"][1]] = event["broker"]
        elif event["op"] == "commit":
            group = (event["group"], key_of(event))
            if event["phase"] == "invoke":
                asked[group] = max(asked.get(group, -1), event["offset"])
            elif event["phase"] == "ok" and invoked > lost:
                acknowledged[group] = event["offset"]
            elif event["phase"] in ("ok", "unknown"):
                unknown[group].add(event["offset"])
        elif event["op"] == "committed":
            group = (event["group"], key_of(event))
            if event["phase"] == "invoke":
                at_least[event["id"]] = acknowledged.get(group, -1)
            elif event["phase"] == "ok" and invoked > lost:
                least = at_least.get(event["id"], acknowledged.get(group, -1))
                current = not coordinators or event.get("by") == _coordinator(coordinators, event["group"])
                if not current:
                    least = -1
                if event["offset"] < least and event["offset"] not in unknown[group]:
                    yield (
                        f"lost commit: group {event['group']} has offset {event['offset']} at {event['t']} s;"
                        f" {least} was acknowledged or read before"
                    )
                elif event["offset"] > asked.get(group, -1):
                    yield (
                        f"phantom commit: group {event['group']} has offset {event['offset']}, which no"
                        " client committed"
                    )
                elif current:  # an offset that was seen as committed stays committed
                    acknowledged[group] = max(acknowledged.get(group, -1), event["offset"])


def superseded_generations(events: Sequence[Event]) -> Iterator[str]:
    """No member commits under a generation after a commit under a later one was acknowledged."""
    if Permitted(events).anything_of(OFFSETS_TOPIC):
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
                        f" {event['t']} s, after a commit under generation {allowed[event['id']]}"
                    )
                latest[event["group"]] = max(latest[event["group"]], event["generation"])


def two_assignments(events: Sequence[Event]) -> Iterator[str]:
    """The members of a generation got the same leader's assignment, and no partition has two owners."""
    if Permitted(events).anything_of(OFFSETS_TOPIC):
        return
    tokens: dict[tuple[str, int], str] = {}
    owners: dict[tuple[str, int, int], str] = {}
    for event in of(events, "sync", "ok"):
        generation = (event["group"], event["generation"])
        if tokens.setdefault(generation, event["token"]) != event["token"]:
            yield f"two assignments: {event['process']} has another assignment in generation {event['generation']}"
        for index in event["partitions"]:
            if owners.setdefault((*generation, index), event["member"]) != event["member"]:
                yield f"two owners: partition {index} has two owners in generation {event['generation']}"


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
