"""Connections to other brokers, over the inter-broker listener: encrypted, and logged in, if that listener asks for it.

The settings and certificates are read at each connection, so a changed password is used by the next one. Fetchers,
links to other brokers, senders of markers and the controller's watch connect in this way.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.net.logging_in import LoginFailed, logged_in
from ottla.net.streams import Connect, Stream
from ottla.net.tls_streams import connect_tls
from ottla.protocol.sasl import ClientExchange
from ottla.security.jaas import InvalidJaas
from ottla.security.listener_logins import own_login
from ottla.security.preparation import begin_login_soon
from ottla.security.tls_listeners import TlsListeners
from ottla.settings.config import BrokerConfig
from ottla.settings.listeners import ENCRYPTED


def connect_to_brokers(connect: Connect, tls: TlsListeners, config: Callable[[], BrokerConfig]) -> Connect:
    """A `Connect` for the inter-broker listener. `connect` opens plain streams, for a listener that isn't encrypted."""
    connect_encrypted = connect_tls(tls.client_context)

    async def open_stream(host: str, port: int) -> Stream:
        listeners = config().listeners
        encrypted = listeners.protocol_of(listeners.inter_broker) in ENCRYPTED
        return await (connect_encrypted if encrypted else connect)(host, port)

    async def begin() -> ClientExchange | None:
        try:
            login = own_login(config())
        except InvalidJaas as error:
            raise LoginFailed(f"this broker can't log in at other brokers: its JAAS configuration {error}") from error
        return None if login is None else await begin_login_soon(login)

    return logged_in(open_stream, begin)
