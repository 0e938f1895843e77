"""The broker's own login at other brokers, over the inter-broker listener.

The settings are read at each connection, so a changed password is used by the next one. Fetchers, links to other
brokers, senders of markers and the controller's watch connect in this way.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.net.logging_in import BeginLogin, LoginFailed, logged_in
from ottla.net.streams import Connect
from ottla.security.begin_login import begin_login
from ottla.security.jaas import InvalidJaas
from ottla.security.listener_logins import own_login
from ottla.settings.config import BrokerConfig


def connect_to_brokers(connect: Connect, config: Callable[[], BrokerConfig]) -> Connect:
    """A `Connect` for the inter-broker listener: its streams have logged in, if the listener asks for it."""

    def begin() -> BeginLogin | None:
        try:
            login = own_login(config())
        except InvalidJaas as error:
            raise LoginFailed(f"this broker can't log in at other brokers: its JAAS configuration {error}") from error
        return None if login is None else begin_login(login)

    return logged_in(connect, begin)
