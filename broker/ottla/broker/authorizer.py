"""The port by which dispatch asks, before a handler gets a request, whether the client has the right to it.

Ottla has no access control lists yet, so every request is allowed, as in Apache Kafka where `authorizer.class.name` is
empty. `api/declaration.py` says which rights an authoriser is asked about, and which rights it isn't asked about yet.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.broker.request import Request
from ottla.protocol.rights import Right

Rights = tuple[Right, ...]

Authorize = Callable[[Request, Rights], bool]
"""False where the client has none of these rights, which are those of the request's API (`Api.rights`, never empty), on
any resource at all: then the handler doesn't get the request, and dispatch closes the connection. True permits no name:
about those the handler asks. Called on the event loop for each request, those of Produce and Fetch too."""


def allow_everything(_request: Request, _rights: Rights) -> bool:
    """Allows every client every operation."""
    return True
