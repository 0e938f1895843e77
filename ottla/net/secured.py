"""How a client's connections are secured, as the connections see it: encryption, and the login above it."""

from __future__ import annotations

import ssl
from typing import Protocol

from ottla.net.logging_in import BeginLogin


class Secured(Protocol):
    """What a client needs to open its connections. The certificates and credentials come from elsewhere."""

    @property
    def tls(self) -> ssl.SSLContext | None:
        """The context for encrypted connections; None for plain ones."""

    @property
    def begin_login(self) -> BeginLogin | None:
        """Begins a login at a broker; None if the listener asks for none."""
