"""Any input of the parsers of security is read, or refused by the error that the parser names: what other tests of this
folder don't try yet. Strangers send tokens; files, key sets and answers of identity providers come from further away
than they seem."""

from __future__ import annotations

import base64
import json
import re
import tempfile
import warnings
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import NoEncryption, load_pem_private_key, pkcs12
from cryptography.x509 import load_pem_x509_certificates
from hypothesis import given, settings
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from ottla.broker.page_access import _credentials
from ottla.metadata.identities import BY_ACL, BY_ENTITY
from ottla.protocol.sasl import SCRAM_SHA_256, LoggedIn, LoginRefused
from ottla.security.oauthbearer import InvalidToken, OAuthServer
from ottla.security.scram import ScramClient
from ottla.security.signed_tokens import ALGORITHMS, SignedTokens, keys_of
from ottla.security.stores import read_stores
from ottla.security.tls_settings import InvalidTls, client_tls_settings
from ottla.security.token_claims import Expected, encoded
from ottla.security.token_endpoint import TokenRefused, read_answer
from ottla.security.unsecured_tokens import unsecured_check
from tests.peers.certificates import Authority
from tests.unit.examples import examples

TIMES = st.sampled_from([0, -1, 1e12, 10**400, float("nan"), float("inf"), True, "9", None]) | st.integers()
JSON = st.recursive(
    TIMES | st.text(max_size=5) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
CLAIMS = st.dictionaries(st.sampled_from(["sub", "exp", "iat", "nbf", "aud", "iss", "scope"]), JSON | TIMES)


# ---- SCRAM's client


@settings(max_examples=examples(100))
@given(
    st.lists(
        st.binary(max_size=40)
        | st.text("rsivem=,0123456789AZ+/client", max_size=60).map(lambda s: f"r=client{s}".encode()),
        min_size=1,
        max_size=2,
    )
)
def test_any_answers_to_a_client_of_scram(challenges: list[bytes]) -> None:
    client = ScramClient(SCRAM_SHA_256, "alice", "right", "client")
    client.first()
    with suppress(LoginRefused):
        for challenge in challenges:
            assert client.next(challenge) is not None, "nobody proves that it knows the password by chance"


# ---- tokens


def outcome(token: str) -> LoggedIn | bytes:
    server = OAuthServer(unsecured_check({}, lambda: 1_000_000))
    return server.respond(f"n,,\x01auth=Bearer {token}\x01\x01".encode())


@settings(max_examples=examples(100))
@given(st.dictionaries(st.sampled_from(["alg", "typ", "kid"]), JSON), CLAIMS, st.sampled_from(["", "AAAA", "."]))
def test_any_unsecured_token(header: dict[str, Any], claims: dict[str, Any], signature: str) -> None:
    found = outcome(f"{encoded(header)}.{encoded(claims)}.{signature}")
    assert found == b'{"status":"invalid_token"}' or (isinstance(found, LoggedIn) and header.get("alg") == "none")


@settings(max_examples=examples(100))
@given(st.text("ab.-_=AWyJ9", max_size=60))
def test_any_text_for_a_token(token: str) -> None:
    with suppress(LoginRefused):
        assert outcome(token) == b'{"status":"invalid_token"}'


@cache
def public_keys() -> dict[str, dict[str, Any]]:
    """A JSON web key of each kind, by its id."""
    keys: Mapping[str, Any] = {
        "rsa": RSAAlgorithm.to_jwk(rsa.generate_private_key(public_exponent=65537, key_size=2048).public_key()),
        "ec": ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key()),
        "ed": OKPAlgorithm.to_jwk(ed25519.Ed25519PrivateKey.generate().public_key()),
    }
    return {kid: json.loads(text) | {"kid": kid} for kid, text in keys.items()}


@settings(max_examples=examples(100))
@given(
    st.sampled_from(["rsa", "ec", "ed", "absent"]),
    st.sampled_from([*ALGORITHMS, "none", "HS256", "ES256K"]) | JSON,
    CLAIMS,
    st.binary(max_size=256),
)
def test_nobody_signs_a_token_without_the_key(kid: str, alg: Any, claims: dict[str, Any], signature: bytes) -> None:
    keys = keys_of({"keys": list(public_keys().values())})
    check = SignedTokens(SimpleNamespace(of=keys.get, wanted=lambda _: None), Expected())
    pieces = (
        encoded({"alg": alg, "kid": kid}),
        encoded(claims),
        base64.urlsafe_b64encode(signature).decode().rstrip("="),
    )
    with pytest.raises(InvalidToken):
        check(".".join(pieces))


@settings(max_examples=examples(100))
@given(
    st.sampled_from(["rsa", "ec", "ed"]),
    st.dictionaries(st.sampled_from(["kty", "kid", "alg", "use", "crv", "n", "e", "x", "y", "d"]), JSON, max_size=2),
    st.lists(JSON, max_size=2),
)
def test_a_key_that_cant_be_used_leaves_the_others(kid: str, change: dict[str, Any], others: list[Any]) -> None:
    good = public_keys()["ec" if kid == "rsa" else "rsa"]
    keys = keys_of({"keys": [*others, public_keys()[kid] | change, good]})
    assert good["kid"] in keys


@given(JSON)
def test_any_document_is_a_key_set_or_refused(document: Any) -> None:
    with suppress(ValueError):
        assert keys_of(document) == {}


