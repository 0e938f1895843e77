"""OAUTHBEARER: the exchange, unsecured and signed tokens, and the keys that check them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.broker.login.token_keys import TokenKeys
from ottla.protocol.sasl import LoggedIn, LoginRefused, NotYet
from ottla.security.listener_logins import TokenSource
from ottla.security.oauthbearer import Accepted, Check, InvalidToken, OAuthClient, OAuthServer
from ottla.security.signed_tokens import SignedTokens, keys_of
from ottla.security.token_claims import Expected, encoded
from ottla.security.unsecured_tokens import own_token, unsecured_check
from tests.unit.examples import examples
from tests.unit.waiting import until

NOW_S = 1_000_000
RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()


def unsecured(**claims: Any) -> str:
    return f"{encoded({'alg': 'none'})}.{encoded({'sub': 'alice', 'exp': NOW_S + 60} | claims)}."


def check(**options: str) -> Check:
    return unsecured_check(
        {f"unsecuredValidator{name}": value for name, value in options.items()}, lambda: NOW_S * 1000
    )


def test_the_exchange_of_an_accepted_token() -> None:
    server, client = OAuthServer(check()), OAuthClient(unsecured())
    done = server.respond(client.first())
    assert done == LoggedIn("alice", b"", (NOW_S + 60) * 1000)
    assert isinstance(done, LoggedIn)
    assert client.next(done.message) is None


def test_a_refused_token_is_answered_by_json_and_fails_at_the_acknowledgement() -> None:
    server, client = OAuthServer(check()), OAuthClient(unsecured(exp=NOW_S - 1))
    told = server.respond(client.first())
    assert told == b'{"status":"invalid_token"}'
    acknowledged = client.next(told)
    assert acknowledged == b"\x01"
    with pytest.raises(LoginRefused) as error:
        server.respond(acknowledged)
    assert (str(error.value), error.value.why) == ('{"status":"invalid_token"}', "the token has expired")
    again = OAuthServer(check())
    again.respond(OAuthClient(unsecured(exp=1)).first())
    with pytest.raises(LoginRefused, match="invalid credentials"):  # not a second token
        again.respond(client.first())


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,\x01\x01",
        b"n,,auth=Bearer x\x01\x01",
        b"y,,\x01auth=Bearer x\x01\x01",
        b"n,,\x01auth=Basic x\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer x\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
        b"n,a=x=y,\x01auth=Bearer x\x01\x01",
    ],
)
def test_malformed_messages_are_refused(message: bytes) -> None:
    with pytest.raises(LoginRefused, match="invalid credentials with SASL mechanism OAUTHBEARER"):
        OAuthServer(check()).respond(message)


@pytest.mark.parametrize(("authorization", "accepted"), [("", True), ("a=alice", True), ("a=bob", False)])
def test_extensions_are_ignored_and_an_authorization_id_is_the_user(authorization: str, accepted: bool) -> None:
    message = f"n,{authorization},\x01auth=bearer {unsecured()}\x01traceId=1\x01\x01".encode()
    if accepted:
        assert isinstance(OAuthServer(check()).respond(message), LoggedIn)
    else:
        with pytest.raises(LoginRefused, match="different from the token's principal name"):
            OAuthServer(check()).respond(message)


@settings(max_examples=examples(300))
@given(st.binary(max_size=80) | st.text("n,a=\x01uthBer xyz.-_", max_size=80).map(str.encode))
def test_any_message_is_answered_or_refused(message: bytes) -> None:
    try:
        assert OAuthServer(check()).respond(message) == b'{"status":"invalid_token"}'
    except LoginRefused:
        return


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (unsecured(exp=None), "no time in its claim exp"),
        (unsecured(exp=True), "no time in its claim exp"),
        (unsecured(exp=1e300), "no time in its claim exp"),
        (unsecured(exp=NOW_S), "has expired"),
        (unsecured(sub=None), "no claim sub"),
        (unsecured(sub=" "), "no claim sub"),
        (unsecured(iat=NOW_S + 1), "issued in the future"),
        (unsecured(scope=["a", "a"]), "a scope twice"),
        (unsecured(scope=[1]), "isn't a list of scopes"),
        ("a.b", "three parts"),
        ("!.!.", "isn't JSON in base64"),
        (f"{encoded({'alg': 'none'})}.W10.", "isn't a JSON object"),
        (unsecured() + "c2lnbmVk", "isn't an unsecured one"),
        (jwt.encode({"sub": "alice", "exp": NOW_S + 60}, "k" * 32, algorithm="HS256"), "isn't an unsecured one"),
    ],
)
def test_unsecured_tokens_that_are_refused(token: str, why: str) -> None:
    with pytest.raises(InvalidToken, match=why):
        check()(token)


def test_options_of_unsecured_tokens() -> None:
    assert check(PrincipalClaimName="name")(unsecured(name="bob")).user == "bob"
    assert check(AllowableClockSkewMs="2000")(unsecured(exp=NOW_S - 1)).expires_ms == (NOW_S - 1) * 1000
    assert check(RequiredScope="a b")(unsecured(scope="b a c")).user == "alice"
    with pytest.raises(InvalidToken) as error:
        check(RequiredScope="a b")(unsecured(scope="a"))
    assert (error.value.status, error.value.scope) == ("insufficient_scope", "a b")


def test_a_client_makes_the_token_that_its_options_describe() -> None:
    options = {
        "unsecuredLoginStringClaim_sub": "alice",
        "unsecuredLoginLifetimeSeconds": "10",
        "unsecuredLoginListClaim_scope": "|a|b",
    }
    assert check(RequiredScope="a b")(own_token(options, NOW_S)) == Accepted("alice", (NOW_S + 10) * 1000)


# ---- signed tokens


def jwk(key: Any, kid: str | None, **fields: Any) -> dict[str, Any]:
    algorithm = {rsa.RSAPrivateKey: "RS256", ec.EllipticCurvePrivateKey: "ES256"}.get(type(key).__mro__[1], "EdDSA")
    if isinstance(key, rsa.RSAPrivateKey):
        algorithm = "RS256"
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        algorithm = "ES256"
    made: dict[str, Any] = json.loads(jwt.get_algorithm_by_name(algorithm).to_jwk(key.public_key()))
    return made | ({"kid": kid} if kid else {}) | fields


SET = {
    "keys": [
        jwk(RSA, "rsa"),
        jwk(EC, "ec", alg="ES256"),
        jwk(ED, "ed"),
        {"kty": "oct", "k": "c2VjcmV0", "kid": "oct"},
        7,
    ]
}


class Fixed:
    """Keys that are never fetched anew."""

    def __init__(self, document: Any) -> None:
        self._keys = keys_of(document)

    def of(self, key_id: str | None) -> Any:
        return self._keys.get(key_id)

    def wanted(self, key_id: str | None) -> Callable[[], Awaitable[None]] | None:
        return None


def signed(key: Any = RSA, algorithm: str = "RS256", kid: str | None = "rsa", **claims: Any) -> str:
    import time

    now = int(time.time())
    content = {"sub": "alice", "iat": now, "exp": now + 86_400} | claims
    return jwt.encode(
        {name: value for name, value in content.items() if value is not None},
        key,
        algorithm=algorithm,
        headers={"kid": kid} if kid else None,
    )


@pytest.mark.parametrize(
    ("key", "algorithm", "kid"),
    [(RSA, "RS256", "rsa"), (RSA, "PS512", "rsa"), (EC, "ES256", "ec"), (ED, "EdDSA", "ed")],
)
def test_signed_tokens_are_accepted(key: Any, algorithm: str, kid: str) -> None:
    accepted = SignedTokens(Fixed(SET), Expected())(signed(key, algorithm, kid))
    assert accepted.user == "alice"


EXPECTED = Expected(("brokers", "others"), "https://issuer", 30, "sub", "scp")


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (signed(OTHER, aud="brokers", iss="https://issuer"), "InvalidSignature"),
        (signed(aud="brokers", iss="https://issuer", exp=1), "Expired"),
        (signed(aud="brokers", iss="https://issuer", exp=None), "MissingRequiredClaim"),
        (signed(aud="brokers", iss="https://issuer", iat=None), "MissingRequiredClaim"),
        (signed(aud="brokers", iss="https://issuer", iat=2**33), "ImmatureSignature"),
        (signed(aud="brokers", iss="https://issuer", nbf=2**33), "ImmatureSignature"),
        (signed(aud="nobody", iss="https://issuer"), "InvalidAudience"),
        (signed(iss="https://issuer"), "MissingRequiredClaim"),
        (signed(aud="brokers", iss="https://other"), "InvalidIssuer"),
        (signed(aud="brokers", iss="https://issuer", sub=None), "no claim sub"),
        (signed(aud="brokers", iss="https://issuer", scp=["a", "a"]), "a scope twice"),
        (signed("k" * 32, "HS256", "oct"), "isn't signed by an algorithm with public keys"),
        (unsecured(), "isn't signed by an algorithm with public keys"),
        (signed(EC, "ES256", "rsa"), "the token is refused"),
        (signed(kid="unknown"), "a key that isn't known"),
        (signed(kid=None), "a key that isn't known"),
        ("x" * 70000, "three parts"),
    ],
)
def test_signed_tokens_that_are_refused(token: str, why: str) -> None:
    with pytest.raises(InvalidToken, match=why):
        SignedTokens(Fixed(SET), EXPECTED)(token)


def test_the_public_key_is_no_secret_of_a_keyed_hash() -> None:
    header = encoded({"alg": "HS256", "kid": "rsa"})
    forged = f"{header}.{encoded({'sub': 'alice', 'iat': 1, 'exp': 2**33})}.c2lnbmVk"
    with pytest.raises(InvalidToken, match="public keys"):
        SignedTokens(Fixed(SET), Expected())(forged)


def test_what_isnt_a_key_set_is_refused() -> None:
    for document in ([], {}, {"keys": 1}, "x"):
        with pytest.raises(ValueError, match="key set"):
            keys_of(document)
    assert set(keys_of(SET)) == {"rsa", "ec", "ed"}
    assert (
        keys_of({"keys": [{"kty": "RSA"}, {"kty": "??"}, jwk(RSA, "e", use="enc"), jwk(RSA, "h", alg="HS256")]}) == {}
    )


# ---- fetching the keys


@contextmanager
def provider() -> Iterator[tuple[str, list[Any], list[str]]]:
    """(the URL of an identity provider, the document that it gives out (the last one), the requests that came)."""
    documents: list[Any] = [SET]
    requests: list[str] = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            body = json.dumps(documents[-1]).encode()
            self.send_response(200 if documents[-1] is not None else 503)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/keys", documents, requests
    finally:
        server.shutdown()
        server.server_close()


def source(url: str, refresh_s: float = 1000.0, backoff_max_s: float = 1000.0) -> TokenSource:
    return TokenSource(url, refresh_s, 0.01, backoff_max_s)


def test_keys_are_fetched_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [jwk(RSA, None)]}))

    async def main() -> None:
        keys = TokenKeys(source(f"file://{tmp_path}/keys.json"))
        await keys.fetch()
        assert SignedTokens(keys, Expected())(signed(kid=None)).user == "alice"

    asyncio.run(main())


def test_an_unknown_key_is_fetched_once_and_logins_at_the_same_time_share_it() -> None:
    async def main() -> None:
        with provider() as (url, documents, requests):
            keys = TokenKeys(source(url))
            documents[:] = [{"keys": []}]
            await keys.fetch()
            documents.append(SET)
            checks = [SignedTokens(keys, Expected()) for _ in range(5)]
            waits = []
            for each in checks:
                with pytest.raises(NotYet) as wait:
                    each(signed())
                waits.append(wait.value.until())
            await asyncio.gather(*waits)
            assert [each(signed()).user for each in checks] == ["alice"] * 5
            assert len(requests) == 2
            for _ in range(20):  # an attacker's tokens make the broker ask nobody
                with pytest.raises(InvalidToken, match="isn't known"):
                    SignedTokens(keys, Expected())(signed(kid="unknown"))
            assert len(requests) == 2

    asyncio.run(main())


def test_keys_stay_when_the_provider_fails_and_are_fetched_again_after_a_pause() -> None:
    async def main() -> None:
        with provider() as (url, documents, requests):
            keys = TokenKeys(source(url, refresh_s=0.02, backoff_max_s=0.05))
            task = asyncio.ensure_future(keys.run())
            async with asyncio.timeout(20):
                await until(lambda: len(requests) >= 2)
                documents.append(None)
                seen = len(requests)
                await until(lambda: len(requests) >= seen + 3)
                assert keys.of("rsa") is not None
                documents.append({"keys": [jwk(OTHER, "new")]})
                await until(lambda: keys.of("new") is not None)
                assert keys.of("rsa") is None
            task.cancel()

    asyncio.run(main())
