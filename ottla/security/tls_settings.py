"""The `ssl.*` settings of one listener, or of one client. Pure.

Brokers and clients have the same names, with the same meaning. `TlsSettings.problem` says what Apache Kafka says about
combinations that contradict one another. Source: `DefaultSslEngineFactory` and `SslConfigs` of Apache Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from ottla.security.ciphers import TLS13, openssl_name
from ottla.settings.catalogue import BROKER
from ottla.settings.secret import Secret
from ottla.settings.setting import InvalidSetting, Value

PEM, PKCS12, JKS = "PEM", "PKCS12", "JKS"
STORE_TYPES = (PEM, PKCS12, JKS)
PROTOCOLS = ("TLSv1.2", "TLSv1.3")
STORE_SETTINGS = frozenset(
    (
        "ssl.keystore.type",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.key.password",
        "ssl.keystore.key",
        "ssl.keystore.certificate.chain",
        "ssl.truststore.type",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.certificates",
    )
)
"""The settings of key and trust stores, which may change while a broker runs."""

CLIENT_SETTINGS = STORE_SETTINGS | {
    "ssl.enabled.protocols",
    "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm",
}
"""The settings that clients have, too."""


class InvalidTls(ValueError):
    """Settings with which there can be no TLS: they contradict one another, or a store can't be used."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The values of the settings; None for a setting without a value."""

    keystore_type: str
    keystore_location: str | None
    keystore_password: Secret | None
    key_password: Secret | None
    keystore_key: Secret | None
    keystore_certificate_chain: Secret | None
    truststore_type: str
    truststore_location: str | None
    truststore_password: Secret | None
    truststore_certificates: Secret | None
    enabled_protocols: tuple[str, ...]
    cipher_suites: tuple[str, ...]
    endpoint_identification: bool

    @property
    def has_key(self) -> bool:
        """Whether the settings name a key store."""
        return self.keystore_location is not None or self.keystore_key is not None

    @property
    def has_trust(self) -> bool:
        """Whether the settings name a trust store; otherwise the machine's own certificates are trusted."""
        return self.truststore_location is not None or self.truststore_certificates is not None

    @property
    def files(self) -> tuple[str, ...]:
        """The files of the stores."""
        return tuple(path for path in (self.keystore_location, self.truststore_location) if path is not None)

    def problem(self) -> str | None:
        """A sentence on the first contradiction; None if there is none."""
        return self._key_problem() or self._trust_problem() or self._offer_problem()

    def _key_problem(self) -> str | None:
        kind, location, password = self.keystore_type, self.keystore_location, self.keystore_password
        if kind not in STORE_TYPES:
            return f"ssl.keystore.type is {kind}: it must be one of {', '.join(STORE_TYPES)}"
        if self.keystore_key is not None:
            if kind != PEM:
                return f"SSL private key can be specified only for PEM, but key store type is {kind}."
            if self.keystore_certificate_chain is None:
                return "SSL private key is specified, but certificate chain is not specified."
            if location is not None:
                return "Both SSL key store location and separate private key are specified."
        elif self.keystore_certificate_chain is not None:
            return "SSL certificate chain is specified, but private key is not specified"
        if kind == PEM and password is not None and (location is not None or self.keystore_key is not None):
            return "SSL key store password cannot be specified with PEM format, only key password may be specified."
        if location is None and self.keystore_key is None and password is not None:
            return "SSL key store is not specified, but key store password is specified."
        if kind != PEM and location is not None and password is None:
            return "SSL key store is specified, but key store password is not specified."
        return None

    def _trust_problem(self) -> str | None:
        kind, location, password = self.truststore_type, self.truststore_location, self.truststore_password
        if kind not in STORE_TYPES:
            return f"ssl.truststore.type is {kind}: it must be one of {', '.join(STORE_TYPES)}"
        if self.truststore_certificates is not None:
            if kind != PEM:
                return f"SSL trust store certs can be specified only for PEM, but trust store type is {kind}."
            if location is not None:
                return "Both SSL trust store location and separate trust certificates are specified."
        if kind == PEM and password is not None and self.has_trust:
            return "SSL trust store password cannot be specified for PEM format."
        if not self.has_trust and password is not None:
            return "SSL trust store is not specified, but trust store password is specified."
        return None

    def _offer_problem(self) -> str | None:
        unknown = [name for name in self.enabled_protocols if name not in PROTOCOLS]
        if unknown or not self.enabled_protocols:
            has = ", ".join(unknown) or "empty"
            return f"ssl.enabled.protocols is {has}: it must be among {', '.join(PROTOCOLS)}"
        unknown = [name for name in self.cipher_suites if name not in TLS13 and openssl_name(name) is None]
        if unknown:
            return f"ssl.cipher.suites has the unsupported cipher suite {unknown[0]}"
        if 0 < len(TLS13.intersection(self.cipher_suites)) < len(TLS13):
            return (
                "ssl.cipher.suites has some suites of TLS 1.3 only, which can't be switched off one by one: "
                f"name all of {', '.join(sorted(TLS13))}, or none of them, which leaves TLS 1.2"
            )
        return None


def tls_settings(value_of: Callable[[str], Value]) -> TlsSettings:
    """The settings that `value_of` gives by their names, typed as in the table of brokers' settings. Raises
    InvalidTls, by Kafka's sentence."""
    get: Callable[[str], Any] = value_of
    settings = TlsSettings(
        keystore_type=str(get("ssl.keystore.type")).upper(),
        keystore_location=get("ssl.keystore.location") or None,
        keystore_password=get("ssl.keystore.password"),
        key_password=get("ssl.key.password"),
        keystore_key=get("ssl.keystore.key"),
        keystore_certificate_chain=get("ssl.keystore.certificate.chain"),
        truststore_type=str(get("ssl.truststore.type")).upper(),
        truststore_location=get("ssl.truststore.location") or None,
        truststore_password=get("ssl.truststore.password"),
        truststore_certificates=get("ssl.truststore.certificates"),
        enabled_protocols=get("ssl.enabled.protocols"),
        cipher_suites=get("ssl.cipher.suites"),
        endpoint_identification=_identifies(get("ssl.endpoint.identification.algorithm")),
    )
    problem = settings.problem()
    if problem is not None:
        raise InvalidTls(problem)
    return settings


def client_tls_settings(properties: Mapping[str, str]) -> TlsSettings:
    """The settings of a client, from its properties by Kafka's names. Raises InvalidTls."""

    def value_of(name: str) -> Value:
        setting = BROKER[name]
        text = properties.get(name)
        if text is None:
            return setting.default_value
        try:
            return setting.parse(text)
        except InvalidSetting as error:
            raise InvalidTls(f"{name} {error.reason}") from None

    return tls_settings(value_of)


def _identifies(algorithm: str | None) -> bool:
    if not algorithm:
        return False
    if algorithm.lower() != "https":
        _refuse(f"ssl.endpoint.identification.algorithm is {algorithm}: it must be https, or empty")
    return True


def _refuse(why: str) -> NoReturn:
    raise InvalidTls(why)
