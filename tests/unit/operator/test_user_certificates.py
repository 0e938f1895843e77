"""Users' certificates: what is issued, and when it is made anew."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import pkcs12

from ottla.operator import certificates
from ottla.operator.objects import Ref
from ottla.operator.spec.user import Login, UserResource
from ottla.operator.user_certificates import AuthorityUnusable, Certified, certified

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
USER = UserResource(Ref("shop", "a"), "u-1", "2026-01-01T00:00:00Z", 1, Ref("shop", "main"), "a", Login.TLS)
AUTHORITY = certificates.authority("main clients", NOON)
END = x509.load_pem_x509_certificate(AUTHORITY["tls.crt"]).not_valid_after_utc
FIRST = certified(USER, AUTHORITY, {}, NOON, renew=False)


def again(
    user: UserResource = USER,
    *,
    days: float = 0.0,
    authority: certificates.Secret = AUTHORITY,
    first: Certified = FIRST,
) -> Certified:
    """The certificate after so many days, if the first one stands in the Secret."""
    return certified(user, authority, first.parts, NOON + timedelta(days=days), renew=False)


def test_a_certificate_names_the_user_and_the_store_has_the_same() -> None:
    certificate = x509.load_pem_x509_certificate(FIRST.parts["user.crt"])
    assert certificate.subject.rfc4514_string() == "CN=a"
    assert certificate.not_valid_after_utc == FIRST.until == NOON + timedelta(days=365)
    key, stored, chain = pkcs12.load_key_and_certificates(FIRST.parts["user.p12"], FIRST.parts["user.password"])
    assert key is not None
    assert stored == certificate
    assert chain == [x509.load_pem_x509_certificate(AUTHORITY["tls.crt"])]


def test_it_is_kept_until_renewal_days_are_left() -> None:
    assert not again(days=334.9).is_new
    assert again(days=334.9).parts == FIRST.parts
    assert again(days=335.1).is_new
    assert again(replace(USER, renewal_days=100), days=265.1).is_new


def test_another_validity_name_or_authority_makes_a_new_one() -> None:
    assert again(replace(USER, validity_days=100)).is_new
    assert again(replace(USER, validity_days=1000)).is_new
    assert again(replace(USER, name="b")).is_new
    assert again(authority=certificates.authority("main clients", NOON)).is_new


def test_what_is_broken_is_made_anew() -> None:
    for part in FIRST.parts:
        assert certified(USER, AUTHORITY, {**FIRST.parts, "user.crt": b"x"}, NOON, renew=False).is_new
        less = {name: content for name, content in FIRST.parts.items() if name != part}
        assert certified(USER, AUTHORITY, less, NOON, renew=False).is_new
    other = certified(USER, AUTHORITY, {}, NOON, renew=False).parts["user.key"]
    assert certified(USER, AUTHORITY, {**FIRST.parts, "user.key": other}, NOON, renew=False).is_new, "not its key"


def test_a_person_gets_a_new_one_at_any_time() -> None:
    assert certified(USER, AUTHORITY, FIRST.parts, NOON, renew=True).is_new


def test_at_the_end_of_the_authority_certificates_end_with_it_and_are_not_made_over_and_over() -> None:
    late = END - timedelta(days=20)
    made = certified(USER, AUTHORITY, {}, late, renew=False)
    assert made.until == END
    for days in range(20):
        assert not certified(USER, AUTHORITY, made.parts, late + timedelta(days=days), renew=False).is_new


def test_an_expired_authority_signs_nothing_and_says_so() -> None:
    with pytest.raises(AuthorityUnusable, match=f"has expired on {END:%Y-%m-%d}"):
        certified(USER, AUTHORITY, {}, END + timedelta(days=1), renew=False)
    made = certified(USER, AUTHORITY, {}, END - timedelta(days=20), renew=False)
    with pytest.raises(AuthorityUnusable, match="has expired"):
        certified(USER, AUTHORITY, made.parts, END + timedelta(days=1), renew=False)


@pytest.mark.parametrize("authority", [{}, {"tls.crt": b"x", "tls.key": b"y"}, {"tls.crt": AUTHORITY["tls.crt"]}])
def test_a_damaged_authority_is_told(authority: certificates.Secret) -> None:
    with pytest.raises(AuthorityUnusable, match="lacks a usable"):
        certified(USER, authority, {}, NOON, renew=False)
