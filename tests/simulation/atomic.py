"""The oracles for transactions: each is read as a whole or not at all, and its offsets are committed with it. Pure.

Events (`history.py`) of transactional producers and of readers of committed records:

| op | fields |
|---|---|
| fence | process, name: a producer of the transactional id `name` begins; ok: producer, its id and epoch |
| transaction | process, name, transaction, protocol, producer, group, offset: the transaction begins; it will commit \
this offset of the group, unless the offset is negative |
| write | process, transaction, partition, values: a batch; ok: offset of the first value, −1 if it isn't known |
| end | process, name, transaction, commits: an EndTxn, with its repeats; fail: it certainly had no effect |
| read | process, partition, position; ok: records as [offset, value], next: the next position, and where the client \
knows them stable: the last stable offset, high_watermark |
| plain commit | group, transaction, offset: an offset of the group, committed without a transaction |
| settled | partition; ok: records: the committed records when all is healed, raw: all records, aborted ones included |
| settled offset | group; ok: offset |

A partition in which records may have been lost (`losses.py`) proves nothing, and neither does any transaction if
records of the coordinator may have been lost.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ottla.broker.group.partitioning import OFFSETS_TOPIC
from ottla.broker.transaction.partitioning import TRANSACTIONS_TOPIC

from .history import Event, Key, key_of, name_of, of, spot
from .losses import Permitted


class _Write(NamedTuple):
    partition: Key
    values: list[str]
    acknowledged: bool


class Transaction:
    """What clients know of one transaction. `outcome` is "committed", "aborted" or "unknown"."""

    def __init__(self, event: Event) -> None:
        self.name: str = event["transaction"]
        self.group: str = event["group"]
        self.offset: int = event["offset"]
        self.protocol: int = event["protocol"]
        self.outcome = "aborted"  # until an EndTxn is sent that may commit it
        self.ended_at = -1.0
        self.writes: dict[str, _Write] = {}  # by the first value


class Settled:
    """The transactions of a history, and what is left at the end."""

    def __init__(self, events: Sequence[Event]) -> None:
        self.transactions: dict[str, Transaction] = {}
        for event in events:
            if event["op"] == "transaction":
                self.transactions[event["transaction"]] = Transaction(event)
            elif event["op"] == "write":
                write = _Write(key_of(event), event["values"], event["phase"] == "ok")
                self.transactions[event["transaction"]].writes[event["values"][0]] = write
            elif event["op"] == "end" and event["commits"]:
                found = self.transactions[event["transaction"]]
                found.outcome = {"ok": "committed", "fail": "aborted"}.get(event["phase"], "unknown")
                found.ended_at = event["t"]
        self.committed: dict[Key, list[tuple[int, str]]] = {}
        self.raw: dict[Key, list[tuple[int, str]]] = {}
        for event in of(events, "settled", "ok"):
            self.committed[key_of(event)] = [(offset, value) for offset, value in event["records"]]
            self.raw[key_of(event)] = [(offset, value) for offset, value in event["raw"]]
        self._permitted = Permitted(events)
        self.nothing = self._permitted.anything_of(TRANSACTIONS_TOPIC)
        self.visible: dict[Key, set[str]] = {
            key: {value for _, value in found} for key, found in self.committed.items() if not self.is_lossy(key)
        }

    def is_lossy(self, key: Key) -> bool:
        """Whether a partition proves nothing: records of it, or of the coordinator, may have been lost. That doesn't
        depend on what is left of the partition, which nobody may be able to read to its end."""
        return self.nothing or self._permitted.anything(key)

    def seen(self, transaction: Transaction) -> tuple[list[str], list[str]]:
        """(visible values, missing values) of a transaction, in the partitions that prove something. A write without an
        acknowledgement isn't among the missing ones."""
        visible, missing = [], []
        for write in transaction.writes.values():
            there = self.visible.get(write.partition)
            for value in write.values if there is not None else ():
                if value in there:
                    visible.append(value)
                elif write.acknowledged:
                    missing.append(value)
        return visible, missing


def torn_transactions(events: Sequence[Event]) -> Iterator[str]:
    """All records of a committed transaction are visible in the end, none of an aborted one, and all or none where the
    client doesn't know the outcome."""
    settled = Settled(events)
    for transaction in settled.transactions.values():
        visible, missing = settled.seen(transaction)
        if transaction.outcome == "committed" and missing:
            kind = "torn" if visible else "lost"
            yield (
                f"{kind} transaction: {transaction.name} (V{transaction.protocol}) was committed at"
                f" {transaction.ended_at} s; {', '.join(missing[:4])} can't be read at the end"
            )
        elif transaction.outcome == "aborted" and visible:
            yield f"aborted read: {transaction.name} wasn't committed, but {', '.join(visible[:4])} can be read"
        elif transaction.outcome == "unknown" and visible and missing:
            yield (
                f"torn transaction: of {transaction.name} (V{transaction.protocol}), {', '.join(visible[:4])} can be"
                f" read, {', '.join(missing[:4])} can't"
            )


