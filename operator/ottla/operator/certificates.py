"""Certificate authorities and the pairs that they sign, for etcd, for brokers and for clients: X.509 and PEM texts.

A pair is a certificate and its key. An authority's Secret has its certificate and its key, and no pod mounts it; pairs
and trusted certificates stand in other Secrets. A pair is renewed when a third of its lifetime is left. `succession.py`
has the steps by which an authority is renewed.
"""

from __future__ import annotations

import base64
import ipaddress
import re
import ssl
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650
PAIR_DAYS = 730
AHEAD = timedelta(hours=1)  # certificates are valid from so long ago, because clocks differ
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)

Secret = dict[str, bytes]
Purpose = x509.ObjectIdentifier


class Issued(NamedTuple):
    """A certificate and its private key, as PEM texts."""

    certificate: bytes
    key: bytes

    @property
    def store(self) -> bytes:
        """A key store in PEM format: one text with the key and the certificate."""
        return self.key + self.certificate


def pair_in(store: bytes) -> Issued:
    """The pair in a key store that `Issued.store` has made; empty texts where it is none."""
    key, begin, rest = store.partition(b"-----BEGIN CERTIFICATE-----")
    return Issued(begin + rest, key)


@dataclass(frozen=True)
class Identity:
    """What the operator needs for TLS as a client of etcd or of brokers: PEM texts, and the DNS name in the certificate
    of each member or broker."""

    authority: bytes
    certificate: bytes
    key: bytes
    server_name: str

    def context(self) -> ssl.SSLContext:
        """The TLS context of connections."""
        context = ssl.create_default_context(cadata=self.authority.decode())
        loaded_into(context, Issued(self.certificate, self.key))
        return context


