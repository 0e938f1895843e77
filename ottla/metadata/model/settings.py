"""The values that administrators set: dynamic settings, quotas, and levels of features. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from ottla.metadata.store import Entry

from .value import Value


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
    """The finalised level of a feature of the cluster, such as `eligible.leader.replicas.version`."""

    level: int
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {"level": self.level}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        return cls(document.pop("level"), entry.mod_revision, format=version, unknown=document)