@pytest.mark.parametrize("change", [{"kid": []}, {"kid": {}}, {"alg": "none"}, {"alg": []}, {"crv": []}, {"n": 5}])
def test_keys_that_spoiled_all_others(change: dict[str, Any]) -> None:
    for kid in ("rsa", "ec"):
        assert "ed" in keys_of({"keys": [public_keys()[kid] | change, public_keys()["ed"]]})


# ---- answers of an identity provider


@settings(max_examples=examples(100))
@given(
    st.sampled_from([200, 204, 302, 400, 401, 429, 500]),
    st.binary(max_size=30)
    | JSON.map(lambda document: json.dumps(document).encode())
    | st.dictionaries(st.sampled_from(["access_token", "expires_in", "error"]), JSON | TIMES).map(
        lambda fields: json.dumps(fields).encode()
    ),
)
def test_any_answer_of_a_token_endpoint(status: int, body: bytes) -> None:
    with suppress(TokenRefused):
        fetched = read_answer(status, body, 1_000_000.0)
        assert fetched.token
        assert fetched.expires_s is None or 0 <= fetched.expires_s < 2e12


# ---- stores


@cache
def store_bytes() -> tuple[list[tuple[str, bytes]], bytes]:
    """The blocks of a PEM key store, and a PKCS12 store without a password."""
    with tempfile.TemporaryDirectory() as folder:
        pem = Authority(Path(folder)).issue("key", common_name="broker").read_bytes()
    blocks = re.findall(rb"-----BEGIN ([A-Z ]+)-----\n(.*?)-----END", pem, re.DOTALL)
    own, *others = load_pem_x509_certificates(pem)
    key: Any = load_pem_private_key(pem, None)
    made = pkcs12.serialize_key_and_certificates(b"broker", key, own, others, NoEncryption())
    return [(label.decode(), base64.b64decode(text)) for label, text in blocks], made


def changed(data: st.DataObject, original: bytes) -> bytes:
    result = bytearray(original)
    for _ in range(data.draw(st.integers(0, 3))):
        result[data.draw(st.integers(0, len(result) - 1))] = data.draw(st.integers(0, 255))
    return bytes(result)


def read(path: Path, kind: str) -> None:
    """Reads both stores from one file, and all that is asked of their certificates later."""
    names = ("truststore",) if kind == "PKCS12" else ("keystore", "truststore")
    given = {f"ssl.{name}.{part}": value for name in names for part, value in (("type", kind), ("location", str(path)))}
    with warnings.catch_warnings(), suppress(InvalidTls):
        warnings.simplefilter("ignore")
        stores = read_stores(client_tls_settings(given))
        assert stores.trusted
        for identity in stores.identities:
            assert identity.subject is not None
            assert isinstance(identity.alternative_names, frozenset)
        stores.expired(datetime.now(UTC))


@settings(max_examples=examples(100))
@given(st.data())
def test_changed_certificates_and_keys_in_pem_are_read_or_refused(data: st.DataObject) -> None:
    blocks, _ = store_bytes()
    text = "".join(
        f"-----BEGIN {label}-----\n{base64.b64encode(changed(data, der)).decode()}\n-----END {label}-----\n"
        for label, der in blocks
    )
    path = _written(text.encode())
    try:
        read(path, "PEM")
    finally:
        path.unlink()


@settings(max_examples=examples(100))
@given(st.data())
def test_changed_stores_of_pkcs12_are_read_or_refused(data: st.DataObject) -> None:
    _, store = store_bytes()
    path = _written(data.draw(st.binary(max_size=40)) if data.draw(st.booleans()) else changed(data, store))
    try:
        read(path, "PKCS12")
    finally:
        path.unlink()


def test_a_certificate_of_an_unknown_version_is_refused(tmp_path: Path) -> None:
    blocks, _ = store_bytes()
    version = b"\xa0\x03\x02\x01\x02"  # [0] INTEGER 2
    path = tmp_path / "store.pem"
    path.write_text(
        "".join(
            f"-----BEGIN {label}-----\n{base64.b64encode(der.replace(version, version[:-1] + bytes([99]))).decode()}\n"
            f"-----END {label}-----\n"
            for label, der in blocks
        )
    )
    given = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(path)}
    with pytest.raises(InvalidTls, match="it can't be read"):
        read_stores(client_tls_settings(given))


def _written(content: bytes) -> Path:
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(content)
    return Path(file.name)


# ---- names in keys of the metadata, and the head of a request for a page


@settings(max_examples=examples(100))
@given(st.text("ab/%3Cuser=,:-_2 \0ä", max_size=40))
def test_any_text_for_the_name_of_an_acl_or_of_a_client_with_quotas(text: str) -> None:
    for naming in (BY_ACL, BY_ENTITY):
        with suppress(ValueError):
            assert naming.of(f"x/{naming.text(naming.of(f'x/{text}'))}") == naming.of(f"x/{text}")


@settings(max_examples=examples(100))
@given(st.text(max_size=30) | st.binary(max_size=30).map(lambda given: "Basic " + base64.b64encode(given).decode())
       | st.text(max_size=20).map("Basic {}".format))  # fmt: skip
def test_any_text_for_the_login_of_a_reader_of_pages(authorization: str) -> None:
    request: Any = SimpleNamespace(headers={"authorization": authorization})
    found = _credentials(request)
    assert found is None or all(found)