def loaded_into(context: ssl.SSLContext, pair: Issued) -> None:
    """Has connections of a TLS context show a pair's certificate. Python reads a pair only from a file, so for a moment
    the pair is in a file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pair.pem"
        file.touch(0o600)
        file.write_bytes(pair.certificate + pair.key)
        context.load_cert_chain(file)


def authority(name: str, now: datetime, days: int = AUTHORITY_DAYS) -> Secret:
    """The data of a new authority: tls.crt and tls.key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _named(f"{name[:40]} authority {now:%Y-%m-%d}")
    certificate = (
        _begun(subject, subject, key, now, now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return {"tls.crt": _pem(certificate), "tls.key": _key_pem(key)}


def made_at(certificate: bytes) -> datetime:
    """When the operator made a certificate (PEM)."""
    return x509.load_pem_x509_certificate(certificate).not_valid_before_utc + AHEAD


def expires_at(text: bytes) -> datetime:
    """The end of the certificate in a PEM text that is valid the longest."""
    return max(certificate.not_valid_after_utc for certificate in x509.load_pem_x509_certificates(text))


def joined(texts: Iterable[bytes]) -> bytes:
    """One PEM text with the certificates of several ones, each of them once.

    They are sorted, so that the text doesn't change when a successor becomes the authority.
    """
    return b"".join(sorted({each + b"\n" for each in each_in(texts)}))


def each_in(texts: Iterable[bytes]) -> list[bytes]:
    """The certificates in PEM texts, one by one; what stands between them, or can't be read, is left out."""
    return [each for text in texts for each in _CERTIFICATE.findall(text) if _is_readable(each)]


def _is_readable(certificate: bytes) -> bool:
    try:
        x509.load_pem_x509_certificate(certificate)
    except ValueError:
        return False
    return True


def trust_store(certificates: bytes, password: str) -> bytes:
    """A trust store of the type PKCS12, which Java reads, with these certificates (PEM)."""
    entries = [
        pkcs12.PKCS12Certificate(certificate, f"ca-{number}".encode())
        for number, certificate in enumerate(x509.load_pem_x509_certificates(certificates))
    ]
    return pkcs12.serialize_java_truststore(entries, serialization.BestAvailableEncryption(password.encode()))


def problem_of_pair(pair: Issued) -> str:
    """Why a pair from elsewhere can't be used; empty if it can."""
    try:
        certificate = x509.load_pem_x509_certificates(pair.certificate)[0]
        key = serialization.load_pem_private_key(pair.key, None)
    except (ValueError, TypeError, IndexError):
        return "tls.crt and tls.key aren't a certificate and a key without password, both as PEM texts"
    same = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    if certificate.public_key().public_bytes(*same) != key.public_key().public_bytes(*same):
        return "tls.key isn't the key of the certificate in tls.crt"
    return ""


def problem_of_authority(own: Issued, now: datetime) -> str:
    """Why a pair from elsewhere can't sign certificates; empty if it can."""
    if problem := problem_of_pair(own):
        return problem
    certificate = x509.load_pem_x509_certificates(own.certificate)[0]
    if not isinstance(certificate.public_key(), ec.EllipticCurvePublicKey | rsa.RSAPublicKey):
        return "its key has to be of the type EC or RSA"
    try:
        is_authority = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        is_authority = False
    if not is_authority:
        return "the certificate in tls.crt isn't that of an authority (basicConstraints says nothing of CA:TRUE)"
    if now >= certificate.not_valid_after_utc:
        return f"the authority has expired on {certificate.not_valid_after_utc:%Y-%m-%d}"
    if now < certificate.not_valid_before_utc:
        return f"the authority isn't valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
    return ""


def usable(by: Secret, pair: Issued, now: datetime, *, hosts: Sequence[str] = ()) -> bool:
    """Whether the authority has signed the pair, for exactly these hosts, and more than a third of its lifetime is
    left."""
    certificate = signed(by, pair)
    return (
        certificate is not None and sorted(_hosts(certificate)) == sorted(hosts) and not is_due(certificate, now, None)
    )


def signed(by: Secret, pair: Issued) -> x509.Certificate | None:
    """The certificate of a pair; None unless the pair can be read, belongs together, and the authority has signed
    it."""
    try:
        issuer = x509.load_pem_x509_certificate(by["tls.crt"])
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        key = serialization.load_pem_private_key(pair.key, None)
        certificate.verify_directly_issued_by(issuer)
    except (KeyError, ValueError, TypeError, InvalidSignature):
        return None
    return certificate if key.public_key() == certificate.public_key() else None


def hosts_of(certificate: bytes) -> list[str]:
    """The DNS names and IP addresses in a certificate (PEM); empty where it can't be read."""
    try:
        return _hosts(x509.load_pem_x509_certificate(certificate))
    except ValueError:
        return []


def _hosts(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def is_due(certificate: x509.Certificate, now: datetime, ahead_days: int | None) -> bool:
    """Whether a certificate's end is at most so many days away; for None, a third of its lifetime."""
    until = certificate.not_valid_after_utc
    third = (until - certificate.not_valid_before_utc) / 3
    return now >= until - (third if ahead_days is None else timedelta(days=ahead_days))


def decoded(secret: dict[str, object] | None) -> Secret:
    """The decoded data of a Secret that was read from Kubernetes; empty where there is none."""
    data = (secret or {}).get("data") or {}
    assert isinstance(data, dict)
    return {name: base64.b64decode(value) for name, value in data.items()}


def encoded(secret: Secret) -> dict[str, str]:
    """The data of a Secret in base64, as Kubernetes wants them."""
    return {name: base64.b64encode(value).decode() for name, value in secret.items()}


def issued(
    by: Secret,
    name: str,
    now: datetime,
    *,
    hosts: Sequence[str] = (),
    purposes: Sequence[Purpose] = (CLIENT,),
    days: int = PAIR_DAYS,
    organization: str = "",
) -> Issued:
    """A new pair that the authority signs: its subject is CN=`name` (and O=`organization`), its alternative names are
    `hosts`, which are DNS names and IP addresses. It ends with the authority at the latest. An authority that isn't a
    root adds its own certificate."""
    issuer = x509.load_pem_x509_certificate(by["tls.crt"])
    issuer_key = serialization.load_pem_private_key(by["tls.key"], None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(now + timedelta(days=days), issuer.not_valid_after_utc)
    builder = (
        _begun(_named(name, organization), issuer.subject, key, now, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if hosts:
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    chain = b"" if issuer.subject == issuer.issuer else by["tls.crt"]
    return Issued(_pem(builder.sign(issuer_key, hashes.SHA256())) + chain, _key_pem(key))


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - AHEAD)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _named(name: str, organization: str = "") -> x509.Name:
    within = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization)] if organization else []
    return x509.Name([*within, x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _usage(*, key_cert_sign: bool = False, digital_signature: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=key_cert_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
