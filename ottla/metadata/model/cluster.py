"""The values of which a cluster has one: its identity, the lineage of its store, and its producer ids. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from ottla.metadata.store import Entry

from .value import Value


def restore_id(generation: int, restored_ms: int) -> str:
    """The id that stands for a restore by an earlier version of Ottla, which wrote no ids. Empty if there was no
    restore."""
    return f"{generation}@{restored_ms}" if generation or restored_ms else ""


def new_restore_id(generation: int, random: str) -> str:
    """The id of a restore that begins `generation`. The id starts with the generation's number."""
    return f"{generation}-{random}"


@dataclass(frozen=True, slots=True)
class Cluster(Value):
    """The cluster that the store belongs to, and the store's restores from backups (`backup.py`).

    `generation` is 0 at first. After a restore it is one more than the greater of the backup's and the store's
    generation. `restore` is the id of the last restore: its generation, and random digits. It is empty if there was no
    restore, or if an earlier version of Ottla made it. `past` are the ids of earlier restores, as far as they are
    known. `restored_ms` is the time of the last restore, by the clock of the machine that made it. This time is for
    people, and distinguishes restores without an id.

    If an earlier version of Ottla restores a backup, it writes a new generation, but keeps `restore` from the backup,
    as it keeps all fields that it doesn't know. So an id that the store has as `restore` is read as the id of the last
    restore only if it starts with `generation`. Otherwise it is read as one of `past`.

    While a restore is under way (`restoring`) the store has only a part of the metadata. `awaited` are the brokers
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
        """The id of the last restore of the store from a backup. Empty if there was no restore."""
        return self.restore or restore_id(self.generation, self.restored_ms)

    @property
    def age(self) -> tuple[int, int]:
        """Orders restores from backups that have no random ids: a later restore has a greater age."""
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
class LineageRow(Value):
    """Up to 64 lineage words, without separators: random strings by which processes recognise the store
    (`lineage.py`)."""

    words: str
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {"words": self.words}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        return cls(document.pop("words"), entry.mod_revision, format=version, unknown=document)


@dataclass(frozen=True, slots=True)
class LineageWord(Value):
    """An empty value. The name of its key is the newest lineage word, one of the random strings by which processes
    recognise the store (`lineage.py`): transactions compare this key, so that none is carried out on another store."""

    def _fields(self) -> dict[str, Any]:
        return {}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        return cls(format=version, unknown=document)


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
