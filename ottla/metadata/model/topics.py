"""Administrators' requests for topics, the marks that show topics to clients, and tombstones. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

from ottla.metadata.identities import BY_NAME, BY_TOPIC_ID
from ottla.metadata.store import Entry
from ottla.uuids import uuid_from_text, uuid_text

from .value import Value


@dataclass(frozen=True, slots=True)
class TopicIntent(Value):
    """A topic as an administrator requested it. `assignments[i]` are the replicas with which partition `i` is
    created."""

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
    """A topic's ready mark: clients may see the topic's first `partitions` partitions, whose states all exist."""

    partitions: int
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {"partitions": self.partitions}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        return cls(document.pop("partitions"), entry.mod_revision, format=version, unknown=document)


@dataclass(frozen=True, slots=True)
class Tombstone(Value):
    """Says that the topic with the id `topic_id` was deleted, so that brokers may remove the directories of its
    partitions.

    `pending` are the brokers that haven't yet confirmed that they have removed all directories of the topic.
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
