"""The values behind the metadata keys: frozen, with a format version and with unknown fields preserved. Pure.

A value is a JSON object with `format`, the version of its layout. Adding a field doesn't change the format: whoever
doesn't know the field keeps it (`unknown`) when rewriting the value. A change that an older broker would misread raises
the format, and is written only once all registered brokers say that they read it (`Broker.format_max`): what is new is
written in the first format, what is rewritten keeps the format that it has. A reader that meets a format above its own
stops with UnsupportedFormat and never guesses.

Positions that come from the store and not from the value (`revision`, a broker's `epoch`) are fields too, filled in by
`decode`, and are not encoded.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self
from uuid import UUID

from . import keys
from .keys import uuid_from_text, uuid_text
from .store import Entry

FORMAT_FIRST = 1  # which every reader reads
FORMAT_MAX = 1  # that this code reads
NO_BROKER = -1
NO_LEADER = -1
NO_EPOCH = -1

_NOTHING_UNKNOWN: Mapping[str, Any] = {}


class UnsupportedFormat(Exception):
    """A value has a format that this version of Ottla doesn't read."""


class BrokerState(enum.Enum):
    """How far a registered broker is."""

    STARTING = "starting"  # recovering its logs: neither elected nor admitted to an ISR
    RUNNING = "running"
    DRAINING = "draining"  # handing over before it stops: neither elected nor admitted to an ISR


class Endpoint(NamedTuple):
    """An advertised address."""

    listener: str
    host: str
    port: int
    protocol: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class _Value:
    format: int = field(default=FORMAT_FIRST, kw_only=True)
    unknown: Mapping[str, Any] = field(default_factory=lambda: _NOTHING_UNKNOWN, kw_only=True)

    def encode(self) -> bytes:
        """The value as the store keeps it."""
        document = {"format": self.format, **self._fields(), **self.unknown}
        return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def decode(cls, entry: Entry) -> Self:
        """The value of a store's entry. Raises UnsupportedFormat."""
        document = json.loads(entry.value)
        version = document.pop("format")
        if version > FORMAT_MAX:
            raise UnsupportedFormat(
                f"{entry.key} has format {version}; this Ottla reads up to {FORMAT_MAX}: upgrade it"
            )
        return cls._from(entry, version, document)

    def _fields(self) -> dict[str, Any]:
        raise NotImplementedError

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        """Builds the value from `document`, taking out what it knows; what is left is unknown."""
        raise NotImplementedError


def restore_id(generation: int, restored_ms: int) -> str:
    """The id of a restore that an earlier version made, which gave it none; empty for a store that never was one."""
    return f"{generation}@{restored_ms}" if generation or restored_ms else ""


def new_restore_id(generation: int, random: str) -> str:
    """The id of a restore that begins `generation`, which it names."""
    return f"{generation}-{random}"


@dataclass(frozen=True, slots=True)
class Cluster(_Value):
    """Which cluster the store belongs to. `generation` counts restores of the store from a backup (`backup.py`), as far
    as the backup knew of them; `restore` is the random id of the last one, empty where an earlier version made it or
    there was none, and `past` are the ids of those known to be before it. `restored_ms`, its time by the clock of who
    made it, is for people, and for restores without an id.

    An earlier version that restores a backup keeps the id in it, as all that it doesn't know, under a generation of its
    own. So an id counts only beside the generation that it names; any other is the id of a restore before.

    While one is under way (`restoring`) the rest of the store isn't whole. `awaited` are the brokers that must have
    reported what their logs hold before a restored partition gets a leader.
    """

    id: str
    generation: int = 0
    restoring: bool = False
    awaited: tuple[int, ...] = ()
    restored_ms: int = 0
    restore: str = ""
    past: tuple[str, ...] = ()
    revision: int = field(default=0, compare=False)

    @property
    def restore_id(self) -> str:
        """The id of the last restore, empty where there was none."""
        return self.restore or restore_id(self.generation, self.restored_ms)

    @property
    def age(self) -> tuple[int, int]:
        """By which a later restore is told from an earlier one where neither has a random id."""
        return self.restored_ms, self.generation

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"id": self.id, "generation": self.generation}
        if self.restoring:
            fields["restoring"] = True
        if self.awaited:
            fields["awaited"] = self.awaited
        if self.restored_ms:
            fields["restored_ms"] = self.restored_ms
        if self.restore:
            fields["restore"] = self.restore
        if self.past:
            fields["past"] = self.past
        return fields

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        pop = document.pop
        generation, restore, past = pop("generation", 0), pop("restore", ""), tuple(pop("past", ()))
        if restore and not restore.startswith(new_restore_id(generation, "")):
            restore, past = "", (*past, restore)
        return cls(
            pop("id"),
            generation,
            pop("restoring", False),
            tuple(pop("awaited", ())),
            pop("restored_ms", 0),
            restore,
            past,
            entry.mod_revision,
            format=version,
            unknown=document,
        )


