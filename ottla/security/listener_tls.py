"""TLS of one listener: its settings, its certificates in force, and the principals of its clients.

`Loaded` is made off the event loop, since it reads files, and never changes. `ListenerTls` holds the one in force,
which connections take when they begin. So other certificates are in force at once, and no connection is cut.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

from ottla.security.contexts import ClientAuth, client_context, server_context
from ottla.security.der import MalformedDer
from ottla.security.distinguished_names import java_text, subject_name
from ottla.security.principal_mapping import InvalidRules, MappingRules
from ottla.security.renewal import check_both_ways, check_renewal, check_trust
from ottla.security.stores import Stores, read_stores
from ottla.security.tls_settings import InvalidTls, TlsSettings, tls_settings
from ottla.settings.config import BrokerConfig
from ottla.settings.listeners import PAGES

ANONYMOUS = "User:ANONYMOUS"

FileStates = tuple[tuple[int, int, int] | None, ...]
"""For each file of the stores, what changes when the file does: inode, time of the change, size. None: it's missing."""


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """The settings of one encrypted listener.

    `serves` says whether clients connect to it here, `connects` whether this process connects to such listeners of
    other brokers.
    """

    tls: TlsSettings
    client_auth: ClientAuth
    mapping_rules: str
    dn_changes: bool
    san_changes: bool
    serves: bool
    connects: bool
    for_pages: bool = False
    """Whether TLS lets a client in without a certificate even where certificates are required, because some of the HTTP
    pages are open to everybody."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Certificates that are ready for use."""

    settings: ListenerSettings
    stores: Stores
    files: FileStates
    server: ssl.SSLContext | None
    client: ssl.SSLContext


def listener_settings(config: BrokerConfig, listener: str, *, serves: bool) -> ListenerSettings:
    """The settings of an encrypted listener. Raises InvalidTls."""
    protocol = config.listeners.protocol_of(listener)
    try:
        tls = tls_settings(lambda name: config.for_listener(listener, name))
        MappingRules(str(config.for_listener(listener, "ssl.principal.mapping.rules")))
    except (InvalidTls, InvalidRules) as error:
        raise InvalidTls(f"listener {listener}: {error}") from None
    own_auth = f"listener.name.{listener.lower()}.ssl.client.auth"
    # Clients of SASL have their principal from their login. So in Kafka, too, only the listener's own setting asks them
    # for certificates, and the broker's doesn't.
    client_auth = config[own_auth] if own_auth in config else config["ssl.client.auth"] if protocol == "SSL" else "none"
    return ListenerSettings(
        tls=tls,
        client_auth=cast("ClientAuth", client_auth),
        mapping_rules=str(config.for_listener(listener, "ssl.principal.mapping.rules")),
        dn_changes=bool(config.for_listener(listener, "ssl.allow.dn.changes")),
        san_changes=bool(config.for_listener(listener, "ssl.allow.san.changes")),
        serves=serves,
        connects=listener == config.listeners.inter_broker,
        for_pages=listener == PAGES,
    )


def load(
    settings: ListenerSettings, listener: str, old: Loaded | None = None, *, keeps_missing: bool = False
) -> Loaded:
    """Reads the stores and makes the contexts. With `old`, checks that its connections' peers get along with the new
    ones; with `keeps_missing`, its keys stay if the file of the same key store is missing. Waits for the disk. Raises
    InvalidTls."""
    files = file_states(settings.tls.files)
    same_file = old is not None and old.settings.tls.keystore_location == settings.tls.keystore_location
    try:
        stores = read_stores(
            settings.tls, old.stores.identities if old is not None and same_file and keeps_missing else ()
        )
        if old is not None:
            check_renewal(old.stores, stores, dn_changes=settings.dn_changes, san_changes=settings.san_changes)
        asked = "requested" if settings.for_pages and settings.client_auth == "required" else settings.client_auth
        server = server_context(settings.tls, stores, asked) if settings.serves else None
        client = client_context(settings.tls, stores)
        if settings.serves and settings.connects and settings.client_auth == "required":
            check_trust(stores, settings.tls)
        # Nobody connects to a broker whose certificate has expired, so any stores are better than such ones.
        if old is not None and settings.serves and settings.connects and not old.stores.expired(datetime.now(UTC)):
            check_both_ways((old.stores, old.settings.tls), (stores, settings.tls))
    except InvalidTls as error:
        raise InvalidTls(f"listener {listener}: {error}") from None
    return Loaded(settings, stores, files, server, client)


def file_states(paths: Iterable[str]) -> FileStates:
    """The present states of files. Waits for the disk."""
    return tuple(map(_file_state, paths))


def _file_state(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class ListenerTls:
    """The certificates of a listener that are in force."""

    def __init__(self, loaded: Loaded) -> None:
        self.renew(loaded)

    def renew(self, loaded: Loaded) -> None:
        """Puts other certificates in force."""
        self.loaded = loaded
        self._rules = MappingRules(loaded.settings.mapping_rules)

    def context(self) -> ssl.SSLContext:
        """The context for a client's connection that begins now."""
        assert self.loaded.server is not None
        return self.loaded.server

    def client_context(self) -> ssl.SSLContext:
        """The context for a connection to another broker that begins now."""
        return self.loaded.client

    def principal_of(self, certificate: bytes | None) -> str:
        """The principal of a client by its certificate (DER). Raises ValueError if it is nobody's."""
        if certificate is None:
            return ANONYMOUS
        try:
            return f"User:{self._rules.user_name(java_text(subject_name(certificate)))}"
        except MalformedDer as error:
            raise ValueError(f"the name in the client's certificate can't be read: {error}") from None
