"""The values about users: the keys of their passwords, delegation tokens, and the brokers' common secret for logins.
Pure.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from ottla.metadata.store import Entry

from .value import Value


@dataclass(frozen=True, slots=True)
class ScramKeys(Value):
    """What brokers know of a user's password for one SCRAM mechanism (RFC 5802). Nobody can log in with it, but the
    password can be guessed offline, so `repr` leaves the keys out."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {
            "salt": _text(self.salt),
            "stored_key": _text(self.stored_key),
            "server_key": _text(self.server_key),
            "iterations": self.iterations,
        }

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        salt, stored_key, server_key = (
            base64.b64decode(document.pop(name)) for name in ("salt", "stored_key", "server_key")
        )
        iterations = document.pop("iterations")
        return cls(salt, stored_key, server_key, iterations, entry.mod_revision, format=version, unknown=document)


@dataclass(frozen=True, slots=True)
class Token(Value):
    """A delegation token (KIP-48): its owner, who requested it and who may renew it (principals); when it was issued,
    expires, and expires at the latest (ms since the Unix epoch); and the keys by which it logs in, by mechanism."""

    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expiry_ms: int
    max_ms: int
    scram: Mapping[str, ScramKeys]
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {
            "owner": self.owner,
            "requester": self.requester,
            "renewers": list(self.renewers),
            "issued_ms": self.issued_ms,
            "expiry_ms": self.expiry_ms,
            "max_ms": self.max_ms,
            "scram": {mechanism: keys._fields() for mechanism, keys in self.scram.items()},
        }

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        pop = document.pop
        return cls(
            pop("owner"),
            pop("requester"),
            tuple(pop("renewers")),
            pop("issued_ms"),
            pop("expiry_ms"),
            pop("max_ms"),
            {mechanism: _keys(fields) for mechanism, fields in pop("scram").items()},
            entry.mod_revision,
            format=version,
            unknown=document,
        )


@dataclass(frozen=True, slots=True)
class LoginSecret(Value):
    """Random bytes that only the cluster's brokers know. From them a broker derives what it tells an unknown user, so
    that every broker tells the same at every attempt (`ottla.security.scram`)."""

    secret: bytes = field(repr=False)
    revision: int = 0

    def _fields(self) -> dict[str, Any]:
        return {"secret": _text(self.secret)}

    @classmethod
    def _from(cls, entry: Entry, version: int, document: dict[str, Any]) -> Self:
        return cls(base64.b64decode(document.pop("secret")), entry.mod_revision, format=version, unknown=document)


def _keys(fields: dict[str, Any]) -> ScramKeys:
    salt, stored_key, server_key = (base64.b64decode(fields[name]) for name in ("salt", "stored_key", "server_key"))
    return ScramKeys(salt, stored_key, server_key, fields["iterations"])


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