@dataclass(frozen=True, slots=True)
class Broker(_Value):
    """A registered broker: it exists as long as its lease does.

    `epoch` is the revision that created the registration, so that each registration has its own and later ones have
    greater ones. `revision` is that of the last change of its state or addresses. `previous_epoch` is the epoch from
    which its logs come whole: that of the registration that ended with a clean stop, or that the same process lost.
    """

    id: int
    epoch: int
    endpoints: Mapping[str, Endpoint]  # by listener name
    rack: str | None = None
    state: BrokerState = BrokerState.STARTING
    incarnation: str = ""  # random, of the process: tells its own registration from another's
    host: str = ""  # where the process runs, for people
    format_max: int = field(default_factory=lambda: FORMAT_MAX)
    previous_epoch: int = NO_EPOCH
    revision: int = 0

    @property
    def electable(self) -> bool:
        """Whether it may lead and may join an ISR."""
        return self.state is BrokerState.RUNNING

    def holds_all_since(self, epoch: int) -> bool:
        """Whether its logs still hold all that they held under registration `epoch`: it didn't stop uncleanly since."""
        return epoch != NO_EPOCH and epoch in (self.epoch, self.previous_epoch)

    def _fields(self) -> dict[str, Any]:
        return {
            "endpoints": [list(endpoint) for endpoint in self.endpoints.values()],
            "rack": self.rack,
            "state": self.state.value,
            "incarnation": self.incarnation,
            "host": self.host,
            "format_max": self.format_max,
            "previous_epoch": self.previous_epoch,
        }

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        pop = document.pop
        endpoints = [Endpoint(*parts) for parts in pop("endpoints")]
        return cls(
            id=keys.broker_id(entry.key),
            epoch=entry.create_revision,
            endpoints={endpoint.listener: endpoint for endpoint in endpoints},
            rack=pop("rack", None),
            state=BrokerState(pop("state")),
            incarnation=pop("incarnation", ""),
            host=pop("host", ""),
            format_max=pop("format_max", FORMAT_FIRST),
            previous_epoch=pop("previous_epoch", NO_EPOCH),
            revision=entry.mod_revision,
            format=version,
            unknown=document,
        )


@dataclass(frozen=True, slots=True)
class ControllerHolder(_Value):
    """Who decides: the process that holds the lease of this key. `broker_id` is the broker in it; without one it is an
    id of the process's own below NO_BROKER, and `host` and `port` are where it listens."""

    name: str
    broker_id: int = NO_BROKER
    revision: int = 0
    host: str = ""
    port: int = 0

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"name": self.name, "broker_id": self.broker_id}
        if self.host:
            fields |= {"host": self.host, "port": self.port}
        return fields

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        pop = document.pop
        name, broker_id, revision = pop("name", ""), pop("broker_id", NO_BROKER), entry.mod_revision
        return cls(name, broker_id, revision, pop("host", ""), pop("port", 0), format=version, unknown=document)


