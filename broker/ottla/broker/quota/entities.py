"""Which limit a client has, and with whom the client shares it. Pure.

A client is a user with a client id. Limits are set for entities: a user, a client id, or both, and in place of each
name the default. The most specific entity decides. The order of precedence, by Kafka's paths:

1. /users/<user>/clients/<client-id>
2. /users/<user>/clients/<default>
3. /users/<user>
4. /users/<default>/clients/<client-id>
5. /users/<default>/clients/<default>
6. /users/<default>
7. /clients/<client-id>
8. /clients/<default>

The clients of a user share the user's limit (3, 6), and the users of a client id share the client id's (7, 8); the
other limits are for one user with one client id. A default stands for each name without a limit of its own: it isn't
shared. A client without a client id has the limits of its user only, as in Kafka. Source: DefaultQuotaCallback in
Kafka's ClientQuotaManager.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

USER, CLIENT_ID, IP = "user", "client-id", "ip"
_DEFAULT, _ANY = None, ""  # in place of a name: the default; no such part

Entity = Iterable[tuple[str, str | None]]
"""Pairs of a type and a name; the name None stands for the default of its type."""


class Client(NamedTuple):
    """Who is measured: a user and a client id. An empty text stands for all users, or for all client ids."""

    user: str
    client_id: str


class Limits:
    """The limits of one kind, such as `producer_byte_rate`, by entity. False if there is no limit."""

    __slots__ = ("_bounds",)

    def __init__(self) -> None:
        self._bounds: dict[tuple[str | None, str | None], float] = {}

    def set(self, entity: Entity, bound: float | None) -> None:
        """Sets or (None) removes the limit of an entity."""
        parts = dict(entity)
        pair = parts.get(USER, _ANY), parts.get(CLIENT_ID, _ANY)
        if bound is None:
            self._bounds.pop(pair, None)
        else:
            self._bounds[pair] = bound

    def __bool__(self) -> bool:
        return bool(self._bounds)

    def of(self, user: str, client_id: str) -> tuple[Client, float] | None:
        """(the client as it is measured, its limit); None if no limit is set for it."""
        get = self._bounds.get
        if client_id:
            bound = get((user, client_id))
            if bound is None:
                bound = get((user, _DEFAULT))
            if bound is not None:
                return Client(user, client_id), bound
        if (bound := get((user, _ANY))) is not None:
            return Client(user, ""), bound
        if client_id:
            bound = get((_DEFAULT, client_id))
            if bound is None:
                bound = get((_DEFAULT, _DEFAULT))
            if bound is not None:
                return Client(user, client_id), bound
        if (bound := get((_DEFAULT, _ANY))) is not None:
            return Client(user, ""), bound
        if client_id:
            bound = get((_ANY, client_id))
            if bound is None:
                bound = get((_ANY, _DEFAULT))
            if bound is not None:
                return Client("", client_id), bound
        return None
