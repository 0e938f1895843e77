"""The steps by which a certificate authority follows another one, so that nobody is refused meanwhile.

An authority is renewed when a third of its lifetime is left, or a time before its end that the spec says, in steps each
of which waits for the one before:

1. The operator makes a successor, whose certificate is added to the trusted certificates.
2. Once all pods trust the successor, it signs new pairs, and the key of its predecessor is dropped. The predecessor's
   certificate is still trusted, because old pairs are in use for a while.
3. Predecessors are trusted until their time is over, or until they are forgotten (`without_predecessor`). Another
   renewal doesn't change that.

etcd's members, and brokers towards etcd, read at their start which authorities they trust, so they are restarted for
the first step; etcd reads a new pair by itself. Brokers' listeners read both while they run.

The data of an authority's Secret: tls.crt and tls.key of the authority that signs, next.crt and next.key of its
successor, before.crt of its predecessors, and ca.crt, the root of an authority from elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives import serialization

from ottla.operator.certificates import (
    AUTHORITY_DAYS,
    Issued,
    Secret,
    authority,
    each_in,
    expires_at,
    is_due,
    joined,
    problem_of_pair,
)


def tended(
    by: Secret,
    name: str,
    now: datetime,
    *,
    known: bool,
    days: int = AUTHORITY_DAYS,
    ahead_days: int | None = None,
    asked: bool = False,
) -> Secret:
    """The authority's data after the step that is due now; the same data where no step is due.

    `known`: whether everybody who has to trusts all certificates in these data; `days`: the lifetime of a new
    authority; `ahead_days`: how long before its end an authority gets a successor (None: a third of its lifetime);
    `asked`: a person asks for a successor now.
    """
    if "next.crt" in by and now >= expires_at(by["next.crt"]):
        by = {part: content for part, content in by.items() if not part.startswith("next.")}
    if not signs(by) and "next.crt" in by:
        before = _before((by.get("before.crt", b""), by.get("tls.crt", b"")), now)
        return successor(by) | before if known or not before else by
    try:
        certificate = x509.load_pem_x509_certificate(by["tls.crt"])
        serialization.load_pem_private_key(by["tls.key"], None)
    except (KeyError, ValueError):
        return authority(name, now, days)
    over = now >= certificate.not_valid_after_utc
    if "next.crt" in by:
        if not known and not over:
            return by
        return successor(by) | _before((by["tls.crt"], by.get("before.crt", b"")), now)
    if over:
        return authority(name, now, days)
    if not asked and not is_due(certificate, now, ahead_days):
        return by
    kept = {part: by[part] for part in ("tls.crt", "tls.key")} | _before((by.get("before.crt", b""),), now)
    return kept | _next(authority(name, now, days))


def lost(trust: bytes, name: str, now: datetime, days: int) -> Secret:
    """The data of an authority whose Secret is lost: nothing signs, until everybody trusts the successor beside the
    certificates that are trusted now (PEM). If all of these are over, the new authority signs at once."""
    return following(authority(name, now, days), trust, now)


def following(own: Secret, trust: bytes, now: datetime) -> Secret:
    """The data of an authority that is to follow the others whose certificates are trusted now (PEM): nothing signs,
    until everybody trusts it, too. It signs at once if there are no others, or all of them are over."""
    new: Secret = {part: own[part] for part in ("tls.crt", "tls.key", "ca.crt") if part in own}
    before = _before([joined(set(each_in([trust])) - set(each_in(new.values())))], now)
    if not before:
        return new
    root = {part: own[part] for part in ("ca.crt",) if part in own}
    return before | root | _next(new)


def is_damaged(by: Secret) -> bool:
    """Whether the authority that signs, or the one that is to sign, can't be read."""
    which = "tls" if signs(by) or "next.crt" not in by else "next"
    return bool(problem_of_pair(Issued(by.get(f"{which}.crt", b""), by.get(f"{which}.key", b""))))


def signs(by: Secret) -> bool:
    """Whether there is an authority that can sign now."""
    return "tls.key" in by


def _before(texts: Iterable[bytes], now: datetime) -> Secret:
    """The part with the certificates of predecessors that aren't over yet; nothing where there are none."""
    lasting = joined(each for each in each_in(texts) if now < expires_at(each))
    return {"before.crt": lasting} if lasting else {}


def _next(by: Secret) -> Secret:
    return {"next.crt": by["tls.crt"], "next.key": by["tls.key"]}


def without_predecessor(by: Secret) -> Secret:
    """The authority's data without its predecessors, which aren't trusted any more."""
    return {part: content for part, content in by.items() if part != "before.crt"}


def successor(by: Secret) -> Secret:
    """The authority that is to sign next, as an authority that signs now. There has to be one."""
    root = {part: by[part] for part in ("ca.crt",) if part in by}
    return {"tls.crt": by["next.crt"], "tls.key": by["next.key"]} | root


def trusted(by: Secret) -> bytes:
    """The certificates of the authority, its successor and its predecessors, and the root of an authority from
    elsewhere."""
    return joined(by[part] for part in ("tls.crt", "next.crt", "before.crt", "ca.crt") if part in by)
