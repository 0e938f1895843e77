"""The values behind the metadata keys: frozen, with a format version and with unknown fields preserved. Pure.

A value is a JSON object with `format`, the version of its layout. Adding a field doesn't change the format: a process
that doesn't know the field keeps it (`unknown`) when it rewrites the value. A change that an older broker would misread
raises the format. The raised format is written only once all registered brokers say that they read it
(`Broker.format_max`): a new value is written in the first format, a rewritten value keeps the format that it has. A
reader that meets a format above its own stops with UnsupportedFormat and never guesses.

Positions that come from the store's entry and not from its value (`revision`, a broker's `epoch`) are fields too.
`decode` fills them in; `encode` leaves them out.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self
from uuid import UUID

from ottla.uuids import uuid_from_text, uuid_text

from .identities import BY_NAME, BY_NUMBER, BY_PARTITION, BY_TOPIC_ID
from .store import Entry

FORMAT_FIRST = 1  # every version of Ottla reads this format
FORMAT_MAX = 1  # the highest format that this code reads
NO_BROKER = -1
NO_LEADER = -1
NO_EPOCH = -1

_NOTHING_UNKNOWN: Mapping[str, Any] = {}


class UnsupportedFormat(Exception):
    """A value has a format that this version of Ottla doesn't read."""


class BrokerState(enum.Enum):
    """The stage of a registered broker's life."""

    STARTING = "starting"  # recovering its logs: neither elected nor admitted to an ISR
    RUNNING = "running"
    DRAINING = "draining"  # handing over before it stops: neither elected nor admitted to an ISR


class Endpoint(NamedTuple):
    """The address that a broker advertises for one of its listeners."""

    listener: str
    host: str
    port: int
    protocol: str = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class Value:
    """What all values have: the format that they are written in, and the fields of later versions of Ottla."""

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
        """Builds the value from `document` and removes the fields that it knows; the remaining ones are `unknown`."""
        raise NotImplementedError


def restore_id(generation: int, restored_ms: int) -> str:
    """The id of a restore by an earlier version of Ottla, which wrote no id; empty for a store never restored."""
    return f"{generation}@{restored_ms}" if generation or restored_ms else ""


def new_restore_id(generation: int, random: str) -> str:
    """The id of a restore that begins `generation`. The id starts with the generation's number."""
    return f"{generation}-{random}"


@dataclass(frozen=True, slots=True)
class Cluster(Value):
    """The cluster that the store belongs to, and the store's restores from backups (`backup.py`).

    `generation` counts the restores that the backup knew of. `restore` is the random id of the last restore; it is
    empty where there was none, or where an earlier version of Ottla made it. `past` are the ids of earlier restores, as
    far as they are known. `restored_ms` is the time of the last restore, by the clock of the machine that made it. This
    time is for people, and tells apart restores without an id.

    An earlier version of Ottla that restores a backup keeps `restore` from the backup, as it keeps all fields that it
    doesn't know, but writes a new generation. So an id counts only beside the generation that it names. An id that
    names another generation is the id of an earlier restore.

    While a restore is under way (`restoring`) the store holds only a part of the metadata. `awaited` are the brokers
    that have to report the ends of their logs before a restored partition gets a leader.
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
        """A later restore has a greater age than an earlier one. Compared only where neither has a random id."""
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
class Broker(Value):
    """A broker's registration, which exists as long as its lease does.

    `epoch` is the revision that created the registration, so that each registration has an epoch of its own, greater
    than those of earlier ones. `revision` is that of the last change of the broker's state or addresses.
    `previous_epoch` is the epoch of the registration before, if the broker's logs have lost nothing since: because it
    ended with a clean stop, or because the same process lost it. It is NO_EPOCH otherwise.
    """

    id: int
    epoch: int
    endpoints: Mapping[str, Endpoint]  # by listener name
    rack: str | None = None
    state: BrokerState = BrokerState.STARTING
    incarnation: str = ""  # a random text by which a process tells its own registration from another process's
    host: str = ""  # where the process runs, for people
    format_max: int = field(default_factory=lambda: FORMAT_MAX)
    previous_epoch: int = NO_EPOCH
    revision: int = 0

    @property
    def electable(self) -> bool:
        """Whether the broker may lead partitions and may join an ISR."""
        return self.state is BrokerState.RUNNING

    def holds_all_since(self, epoch: int) -> bool:
        """Whether the broker's logs have every record that they had under registration `epoch`.

        They have if the broker hasn't stopped uncleanly since.
        """
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
            id=BY_NUMBER.of(entry.key),
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
class ControllerHolder(Value):
    """The process that is controller: it holds the lease of this key.

    `broker_id` is the broker in the same process. For a controller without a broker it is an id of the process's own
    below NO_BROKER, and `host` and `port` are the address at which the process listens.
    """

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
class TopicIntent(Value):
    """A topic as an administrator asked for it. `assignments[i]` are the replicas that partition `i` begins with."""

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
        name = BY_NAME.of(entry.key)
        return cls(name, topic_id, assignments, entry.mod_revision, format=version, unknown=document)


@dataclass(frozen=True, slots=True)
class Ready(Value):
    """A topic's ready mark: clients may see its first `partitions` partitions, because all their states exist."""

    partitions: int
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {"partitions": self.partitions}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        return cls(document.pop("partitions"), entry.mod_revision, format=version, unknown=document)