def doubled_records(events: Sequence[Event]) -> Iterator[str]:
    """Each value is in its partition once at most, and at the acknowledged offset."""
    settled = Settled(events)
    where: dict[Key, dict[str, int]] = {}
    for key, found in settled.raw.items():
        if settled.is_lossy(key):
            continue
        for value, count in Counter(value for _, value in found).items():
            if count > 1:
                offsets = [offset for offset, other in found if other == value]
                yield f"duplicate: {value} is in {name_of(key)} at {offsets}"
        where[key] = {value: offset for offset, value in found}
    for event in of(events, "write", "ok"):
        there = where.get(key_of(event))
        if there is None or event["offset"] < 0:
            continue
        for index, value in enumerate(event["values"]):
            if there.get(value) != event["offset"] + index:
                yield (
                    f"lost write: {value} was acknowledged at {spot(key_of(event), event['offset'] + index)}, and is at"
                    f" {there.get(value)} at the end"
                )


def wrong_reads(events: Sequence[Event]) -> Iterator[str]:
    """Checks each read of committed records: between the reader's position and its next position it must get exactly
    the records that are committed at the end of the run. Yields a sentence for each wrong read."""
    settled = Settled(events)
    for event in of(events, "read", "ok"):
        key = key_of(event)
        if key not in settled.committed or settled.is_lossy(key):
            continue
        all_of_it = settled.committed[key]
        first = bisect_left(all_of_it, (event["position"], ""))
        there = all_of_it[first : bisect_left(all_of_it, (event["next"], ""))]
        got = [(offset, value) for offset, value in event["records"]]
        if got != there:
            odd = sorted(set(got) ^ set(there))[:4]
            yield (
                f"read before the end of a transaction: {event['process']} read {name_of(key)} from"
                f" {event['position']} to {event['next']} at {event['t']} s; {odd} differ from the end"
            )


def falling_stable_offsets(events: Sequence[Event]) -> Iterator[str]:
    """Checks that the last stable offset in the answers to readers never falls: a transaction that has ended on one
    leader has ended on each later leader, too."""
    permitted = Permitted(events)
    seen: dict[tuple[str, Key], tuple[int, float]] = {}
    for event in of(events, "read", "ok"):
        key = key_of(event)
        if "stable" not in event or permitted.anything(key):
            continue
        stable, at = seen.get((event["process"], key), (-1, 0.0))
        if event["stable"] < stable <= event["high_watermark"]:
            yield (
                f"unstable offset: {event['process']} was told {event['stable']} as the last stable offset of"
                f" {name_of(key)} at {event['t']} s, and {stable} at {at} s"
            )
        seen[event["process"], key] = max((stable, at), (event["stable"], event["t"]))


def unfenced(events: Sequence[Event]) -> Iterator[str]:
    """No producer commits a transaction after its successor has begun."""
    if Permitted(events).anything_of(TRANSACTIONS_TOPIC):
        return
    begun: dict[int, set[str]] = {}  # request → the producers that had begun before it was sent
    living: dict[str, set[str]] = defaultdict(set)
    fenced: dict[str, set[str]] = defaultdict(set)
    sent: dict[int, bool] = {}
    for event in events:
        if event["op"] == "fence" and event["phase"] == "invoke":
            begun[event["id"]] = set(living[event["name"]])
        elif event["op"] == "fence" and event["phase"] == "ok":
            fenced[event["name"]] |= begun[event["id"]]
            living[event["name"]].add(event["process"])
        elif event["op"] == "end" and event["phase"] == "invoke":
            sent[event["id"]] = event["process"] in fenced[event["name"]]
        elif event["op"] == "end" and event["phase"] == "ok" and event["commits"] and sent[event["id"]]:
            yield (
                f"unfenced: {event['process']} committed {event['transaction']} at {event['t']} s, although its"
                " successor had begun"
            )


def group_offsets(events: Sequence[Event]) -> Iterator[str]:
    """A group's offset is that of the last transaction that was committed and had one, or of a later commit without a
    transaction."""
    settled = Settled(events)
    if settled.nothing or Permitted(events).anything_of(OFFSETS_TOPIC):
        return
    plain = {event["id"]: event for event in events if event["op"] == "plain commit"}
    for event in of(events, "settled offset", "ok"):
        latest, why = -1, ""
        unsure, late = set(), set()
        for commit in plain.values():
            if commit["group"] != event["group"] or commit["phase"] == "fail":
                continue
            if commit["phase"] != "ok":
                late.add(commit["offset"])  # it may have arrived behind later ones
            elif commit["offset"] > latest:
                latest, why = commit["offset"], "one without a transaction"
        for transaction in settled.transactions.values():
            if transaction.group != event["group"] or transaction.offset < 0:
                continue
            visible, missing = settled.seen(transaction)
            if transaction.outcome == "committed" or (visible and not missing):
                if transaction.offset > latest:
                    latest, why = transaction.offset, transaction.name
            elif transaction.outcome == "unknown" and not missing:
                unsure.add(transaction.offset)  # nothing proves its outcome
        if event["offset"] in late or (event["offset"] > latest and event["offset"] in unsure):
            continue
        if event["offset"] != latest:
            yield (
                f"torn offsets: {event['group']} is at {event['offset']} at the end; the last commit that counts is"
                f" {why or 'none'}, with {latest}"
            )


ORACLES = (torn_transactions, doubled_records, wrong_reads, falling_stable_offsets, unfenced, group_offsets)
