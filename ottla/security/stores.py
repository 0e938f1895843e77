"""Key stores and trust stores: PEM (files, or texts in settings), PKCS12 and JKS.

A store is read as a whole into memory, so that a file may be replaced at any time. A file of the type JKS or PKCS12 is
read by what it is, as in Java, where each of the two types reads both.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
    pkcs12,
)
from cryptography.x509.extensions import ExtensionNotFound

from ottla.security import jks
from ottla.security.pem import MalformedPem, blocks
from ottla.security.tls_settings import PEM, InvalidTls, TlsSettings
from ottla.settings.secret import Secret

_UNREADABLE = (
    ValueError, TypeError, OSError, UnsupportedAlgorithm, x509.InvalidVersion, x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)  # fmt: skip
"""What reading a store raises, whatever bytes it has."""
_CERTIFICATES = ("CERTIFICATE", "X509 CERTIFICATE", "TRUSTED CERTIFICATE")


@dataclass(frozen=True, slots=True)
class Identity:
    """A private key (PKCS #8, DER) and its certificates (DER), the key's own one first."""

    key: bytes = field(repr=False)
    chain: tuple[bytes, ...]

    @property
    def subject(self) -> x509.Name:
        """The distinguished name of the key's own certificate."""
        return x509.load_der_x509_certificate(self.chain[0]).subject

    @property
    def alternative_names(self) -> frozenset[x509.GeneralName]:
        """The alternative names of the key's own certificate."""
        certificate = x509.load_der_x509_certificate(self.chain[0])
        try:
            return frozenset(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
        except ExtensionNotFound:
            return frozenset()


@dataclass(frozen=True, slots=True)
class Stores:
    """The contents of both stores. `trusted` None means that there is no trust store."""

    identities: tuple[Identity, ...]
    trusted: tuple[bytes, ...] | None

    def expired(self, now: datetime) -> bool:
        """Whether a key's own certificate isn't valid any more."""
        own = (x509.load_der_x509_certificate(identity.chain[0]) for identity in self.identities)
        return any(now >= certificate.not_valid_after_utc for certificate in own)


def read_stores(settings: TlsSettings, kept: tuple[Identity, ...] = ()) -> Stores:
    """Reads both stores. Waits for the disk. Raises InvalidTls, whose sentence never has a secret.

    `kept`: the keys that stay if the key store's file is missing. So a trust store can change while whoever writes the
    files has no new key yet.
    """
    try:
        identities = _identities(settings) if settings.has_key else ()
        for identity in identities:  # `cryptography` reads a certificate's parts when they are asked for
            _ = identity.subject, identity.alternative_names
    except FileNotFoundError as error:
        if not kept:
            raise InvalidTls(_sentence("key store", settings.keystore_location, error)) from None
        identities = kept
    except _UNREADABLE as error:
        raise InvalidTls(_sentence("key store", settings.keystore_location, error)) from None
    try:
        trusted = _trusted(settings) if settings.has_trust else None
    except _UNREADABLE as error:
        raise InvalidTls(_sentence("trust store", settings.truststore_location, error)) from None
    return Stores(identities, trusted)


def _identities(settings: TlsSettings) -> tuple[Identity, ...]:
    if settings.keystore_type == PEM:
        if settings.keystore_location is not None:
            key = chain = Path(settings.keystore_location).read_text(encoding="latin-1")
        else:
            assert settings.keystore_key is not None
            assert settings.keystore_certificate_chain is not None
            key, chain = settings.keystore_key.value, settings.keystore_certificate_chain.value
        return (Identity(_pem_key(key, settings.key_password), _pem_certificates(chain)),)
    assert settings.keystore_location is not None
    assert settings.keystore_password is not None
    data, password = Path(settings.keystore_location).read_bytes(), settings.keystore_password.value
    if data.startswith(jks.MAGIC):
        key_password = settings.key_password.value if settings.key_password else None
        keys, _ = jks.read_jks(data, password, key_password)
        identities = tuple(Identity(each.key, each.chain) for each in sorted(keys, key=lambda each: each.alias))
    else:
        found = pkcs12.load_pkcs12(data, password.encode())
        if found.key is None or found.cert is None:
            raise InvalidTls("it has no private key with a certificate")
        chain_of = _ordered(found.cert.certificate, [each.certificate for each in found.additional_certs])
        identities = (Identity(_der(found.key), tuple(each.public_bytes(Encoding.DER) for each in chain_of)),)
    if not identities or not all(each.chain for each in identities):
        raise InvalidTls("it has no private key with a certificate")
    return identities


def _trusted(settings: TlsSettings) -> tuple[bytes, ...]:
    if settings.truststore_type == PEM:
        if settings.truststore_location is not None:
            return _pem_certificates(Path(settings.truststore_location).read_text(encoding="latin-1"))
        assert settings.truststore_certificates is not None
        return _pem_certificates(settings.truststore_certificates.value)
    assert settings.truststore_location is not None
    data = Path(settings.truststore_location).read_bytes()
    password = settings.truststore_password.value if settings.truststore_password else None
    if data.startswith(jks.MAGIC):
        keys, entries = jks.read_jks(data, password)
        certificates = [entry.certificate for entry in entries] + [each.chain[0] for each in keys if each.chain]
    else:
        found = pkcs12.load_pkcs12(data, None if password is None else password.encode())
        several = [*([found.cert] if found.cert else []), *found.additional_certs]
        certificates = [each.certificate.public_bytes(Encoding.DER) for each in several]
    if not certificates:
        raise InvalidTls("it has no certificate")
    return tuple(certificates)


def _pem_key(text: str, password: Secret | None) -> bytes:
    keys = [block for block in blocks(text) if block.label.endswith("PRIVATE KEY")]
    if len(keys) != 1:
        raise InvalidTls(f"it has {len(keys)} private keys in PEM format, and one is wanted")
    given = password.value.encode() if password is not None else None
    return _der(load_der_private_key(keys[0].der, given))


def _pem_certificates(text: str) -> tuple[bytes, ...]:
    certificates = tuple(block.der for block in blocks(text) if block.label in _CERTIFICATES)
    if not certificates:
        raise InvalidTls("it has no certificate in PEM format")
    for certificate in certificates:
        x509.load_der_x509_certificate(certificate)
    return certificates


def _ordered(own: x509.Certificate, others: list[x509.Certificate]) -> list[x509.Certificate]:
    """The chain from a certificate to its root, as far as `others` have it."""
    chain = [own]
    while chain[-1].issuer != chain[-1].subject:
        issuer = next((each for each in others if each.subject == chain[-1].issuer and each not in chain), None)
        if issuer is None:
            break
        chain.append(issuer)
    return chain


def _der(key: object) -> bytes:
    encoded: bytes = key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())  # type: ignore[attr-defined]
    return encoded


def _sentence(what: str, location: str | None, error: Exception) -> str:
    where = f" {location}" if location is not None else ""
    if isinstance(error, OSError):
        why = error.strerror or str(error)
    elif isinstance(error, InvalidTls | jks.InvalidJks | MalformedPem):
        why = str(error)
    elif isinstance(error, TypeError):  # cryptography's answer to a missing or a needless password of a key
        why = str(error).rstrip(".")
    else:
        why = "it can't be read: is its type right, and its password?"
    return f"the {what}{where} can't be used: {why}"