@dataclass(frozen=True, slots=True)
class Tombstone(Value):
    """A deleted topic, whose directories brokers may remove, by topic id.

    `pending` are the brokers that haven't yet confirmed that they have none of its directories left.
    """

    topic_id: UUID
    name: str
    pending: tuple[int, ...]
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {"name": self.name, "pending": self.pending}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        name, pending = document.pop("name"), tuple(document.pop("pending"))
        return cls(BY_TOPIC_ID.of(entry.key), name, pending, entry.mod_revision, format=version, unknown=document)


@dataclass(frozen=True, slots=True)
class Partition(Value):
    """The state of a partition.

    `isr_epochs[i]` is the registration epoch under which the broker `isr[i]` was admitted to the ISR. If that broker
    has registered anew since, its replica doesn't count as in sync. A broker leads only if `leads` says so for its
    present epoch.

    `elr` are the eligible leader replicas (KIP-966, see `eligibility.py`), `elr_epochs[i]` the registration epoch under
    which `elr[i]` was last known to have every committed record. While replicas are reassigned (KIP-455), `original`
    are the replicas from before, `replicas` are the target's followed by `removing`, and `adding` are the target's
    replicas that aren't in `original`.

    A `restored` state comes from a backup, so its leader and its ISR may be long outdated. No leader is elected by
    them, but by the ends of the replicas' logs.
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
        """Whether a reassignment of the partition's replicas is under way."""
        return bool(self.adding or self.removing)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas that the partition will have when its reassignment, if there is one, is complete."""
        if not self.removing:
            return self.replicas
        return tuple(replica for replica in self.replicas if replica not in self.removing)

    def leads(self, broker_id: int, broker_epoch: int) -> bool:
        """Whether this state names the broker as leader, and has it in the ISR under that registration epoch."""
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
        topic_id, index = BY_PARTITION.of(entry.key)
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
class Config(Value):
    """The dynamic settings of one resource: texts by Kafka's property names."""

    entries: Mapping[str, str]
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {"entries": dict(self.entries)}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        return cls(document.pop("entries"), entry.mod_revision, format=version, unknown=document)


@dataclass(frozen=True, slots=True)
class Quota(Value):
    """Limits of a quota entity, by Kafka's quota names."""

    limits: Mapping[str, float]
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {"limits": dict(self.limits)}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        return cls(document.pop("limits"), entry.mod_revision, format=version, unknown=document)


@dataclass(frozen=True, slots=True)
class Feature(Value):
    """A finalised feature level."""

    level: int
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {"level": self.level}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        return cls(document.pop("level"), entry.mod_revision, format=version, unknown=document)


@dataclass(frozen=True, slots=True)
class Election(Value):
    """The wish that a partition's preferred replica, or (`unclean`) any live replica, be elected as leader."""

    unclean: bool = False
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {"unclean": self.unclean}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        return cls(document.pop("unclean", False), entry.mod_revision, format=version, unknown=document)


@dataclass(frozen=True, slots=True)
class Reassignment(Value):
    """The wish to move a partition to the replicas `target`, or (None) to cancel its move to others."""

    target: tuple[int, ...] | None
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {"target": self.target}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        target = document.pop("target")
        return cls(None if target is None else tuple(target), entry.mod_revision, format=version, unknown=document)


class LogEnd(NamedTuple):
    """The end of a replica's log, as a broker reports it after a restore; `UNREADABLE` or `MISSING` without a log.

    `last_epoch` is the leader epoch of the log's last record, `end_offset` the offset after that record, `known_epoch`
    the newest leader epoch that the replica knows.
    """

    last_epoch: int
    end_offset: int
    known_epoch: int


UNREADABLE = LogEnd(-1, -1, -1)
"""The log can't be read for now: its directory has failed. It may hold more than any other one."""

MISSING = LogEnd(-1, -2, -1)
"""Every directory could be read, and the log is in none of them."""


@dataclass(frozen=True, slots=True)
class Report(Value):
    """One part of a broker's report after a restore: the ends of its logs of restored partitions.

    A report has `parts` parts, which are counted from 0.
    """

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
class ProducerIds(Value):
    """The first producer id that was never handed out."""

    next_id: int
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {"next_id": self.next_id}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        return cls(document.pop("next_id"), entry.mod_revision, format=version, unknown=document)


@dataclass(frozen=True, slots=True)
class LineageRow(Value):
    """One row of words of the store's lineage (`lineage.py`), joined without a separator."""

    words: str
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {"words": self.words}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        return cls(document.pop("words"), entry.mod_revision, format=version, unknown=document)


@dataclass(frozen=True, slots=True)
class LineageWord(Value):
    """No content: the key says all. It is named after the lineage's newest word, for the guards of transactions."""

    def _fields(self) -> dict[str, Any]:
        return {}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        return cls(format=version, unknown=document)


def with_isr(partition: Partition, isr: tuple[int, ...], isr_epochs: tuple[int, ...]) -> Partition:
    """The partition with another ISR under the same leader: only the partition epoch grows."""
    return replace(partition, isr=isr, isr_epochs=isr_epochs, partition_epoch=partition.partition_epoch + 1)
