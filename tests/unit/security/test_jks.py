"""Java's old key stores, as keytool of OpenJDK 17 wrote them."""

from __future__ import annotations

import base64
import contextlib
import json
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_der_private_key
from hypothesis import given
from hypothesis import strategies as st

from ottla.security.jks import InvalidJks, read_jks

STORES = {
    name: base64.b64decode(text)
    for name, text in json.loads((Path(__file__).parent / "keytool_stores.json").read_text()).items()
}
SOLO = "p\u00e4ssw\u00f6rd"


def test_a_key_and_its_certificate() -> None:
    (entry,), trusted = read_jks(STORES["one.jks"], "secret")
    assert not trusted
    assert entry.alias == "one"
    certificate = x509.load_der_x509_certificate(entry.chain[0])
    assert load_der_private_key(entry.key, None).public_key() == certificate.public_key()
    assert repr(entry.key) not in repr(entry)


def test_a_key_with_a_password_of_its_own() -> None:
    (entry,), _ = read_jks(STORES["solo.jks"], SOLO, "other6")
    assert load_der_private_key(entry.key, None)
    with pytest.raises(InvalidJks, match="password of a private key"):
        read_jks(STORES["solo.jks"], SOLO)


def test_trusted_certificates_can_be_read_without_a_password() -> None:
    for password in ("secret", None):
        keys, (entry,) = read_jks(STORES["t.jks"], password)
        assert not keys
        assert x509.load_der_x509_certificate(entry.certificate).subject.rfc4514_string() == "CN=one,O=Ottla"


def test_a_wrong_password_is_refused() -> None:
    with pytest.raises(InvalidJks, match="the password is wrong, or the store was changed"):
        read_jks(STORES["t.jks"], "wrong")


def test_keys_need_a_password() -> None:
    with pytest.raises(InvalidJks, match="no password"):
        read_jks(STORES["one.jks"], None)


@given(st.sampled_from(["one.jks", "t.jks"]), st.data())
def test_each_change_is_noticed(name: str, data: st.DataObject) -> None:
    store = bytearray(STORES[name])
    position = data.draw(st.integers(0, len(store) - 1))
    store[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(InvalidJks):
        read_jks(bytes(store), "secret")


@given(st.data())
def test_changed_stores_without_a_password_are_read_or_refused(data: st.DataObject) -> None:
    store = bytearray(STORES["t.jks"])
    for _ in range(data.draw(st.integers(1, 4))):
        store[data.draw(st.integers(0, len(store) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(InvalidJks):
        read_jks(bytes(store[: data.draw(st.integers(0, len(store)))]), None)


@given(st.binary(max_size=100), st.one_of(st.none(), st.text(max_size=8)))
def test_other_bytes_are_refused(data: bytes, password: str | None) -> None:
    with pytest.raises(InvalidJks):
        read_jks(data, password)
