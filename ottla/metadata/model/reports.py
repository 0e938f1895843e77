"""What brokers report after a restore from a backup: the ends of their logs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self
from uuid import UUID

from ottla.metadata.store import Entry
from ottla.uuids import uuid_from_text, uuid_text

from .value import Value


class LogEnd(NamedTuple):
    """The end of a replica's log, as a broker reports it after a restore; `UNREADABLE` or `MISSING` without a log.

    `last_epoch` is the leader epoch of the log's last record, `end_offset` the offset after that record, `known_epoch`
    the newest leader epoch that the replica knows.
    """

    last_epoch: int
    end_offset: int
    known_epoch: int


UNREADABLE = LogEnd(-1, -1, -1)
"""The log can't be read for now: its directory has failed. It may be longer than every other replica's log."""

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
