"""The base of all values behind metadata keys: a format version, and unknown fields that are preserved. Pure.

A value is a JSON object with `format`, the version of its layout. A new field doesn't change the format: a process that
doesn't know the field keeps it (`unknown`) when it rewrites the value. If an older broker would misread a change, the
change raises the format. The raised format is written only once all registered brokers say that they read it
(`Broker.format_max`): a new value is written in the first format, a rewritten value keeps the format that it has. A
reader that finds a format above its own stops with UnsupportedFormat and never guesses.

Fields that follow from the store's entry instead of its value (`revision`, a broker's `epoch`) are filled in by
`decode` and left out by `encode`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ottla.metadata.store import Entry

FORMAT_FIRST = 1  # every version of Ottla reads this format
FORMAT_MAX = 2  # the highest format that this code reads: the first one whose readers know `transaction.version`
NOTHING_UNKNOWN: Mapping[str, Any] = {}


class UnsupportedFormat(Exception):
    """A value has a format that this version of Ottla doesn't read."""


@dataclass(frozen=True, slots=True)
class Value:
    """The base of all values behind metadata keys: the format of the value, and fields of later versions of Ottla."""

    format: int = field(default=FORMAT_FIRST, kw_only=True)
    unknown: Mapping[str, Any] = field(default_factory=lambda: NOTHING_UNKNOWN, kw_only=True)

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
                f"{entry.key} has format {version}; this Ottla reads up to {FORMAT_MAX}: upgrade Ottla"
            )
        return cls._from(entry, version, document)

    def _fields(self) -> dict[str, Any]:
        raise NotImplementedError

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        """Builds the value from `document` and removes the fields that it knows; the remaining ones are `unknown`."""
        raise NotImplementedError