@dataclass(frozen=True, slots=True)
class TopicIntent(_Value):
    """A topic as it was asked for. `assignments[i]` are the replicas that partition `i` begins with."""

    name: str
    id: UUID
    assignments: tuple[tuple[int, ...], ...]
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {"id": uuid_text(self.id), "assignments": self.assignments}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        topic_id = uuid_from_text(document.pop("id"))
        assignments = tuple(tuple(replicas) for replicas in document.pop("assignments"))
        name = keys.topic_name(entry.key)
        return cls(name, topic_id, assignments, entry.mod_revision, format=version, unknown=document)


@dataclass(frozen=True, slots=True)
class Ready(_Value):
    """How many of a topic's partitions may be seen: all their states exist."""

    partitions: int
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {"partitions": self.partitions}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        return cls(document.pop("partitions"), entry.mod_revision, format=version, unknown=document)


@dataclass(frozen=True, slots=True)
class Tombstone(_Value):
    """A deleted topic. Its directories may be removed, by id; `pending` are the brokers that haven't said they did."""

    topic_id: UUID
    name: str
    pending: tuple[int, ...]
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {"name": self.name, "pending": self.pending}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        name, pending = document.pop("name"), tuple(document.pop("pending"))
        return cls(keys.topic_id(entry.key), name, pending, entry.mod_revision, format=version, unknown=document)


@dataclass(frozen=True, slots=True)
class Partition(_Value):
    """The state of a partition.

    `isr_epochs[i]` is the registration epoch under which `isr[i]` was admitted: a replica whose broker has registered
    anew since isn't the one that was in sync. A broker leads only if `leads` says so for its present epoch.

    `elr` are the eligible leader replicas (KIP-966, see `eligibility.py`), `elr_epochs[i]` the registration epoch under
    which `elr[i]` was last known to have every committed record. While replicas are reassigned (KIP-455) `replicas` is
    the target followed by `removing`, `adding` is what the target has and `original`, the replicas before, hadn't.

    A `restored` state comes from a backup: what it says of leader and ISR may be long outdated, so nobody is elected by
    it, only by what the replicas' logs hold.
    """

    topic_id: UUID
    index: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    isr_epochs: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    recovering: bool = False  # an unclean election chose the leader, and it hasn't recovered its log yet
    elr_epochs: tuple[int, ...] = ()
    original: tuple[int, ...] = ()
    restored: bool = False
    revision: int = 0

    @property
    def reassigning(self) -> bool:
        """Whether replicas are being moved."""
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas when a reassignment, if there is one, will be complete."""
        if not self.removing:
            return self.replicas
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    def leads(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether the broker, under that registration, is the leader that this state names."""
        return self.leader == broker_id and self.epoch_in_isr(broker_id) == broker_epoch

    def epoch_in_isr(self, broker_id: int) -> int:
        """The registration epoch under which the broker is in the ISR, or NO_EPOCH."""
        for member, epoch in zip(self.isr, self.isr_epochs, strict=True):
            if member == broker_id:
                return epoch
        return NO_EPOCH

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "replicas": self.replicas,
            "isr": self.isr,
            "isr_epochs": self.isr_epochs,
            "leader": self.leader,
            "leader_epoch": self.leader_epoch,
            "partition_epoch": self.partition_epoch,
        }
        for name in ("adding", "removing", "elr", "last_known_elr", "recovering", "elr_epochs", "original", "restored"):
            if value := getattr(self, name):
                fields[name] = value
        return fields

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        topic_id, index = keys.partition_id(entry.key)
        pop = document.pop
        return cls(
            topic_id,
            index,
            tuple(pop("replicas")),
            tuple(pop("isr")),
            tuple(pop("isr_epochs")),
            pop("leader"),
            pop("leader_epoch"),
            pop("partition_epoch"),
            tuple(pop("adding", ())),
            tuple(pop("removing", ())),
            tuple(pop("elr", ())),
            tuple(pop("last_known_elr", ())),
            pop("recovering", False),
            tuple(pop("elr_epochs", ())),
            tuple(pop("original", ())),
            pop("restored", False),
            entry.mod_revision,
            format=version,
            unknown=document or _NOTHING_UNKNOWN,
        )


