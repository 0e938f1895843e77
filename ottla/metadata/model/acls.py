"""The value of an access control list's entry. Pure.

An entry says everything in its key (`identities.BY_ACL`): the resource, the principal, the host, the operation, and
whether the operation is allowed or denied. So two equal entries are one key, and an entry that exists can't be changed,
only deleted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from ottla.metadata.store import Entry

from .value import Value


@dataclass(frozen=True, slots=True)
class Acl(Value):
    """The existence of one entry."""

    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        return cls(entry.mod_revision, format=version, unknown=document)
