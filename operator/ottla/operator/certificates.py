"""Certificates for an etcd that the operator runs: a certificate authority, a pair for members, a pair for clients.

A pair is a certificate and its key. There are two Secrets: one with the authority's key, which no pod mounts, and one
with the pairs and the trusted certificates. A pair is renewed when a third of its lifetime is left. etcd reads a new
pair by itself; brokers are restarted for it, one after the other.

The authority is renewed when a third of its lifetime is left, in steps each of which waits for the one before:

1. The operator makes a successor, whose certificate is added to the trusted certificates. Members and brokers read at
   their start which authorities they trust, so all are restarted, one after the other.
2. Once all pods trust the successor, it signs new pairs, and the key of its predecessor is dropped. The predecessor's
   certificate is still trusted, because the old pairs are in use until all pods were restarted for the new ones.
3. The predecessor stays trusted until there is another successor, because to stop trusting it would cost another round
   of restarts.
"""

from __future__ import annotations

import base64
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650
PAIR_DAYS = 730
AHEAD = timedelta(hours=1)  # certificates are valid from so long ago, because clocks differ
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
_PARTS = ("server.crt", "server.key", "client.crt", "client.key")

Secret = dict[str, bytes]


class Issued(NamedTuple):
    """A certificate and its private key, as PEM texts."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True)
class Identity:
    """What a client of etcd needs for TLS: PEM texts, and the DNS name in the certificate of its members."""

    authority: bytes
    certificate: bytes
    key: bytes
    server_name: str

    def context(self) -> ssl.SSLContext:
        """The TLS context for aiohttp. Python reads a pair only from a file, so for a moment the pair is in a file."""
        context = ssl.create_default_context(cadata=self.authority.decode())
        with tempfile.TemporaryDirectory() as folder:
            pair = Path(folder) / "pair.pem"
            pair.touch(0o600)
            pair.write_bytes(self.certificate + self.key)
            context.load_cert_chain(pair)
        return context


def authority(name: str, now: datetime) -> Secret:
    """The data of a new authority: tls.crt and tls.key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _named(f"{name[:40]} authority {now:%Y-%m-%d}")
    certificate = (
        _begun(subject, subject, key, now, now + timedelta(days=AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return {"tls.crt": _pem(certificate), "tls.key": _key_pem(key)}


def tended(by: Secret, name: str, now: datetime, *, known: bool) -> Secret:
    """The authority's data after the step that is due now; the same data where no step is due.

    `known`: whether all pods trust all certificates in these data.
    """
    try:
        certificate = x509.load_pem_x509_certificate(by["tls.crt"])
        serialization.load_pem_private_key(by["tls.key"], None)
    except (KeyError, ValueError):
        return authority(name, now)
    over = now >= certificate.not_valid_after_utc
    if "next.crt" in by:
        if not known and not over:
            return by
        return {"tls.crt": by["next.crt"], "tls.key": by["next.key"], "before.crt": by["tls.crt"]}
    if over:
        return authority(name, now)
    if not _due(certificate, now):
        return by
    successor = authority(name, now)
    present = {part: by[part] for part in ("tls.crt", "tls.key")}
    return {**present, "next.crt": successor["tls.crt"], "next.key": successor["tls.key"]}


def trusted(by: Secret) -> bytes:
    """The certificates of the authority, its successor and its predecessor.

    They are sorted, so that the text doesn't change when the successor becomes the authority.
    """
    return b"".join(sorted(by[part] for part in ("tls.crt", "next.crt", "before.crt") if part in by))


def pairs(by: Secret, found: Secret, name: str, hosts: list[str], now: datetime) -> Secret:
    """The data that pods mount: the pairs of members and clients, and the trusted certificates.

    The pairs that were `found` are kept if they are still usable; otherwise both are made anew.
    """
    kept = {part: found[part] for part in _PARTS} if _usable(by, found, hosts, now) else None
    if kept is None:
        # The server's pair is for clients, too: etcd's JSON gateway connects to etcd's own server with it.
        both = issued(by, f"{name} member", now, hosts=hosts, purposes=(CLIENT, SERVER))
        client = issued(by, f"{name} client", now)
        kept = dict(zip(_PARTS, (both.certificate, both.key, client.certificate, client.key), strict=True))
    return {"ca.crt": trusted(by), **kept}


def _usable(by: Secret, found: Secret, hosts: list[str], now: datetime) -> bool:
    """Whether both pairs are usable, the server's for these hosts."""
    return all(
        usable(by, Issued(found.get(f"{kind}.crt", b""), found.get(f"{kind}.key", b"")), now, hosts=names)
        for kind, names in (("server", hosts), ("client", []))
    )


def usable(by: Secret, pair: Issued, now: datetime, *, hosts: Sequence[str] = ()) -> bool:
    """Whether the authority has signed the pair, for exactly these hosts, and more than a third of its lifetime is
    left."""
    try:
        issuer = x509.load_pem_x509_certificate(by["tls.crt"])
        certificate = x509.load_pem_x509_certificate(pair.certificate)
        serialization.load_pem_private_key(pair.key, None)
        certificate.verify_directly_issued_by(issuer)
        return sorted(_hosts(certificate)) == sorted(hosts) and not _due(certificate, now)
    except (KeyError, ValueError, InvalidSignature):
        return False


def _hosts(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(x509.DNSName)


def _due(certificate: x509.Certificate, now: datetime) -> bool:
    """Whether at most a third of a certificate's lifetime is left."""
    until = certificate.not_valid_after_utc
    return now >= until - (until - certificate.not_valid_before_utc) / 3


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
    purposes: Sequence[x509.ObjectIdentifier] = (CLIENT,),
    days: int = PAIR_DAYS,
) -> Issued:
    """A new pair that the authority signs: its subject is CN=`name`, its DNS names are `hosts`. It ends with the
    authority at the latest."""
    issuer = x509.load_pem_x509_certificate(by["tls.crt"])
    issuer_key = serialization.load_pem_private_key(by["tls.key"], None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(now + timedelta(days=days), issuer.not_valid_after_utc)
    builder = (
        _begun(_named(name), issuer.subject, key, now, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if hosts:
        names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    return Issued(_pem(builder.sign(issuer_key, hashes.SHA256())), _key_pem(key))


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


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


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
