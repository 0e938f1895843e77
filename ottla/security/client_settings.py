"""The security of a client, from the properties of Kafka's own clients and tools. Pure.

The command line (`--command-config`) and Spark's data source (`kafka.*`) read the same properties. A property of this
table that Ottla's client doesn't honour is refused where it would change who is logged in or to whom, because a user
who sets it relies on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.security.client_login import ClientLogin, client_login
from ottla.security.jaas import InvalidJaas

PROTOCOL, MECHANISM, JAAS = "security.protocol", "sasl.mechanism", "sasl.jaas.config"
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"

_MECHANISM_DEFAULT = "GSSAPI"
_SUPPORTED = ("PLAINTEXT", "SASL_PLAINTEXT")
_WITH_LOGIN = frozenset({"SASL_PLAINTEXT", "SASL_SSL"})


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """How a client connects: Kafka's name of the protocol, and the login (None: there is none)."""

    protocol: str = "PLAINTEXT"
    login: ClientLogin | None = None


def client_security(properties: Mapping[str, str]) -> ClientSecurity:
    """The security in a client's properties; others are ignored. Raises ValueError, whose message begins with the
    property's name and has no secret."""
    protocol = properties.get(PROTOCOL, "PLAINTEXT").strip().upper()
    if protocol not in _SUPPORTED:
        raise ValueError(f"{PROTOCOL} is '{protocol}': only {' and '.join(_SUPPORTED)} are supported so far")
    if protocol not in _WITH_LOGIN:
        return ClientSecurity(protocol)
    for name, value in properties.items():
        if name.startswith("sasl.") and name.endswith(".class") and value:
            raise ValueError(f"{name} names Java code, which has no place in a Python process")
    mechanism = properties.get(MECHANISM, _MECHANISM_DEFAULT).strip()
    if not properties.get(JAAS):
        raise ValueError(f"{JAAS} is missing, which has the user and the password for {protocol}")
    try:
        return ClientSecurity(protocol, client_login(mechanism, properties[JAAS], properties.get(TOKEN_URL, "")))
    except InvalidJaas as error:
        raise ValueError(f"{JAAS} {error}") from None
