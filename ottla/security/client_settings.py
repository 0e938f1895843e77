"""The security of a client, from the properties of Kafka's own clients and tools. Pure.

The command line (`--command-config`) and Spark's data source (`kafka.*`) read the same properties. A property that
Ottla's client doesn't honour is refused where it would change who is logged in or to whom, because a user who sets it
relies on it. `ottla.security.preparation` makes of the result what connections need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from ottla.security.client_login import ClientLogin, client_login
from ottla.security.jaas import InvalidJaas
from ottla.security.tls_settings import CLIENT_SETTINGS, InvalidTls, TlsSettings, client_tls_settings
from ottla.settings.catalogue import BROKER
from ottla.settings.listeners import ENCRYPTED, PROTOCOLS, WITH_LOGIN
from ottla.settings.setting import InvalidSetting, Value

PROTOCOL, MECHANISM, JAAS = "security.protocol", "sasl.mechanism", "sasl.jaas.config"
URL_ENCODED = "sasl.oauthbearer.header.urlencode"
TOKENS = frozenset(
    (
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.scope",
        "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms",
        "sasl.login.retry.backoff.ms",
        "sasl.login.retry.backoff.max.ms",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.buffer.seconds",
    )
)
"""The properties about the tokens of OAUTHBEARER, which are settings of brokers, too."""

PROPERTIES = CLIENT_SETTINGS | TOKENS | {PROTOCOL, MECHANISM, JAAS, URL_ENCODED}
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
        return client_login(mechanism, properties[JAAS], partial(_value, properties))
    except InvalidJaas as error:
        raise ValueError(f"{JAAS} {error}") from None


def _value(properties: Mapping[str, str], name: str) -> Value:
    """The value of a property about tokens. Raises ValueError."""
    text = properties.get(name)
    if name == URL_ENCODED:  # of the properties, only this one is no setting of brokers
        return text is not None and text.strip().lower() == "true"
    setting = BROKER[name]
    if text is None:
        return setting.default_value
    try:
        return setting.parse(text)
    except InvalidSetting as error:
        raise ValueError(f"{name} {error.reason}") from None
