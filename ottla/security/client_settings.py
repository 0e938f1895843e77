"""The security of a client, from the properties of Kafka's own clients and tools. Pure.

The command line (`--command-config`) and Spark's data source (`kafka.*`) read the same properties. A property that
Ottla's client doesn't honour is refused where it would change who is logged in or to whom, because a user who sets it
relies on it. `ottla.security.preparation` makes of the result what connections need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.security.client_login import ClientLogin, client_login
from ottla.security.jaas import InvalidJaas
from ottla.security.tls_settings import CLIENT_SETTINGS, InvalidTls, TlsSettings, client_tls_settings
from ottla.settings.listeners import ENCRYPTED, PROTOCOLS, WITH_LOGIN

PROTOCOL, MECHANISM, JAAS = "security.protocol", "sasl.mechanism", "sasl.jaas.config"
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
PROPERTIES = CLIENT_SETTINGS | {PROTOCOL, MECHANISM, JAAS, TOKEN_URL}
"""The properties that say how Ottla's clients connect."""

_MECHANISM_DEFAULT = "GSSAPI"


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """How a client connects: Kafka's name of the protocol, the settings of TLS (None: connections aren't encrypted) and
    the login (None: there is none)."""

    protocol: str = "PLAINTEXT"
    tls: TlsSettings | None = None
    login: ClientLogin | None = None


def client_security(properties: Mapping[str, str]) -> ClientSecurity:
    """The security in a client's properties; others are ignored. Raises ValueError, whose message begins with the
    property's name and has no secret."""
    protocol = properties.get(PROTOCOL, "PLAINTEXT").strip().upper()
    if protocol not in PROTOCOLS:
        raise ValueError(f"{PROTOCOL} is '{protocol}': it must be one of {', '.join(PROTOCOLS)}")
    return ClientSecurity(
        protocol,
        _tls(properties) if protocol in ENCRYPTED else None,
        _login(properties, protocol) if protocol in WITH_LOGIN else None,
    )


def _tls(properties: Mapping[str, str]) -> TlsSettings:
    try:
        return client_tls_settings(properties)
    except InvalidTls as error:
        raise ValueError(f"ssl.*: {error}") from None


def _login(properties: Mapping[str, str], protocol: str) -> ClientLogin:
    for name, value in properties.items():
        if name.startswith("sasl.") and name.endswith(".class") and value:
            raise ValueError(f"{name} names Java code, which has no place in a Python process")
    mechanism = properties.get(MECHANISM, _MECHANISM_DEFAULT).strip()
    if not properties.get(JAAS):
        raise ValueError(f"{JAAS} is missing, which has the user and the password for {protocol}")
    try:
        return client_login(mechanism, properties[JAAS], properties.get(TOKEN_URL, ""))
    except InvalidJaas as error:
        raise ValueError(f"{JAAS} {error}") from None