@dataclass(frozen=True, slots=True)
class Config(_Value):
    """Dynamic settings, by Kafka's property names, as texts."""

    entries: Mapping[str, str]
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {"entries": dict(self.entries)}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        return cls(document.pop("entries"), entry.mod_revision, format=version, unknown=document)


@dataclass(frozen=True, slots=True)
class Quota(_Value):
    """Limits of a quota entity, by Kafka's quota names."""

    limits: Mapping[str, float]
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {"limits": dict(self.limits)}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        return cls(document.pop("limits"), entry.mod_revision, format=version, unknown=document)


@dataclass(frozen=True, slots=True)
class Feature(_Value):
    """A finalised feature level."""

    level: int
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {"level": self.level}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        return cls(document.pop("level"), entry.mod_revision, format=version, unknown=document)


@dataclass(frozen=True, slots=True)
class Election(_Value):
    """A wished election: to the preferred replica, or (`unclean`) to any live one."""

    unclean: bool = False
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {"unclean": self.unclean}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        return cls(document.pop("unclean", False), entry.mod_revision, format=version, unknown=document)


@dataclass(frozen=True, slots=True)
class Reassignment(_Value):
    """The wish to move a partition to the replicas `target`, or (None) to end a move and restore what was before."""

    target: tuple[int, ...] | None
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {"target": self.target}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        target = document.pop("target")
        return cls(None if target is None else tuple(target), entry.mod_revision, format=version, unknown=document)


class LogEnd(NamedTuple):
    """What a replica's log holds: the epoch of its last record, its end, and the newest epoch that the replica knows;
    or that there is nothing that could be read (`UNREADABLE`, `MISSING`)."""

    last_epoch: int
    end_offset: int
    known_epoch: int


UNREADABLE = LogEnd(-1, -1, -1)
"""The log can't be read for now: its directory has failed. It may hold more than any other one."""

MISSING = LogEnd(-1, -2, -1)
"""Every directory could be read, and the log is in none of them."""


@dataclass(frozen=True, slots=True)
class Report(_Value):
    """One part of what a broker's logs of restored partitions hold; there are `parts` of it, counted from 0."""

    broker_epoch: int
    parts: int
    logs: Mapping[tuple[UUID, int], LogEnd]
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        topics: dict[str, list[tuple[int, ...]]] = {}
        for (topic_id, index), end in self.logs.items():
            topics.setdefault(uuid_text(topic_id), []).append((index, *end))
        return {"broker_epoch": self.broker_epoch, "parts": self.parts, "logs": topics}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        pop = document.pop
        logs = {
            (uuid_from_text(topic), index): LogEnd(*end) for topic, ends in pop("logs").items() for index, *end in ends
        }
        return cls(pop("broker_epoch"), pop("parts"), logs, entry.mod_revision, format=version, unknown=document)


@dataclass(frozen=True, slots=True)
class ProducerIds(_Value):
    """The first producer id that was never handed out."""

    next_id: int
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {"next_id": self.next_id}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        return cls(document.pop("next_id"), entry.mod_revision, format=version, unknown=document)


@dataclass(frozen=True, slots=True)
class LineageRow(_Value):
    """Words of the store's lineage (`lineage.py`), one behind the other without anything in between."""

    words: str
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {"words": self.words}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        return cls(document.pop("words"), entry.mod_revision, format=version, unknown=document)


def with_isr(partition: Partition, isr: tuple[int, ...], isr_epochs: tuple[int, ...]) -> Partition:
    """The partition with another ISR under the same leader: only the partition epoch grows."""
    return replace(partition, isr=isr, isr_epochs=isr_epochs, partition_epoch=partition.partition_epoch + 1)
