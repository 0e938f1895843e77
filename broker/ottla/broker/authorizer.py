"""The port by which dispatch asks whether a client has a right to a request, before a handler gets the request.

Ottla has no access control lists yet, so every request is allowed, as in Apache Kafka where `authorizer.class.name` is
empty. `api/declaration.py` says which rights an authoriser is asked about, and which rights it isn't asked about yet.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.broker.request import Request
from ottla.protocol.rights import Right

Rights = tuple[Right, ...]

Authorize = Callable[[Request, Rights], bool]
"""Whether the client of a request has at least one of the given rights on at least one resource. The rights are those
of the request's API (`Api.rights`, never empty). If the function returns False, dispatch closes the connection, and the
handler doesn't get the request. If it returns True, no single resource is permitted yet: the handler asks about each
resource that the request names. The function is called on the event loop for each request, also for Produce and
Fetch."""


def allow_everything(_request: Request, _rights: Rights) -> bool:
    """Allows every client every operation."""
    return True
