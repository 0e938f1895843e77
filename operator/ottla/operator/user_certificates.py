"""Users' certificates, which the Cluster's authority for clients signs, and when they are made anew.

A user's certificate is made anew

- when at most `renewalDays` of it are left, unless a new one wouldn't last longer, because it ends with the authority;
- when another authority has to sign it: an authority that keeps its key when it is renewed has signed it still;
- when its name or `validityDays` changed, and when a person asks for it.

While the authority has expired, nothing is signed, and what is there is kept: users wait for the next authority.
"""

from __future__ import annotations

import secrets
from datetime import datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12

from ottla.operator.certificates import AHEAD, Issued, Secret, issued, signed
from ottla.operator.plan.client_files import CERTIFICATE, KEY
from ottla.operator.spec.user import UserResource

STORE, STORE_PASSWORD = "user.p12", "user.password"
_PARTS = (CERTIFICATE, KEY, STORE, STORE_PASSWORD)
_ROUNDING = timedelta(minutes=1)  # certificates have whole seconds
_WORTH = timedelta(days=1)  # a new certificate has to last that much longer than the one before


class AuthorityUnusable(Exception):
    """The authority can't sign. The text says why, and what happens next."""


class Certified(NamedTuple):
    """A user's part of its Secret: certificate, key, and both as PKCS#12; and until when the certificate is valid."""

    parts: Secret
    until: datetime
    is_new: bool


def certified(resource: UserResource, authority: Secret, found: Secret, now: datetime, *, renew: bool) -> Certified:
    """The certificate in a user's Secret, or a new one. `found`: the Secret's data; `renew`: a person asks for a new
    one. Raises AuthorityUnusable if a new one is needed, and can't be signed."""
    present = signed(authority, Issued(found[CERTIFICATE], found[KEY])) if set(_PARTS) <= found.keys() else None
    signer = _signer(authority)
    is_kept = present is not None and not renew and not _is_outdated(resource, present, signer, now)
    if present is not None and is_kept and now < present.not_valid_after_utc:
        return Certified({part: found[part] for part in _PARTS}, present.not_valid_after_utc, False)
    if now >= signer.not_valid_after_utc:
        raise AuthorityUnusable(
            f"the authority for clients' certificates has expired on {signer.not_valid_after_utc:%Y-%m-%d}: "
            "certificates are made as soon as the Cluster has renewed it"
        )
    pair = issued(authority, resource.name, now, days=resource.validity_days)
    password = secrets.token_urlsafe(24).encode()
    until = x509.load_pem_x509_certificate(pair.certificate).not_valid_after_utc
    parts = (pair.certificate, pair.key, _store(pair, signer, resource.name, password), password)
    return Certified(dict(zip(_PARTS, parts, strict=True)), until, True)


def _is_outdated(resource: UserResource, present: x509.Certificate, signer: x509.Certificate, now: datetime) -> bool:
    begun, until, end = present.not_valid_before_utc + AHEAD, present.not_valid_after_utc, signer.not_valid_after_utc
    wanted = timedelta(days=resource.validity_days)
    if present.subject.rfc4514_string() != resource.certified_name:
        return True
    ends_with_authority = until >= end - _ROUNDING
    if abs(until - begun - wanted) > _ROUNDING and not ends_with_authority:
        return True
    if min(now + wanted, end) < until + _WORTH:
        return False
    return until - now <= timedelta(days=resource.renewal_days)


def _signer(authority: Secret) -> x509.Certificate:
    try:
        serialization.load_pem_private_key(authority["tls.key"], None)
        return x509.load_pem_x509_certificate(authority["tls.crt"])
    except (KeyError, ValueError):
        raise AuthorityUnusable(
            "the Secret of the authority for clients' certificates lacks a usable tls.crt or tls.key: delete it, and "
            "the Cluster makes it anew"
        ) from None


def _store(pair: Issued, signer: x509.Certificate, name: str, password: bytes) -> bytes:
    key = serialization.load_pem_private_key(pair.key, None)
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    encryption = serialization.BestAvailableEncryption(password)
    return pkcs12.serialize_key_and_certificates(name.encode(), key, certificate, [signer], encryption)
