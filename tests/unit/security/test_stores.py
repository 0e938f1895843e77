"""Key stores and trust stores of all types, and contexts that are made of them."""

from __future__ import annotations

import base64
import json
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)

from ottla.security.contexts import client_context, server_context
from ottla.security.stores import Stores, read_stores
from ottla.security.tls_settings import InvalidTls, client_tls_settings
from tests.peers.certificates import Authority

KEYTOOL = json.loads((Path(__file__).parent / "keytool_stores.json").read_text())


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def read(**properties: str) -> Stores:
    return read_stores(client_tls_settings({name.replace("_", "."): value for name, value in properties.items()}))


def pem(path: Path, **others: str) -> Stores:
    return read(ssl_keystore_type="PEM", ssl_keystore_location=str(path), **others)


def parts(path: Path) -> tuple[str, str]:
    """The key and the certificates of a PEM file."""
    text = path.read_text()
    begin = text.index("-----BEGIN CERTIFICATE")
    return text[:begin], text[begin:]


def test_pem_files_and_texts_are_the_same(authority: Authority) -> None:
    path = authority.issue("server")
    key, chain = parts(path)
    by_file = pem(path, ssl_truststore_type="PEM", ssl_truststore_location=str(authority.trust))
    by_text = read(
        ssl_keystore_type="PEM",
        ssl_keystore_key=key,
        ssl_keystore_certificate_chain=" ".join(chain.split("\n")),  # blanks in place of line breaks
        ssl_truststore_type="PEM",
        ssl_truststore_certificates=authority.trust.read_text(),
    )
    assert by_file == by_text
    assert by_file.trusted is not None
    server_context(client_tls_settings({}), by_file, "required")


def test_an_encrypted_key_needs_its_password(authority: Authority) -> None:
    path = authority.issue("encrypted")
    key, chain = parts(path)
    encrypted = load_pem_private_key(key.encode(), None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"geheim")
    )
    clear = pem(path)
    path.write_text(encrypted.decode() + chain)
    assert pem(path, ssl_key_password="geheim") == clear
    for others in ({}, {"ssl_key_password": "wrong"}):
        with pytest.raises(InvalidTls, match=r"^the key store .*encrypted\.pem can't be used: ") as caught:
            pem(path, **others)
        assert "wrong" not in str(caught.value)


def test_pkcs12_has_the_chain_in_its_order(authority: Authority, tmp_path: Path) -> None:
    path = authority.issue("server")
    expected = pem(path)
    key, chain = parts(path)
    certificates = x509.load_pem_x509_certificates(chain.encode())
    root = x509.load_pem_x509_certificates(authority.trust.read_bytes())[0]
    store = tmp_path / "k.p12"
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"a",
            load_pem_private_key(key.encode(), None),  # type: ignore[arg-type]
            certificates[0],
            [root],
            BestAvailableEncryption(b"geheim"),
        )
    )
    for kind in ("PKCS12", "JKS"):  # as in Java, the type of a file is seen in the file
        (found,) = read(
            ssl_keystore_type=kind, ssl_keystore_location=str(store), ssl_keystore_password="geheim"
        ).identities
        assert found.key == expected.identities[0].key
        assert found.chain == (expected.identities[0].chain[0], root.public_bytes(Encoding.DER))
    with pytest.raises(InvalidTls, match="is its type right, and its password"):
        read(ssl_keystore_location=str(store), ssl_keystore_password="falsch")


@pytest.mark.parametrize("name", ["one.jks", "k.p12"])
def test_keytools_key_stores(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(base64.b64decode(KEYTOOL[name]))
    stores = read(ssl_keystore_location=str(path), ssl_keystore_password="secret")
    assert stores.identities[0].subject.rfc4514_string() == "CN=one,O=Ottla"
    server_context(client_tls_settings({}), stores, "none")


@pytest.mark.parametrize("name", ["t.jks", "t.p12"])
def test_keytools_trust_stores(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(base64.b64decode(KEYTOOL[name]))
    stores = read(ssl_truststore_location=str(path), ssl_truststore_password="secret")
    assert stores.trusted is not None
    assert len(stores.trusted) == 1
    assert client_context(client_tls_settings({}), stores).cert_store_stats()["x509"] == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "0 private keys"),
        ("-----BEGIN PRIVATE KEY-----\n!!\n-----END PRIVATE KEY-----", "isn't base64"),
        ("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----", "is its type right"),
        ("-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nAA==\n-----END RSA PRIVATE KEY-----", "PKCS #8"),
    ],
)
def test_a_file_that_is_no_store_is_refused_in_a_sentence(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "store.pem"
    path.write_text(text)
    with pytest.raises(InvalidTls, match=why):
        pem(path)


def test_a_missing_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidTls, match=r"gone\.pem can't be used: No such file"):
        pem(tmp_path / "gone.pem")


def test_a_key_of_another_certificate_is_refused(authority: Authority) -> None:
    one, other = authority.issue("one"), authority.issue("other")
    stores = read(
        ssl_keystore_type="PEM", ssl_keystore_key=parts(one)[0], ssl_keystore_certificate_chain=parts(other)[1]
    )
    with pytest.raises(InvalidTls, match="KEY_VALUES_MISMATCH"):
        server_context(client_tls_settings({}), stores, "none")


def test_versions_and_suites_reach_openssl(authority: Authority) -> None:
    stores = pem(authority.issue("server"))
    older = client_tls_settings({"ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"})
    context = server_context(older, stores, "none")
    assert context.maximum_version == ssl.TLSVersion.TLSv1_2
    assert {each["name"] for each in context.get_ciphers() if each["protocol"] != "TLSv1.3"} == {
        "ECDHE-ECDSA-AES128-GCM-SHA256"
    }
    newer = server_context(client_tls_settings({"ssl.enabled.protocols": "TLSv1.3"}), stores, "none")
    assert newer.minimum_version == ssl.TLSVersion.TLSv1_3
    with pytest.raises(InvalidTls, match="no suite of the versions"):
        server_context(
            client_tls_settings(
                {"ssl.cipher.suites": "TLS_RSA_WITH_AES_128_GCM_SHA256", "ssl.enabled.protocols": "TLSv1.3"}
            ),
            stores,
            "none",
        )
