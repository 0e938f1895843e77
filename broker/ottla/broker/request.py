"""A request that is being handled: its header and the identity of its client. All handlers get the same `Request`.

The identity belongs to the connection: the listener through which the client connected, the principal as which the
client is known there, and the client's address. The identity is the same for all requests of a connection that reach a
handler, since a client that reauthenticates must remain the same principal (KIP-368). Source: Kafka's RequestContext.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kio.schema.index import api_key_map

from ottla.net.pending import Pending

if TYPE_CHECKING:
    from ottla.broker.throttling import Charge
    from ottla.net.connection import Connection


class Asker(Protocol):
    """Somebody whose rights are asked about: a principal at an address, with the request that the audit log names."""

    @property
    def principal(self) -> str: ...

    @property
    def client_host(self) -> str: ...

    @property
    def request_name(self) -> str: ...


@dataclass(slots=True, eq=False)
class Request:
    """One request. Its handler gets the body as another argument: decoded, or as bytes if the handler is a hot one."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None  # the name that the client gives itself, which proves nothing
    connection: Connection
    _pending: Pending | None = field(default=None, init=False)
    charge: Charge | None = field(default=None, init=False)
    """What the request costs its client; None while no client has a quota."""

    @property
    def listener(self) -> str:
        """The name of the listener through which the client connected."""
        return self.connection.listener.name

    @property
    def principal(self) -> str:
        """The client's principal, as Kafka writes it: `User:name`; `User:ANONYMOUS` where clients aren't
        authenticated."""
        return self.connection.principal

    @property
    def client_host(self) -> str:
        """The address that the client's connection comes from."""
        return self.connection.client_host

    @property
    def request_name(self) -> str:
        """The API's name in Kafka's words, such as ListOffsets."""
        return "".join(word.capitalize() for word in api_key_map.get(self.api_key, "await_revision").split("_"))

    @property
    def pending(self) -> Pending:
        """The placeholder for a response that is sent later; it keeps the response's place in the order of the
        connection's responses."""
        if self._pending is None:
            self._pending = Pending(self.connection, self.api_key)
        return self._pending
