"""Makes a client's security ready for connections: reads key and trust stores, draws nonces, reads or fetches tokens.

The command line, Spark's data source and brokers (for their connections to one another) use it.
"""

from __future__ import annotations

import secrets
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ottla.protocol.sasl import ClientExchange, LoginRefused
from ottla.security.client_login import ClientLogin
from ottla.security.client_settings import ClientSecurity
from ottla.security.tls_settings import TlsSettings
from ottla.security.token_endpoint import TokenEndpoint


@dataclass(frozen=True, slots=True)
class PreparedSecurity:
    """What connections need (see `ottla.net.secured`), and the settings from which it was made."""

    settings: ClientSecurity
    tls: ssl.SSLContext | None
    begin_login: Callable[[], ClientExchange] | None


def prepared(security: ClientSecurity) -> PreparedSecurity:
    """The security, ready for the connections of one client. Files of stores are read now, so a later client gets
    renewed ones. Waits for the disk. Raises InvalidTls if a store can't be used."""
    return PreparedSecurity(
        security,
        None if security.tls is None else _context(security.tls),
        None if security.login is None else begin_login(security.login),
    )


def begin_login(login: ClientLogin) -> Callable[[], ClientExchange]:
    """A function that begins a new exchange at each call. It raises LoginRefused if a token's file can't be read, or no
    token can be fetched. It may wait for the network."""
    return lambda: login.exchange(secrets.token_hex, time.time, _read, _fetched)


async def begin_login_soon(login: ClientLogin) -> ClientExchange:
    """Begins a new exchange, in a task of an event loop. Raises LoginRefused as the functions of `begin_login` do."""
    if login.token_endpoint is None:
        return begin_login(login)()
    from ottla.security.token_fetching import cache_of

    token = await cache_of(login.token_endpoint).token_soon()
    return login.exchange(secrets.token_hex, time.time, _read, lambda _: token)


def _fetched(endpoint: TokenEndpoint) -> str:
    from ottla.security.token_fetching import cache_of

    return cache_of(endpoint).token()


def _context(settings: TlsSettings) -> ssl.SSLContext:
    # Imported only here, because the library for certificates takes memory.
    from ottla.security.contexts import client_context
    from ottla.security.stores import read_stores

    return client_context(settings, read_stores(settings))


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LoginRefused(f"the file {path} of the token can't be read: {type(error).__name__}") from error
