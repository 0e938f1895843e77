"""The text of distinguished names, beside names that OpenJDK 17 wrote (`X500Principal.getName`)."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from ottla.security.der import MalformedDer
from ottla.security.distinguished_names import java_text, subject_name
from tests.peers.certificates import Authority

RECORDED = json.loads((Path(__file__).parent / "java_names.json").read_text())


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["der"][:40])
def test_as_java_writes_it(case: dict[str, str]) -> None:
    assert java_text(bytes.fromhex(case["der"])) == case["text"]


def test_the_most_specific_part_comes_first_and_an_address_is_in_hexadecimal_digits() -> None:
    name = x509.Name(
        [
            x509.NameAttribute(x509.NameOID.COUNTRY_NAME, "DE"),
            x509.NameAttribute(x509.NameOID.EMAIL_ADDRESS, "a@b"),
            x509.NameAttribute(x509.NameOID.COMMON_NAME, "app #1, of two"),
        ]
    )
    assert java_text(name.public_bytes()) == r"CN=app \#1\, of two,1.2.840.113549.1.9.1=#1603614062,C=DE"


def test_the_subject_is_found_in_a_certificate(tmp_path: Path) -> None:
    path = Authority(tmp_path).issue("client", common_name="app")
    certificate = x509.load_pem_x509_certificates(path.read_bytes())[0]
    assert subject_name(certificate.public_bytes(Encoding.DER)) == certificate.subject.public_bytes()


@given(st.binary(max_size=200))
def test_other_bytes_are_malformed(data: bytes) -> None:
    for read in (java_text, subject_name):
        with contextlib.suppress(MalformedDer):
            read(data)


@given(st.sampled_from(RECORDED), st.data())
def test_changed_names_have_a_text_or_are_malformed(case: dict[str, str], data: st.DataObject) -> None:
    name = bytearray.fromhex(case["der"])
    for _ in range(data.draw(st.integers(1, 3))):
        name[data.draw(st.integers(0, len(name) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(MalformedDer):
        assert isinstance(java_text(bytes(name)), str)
