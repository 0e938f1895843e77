"""SCRAM: RFC vectors, both sides together, what is refused, and what an unknown user is told."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.sasl import SCRAM_SHA_256, SCRAM_SHA_512, LoggedIn, LoginRefused
from ottla.security.scram import (
    HASHES,
    Known,
    LookUp,
    MadeUp,
    ScramClient,
    ScramCredential,
    ScramServer,
    credential_of,
    salted_password,
)
from tests.unit.examples import examples

NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=20)
MECHANISMS = pytest.mark.parametrize("mechanism", HASHES)
KEY = b"known to brokers alone"


def credential(mechanism: str, password: str, salt: bytes = b"salt", iterations: int = 4096) -> ScramCredential:
    return credential_of(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)


def users(**by_name: ScramCredential) -> LookUp:
    return lambda name, by_token: None if by_token or name not in by_name else Known(name, by_name[name])


def server(mechanism: str, look_up: LookUp, nonce: str = "server", made_up: MadeUp | None = None) -> ScramServer:
    return ScramServer(mechanism, look_up, made_up or MadeUp(mechanism, KEY, []), nonce)


def logged_in(client: ScramClient, serving: ScramServer) -> LoggedIn:
    challenge = serving.respond(client.first())
    assert isinstance(challenge, bytes)
    proof = client.next(challenge)
    assert proof is not None
    done = serving.respond(proof)
    assert isinstance(done, LoggedIn)
    assert client.next(done.message) is None
    return done


def test_the_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    serving = server(
        SCRAM_SHA_256, users(user=credential(SCRAM_SHA_256, "pencil", salt)), "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    client = ScramClient(SCRAM_SHA_256, "user", "pencil", "rOprNGfwEbeRWgbNEkqO")
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = serving.respond(client.first())
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert challenge == f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
    proof = client.next(challenge)
    assert proof == f"c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
    done = serving.respond(proof)
    assert done == LoggedIn("user", b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@MECHANISMS
@settings(max_examples=examples(50), deadline=None)
@given(NAMES, st.text(st.characters(exclude_categories=("Cs",)), max_size=20), st.binary(min_size=1, max_size=40))
def test_both_sides_agree_on_any_name_and_password(mechanism: str, name: str, password: str, salt: bytes) -> None:
    known = Known(name, credential(mechanism, password, salt))
    serving = server(mechanism, lambda asked, _: known if asked == name else None)
    assert logged_in(ScramClient(mechanism, name, password, "client"), serving).user == name


def refused(mechanism: str, look_up: LookUp, user: str, password: str) -> tuple[str, LoginRefused]:
    """(the server's first message, the refusal of the second one)."""
    client, serving = ScramClient(mechanism, user, password, "client"), server(mechanism, look_up)
    challenge = serving.respond(client.first())
    assert isinstance(challenge, bytes)
    proof = client.next(challenge)
    assert proof is not None
    with pytest.raises(LoginRefused) as error:
        serving.respond(proof)
    return challenge.decode(), error.value


@MECHANISMS
def test_an_unknown_user_is_told_the_same_as_a_user_with_a_wrong_password(mechanism: str) -> None:
    look_up = users(alice=credential(mechanism, "right"))
    first, wrong = refused(mechanism, look_up, "alice", "wrong")
    other, unknown = refused(mechanism, look_up, "nobody", "wrong")
    assert str(wrong) == str(unknown)
    assert (wrong.why, unknown.why) == ("wrong password", "unknown user")
    form = re.compile(r"r=clientserver,s=[A-Za-z0-9+/]+=*,i=4096")
    assert form.fullmatch(first)
    assert form.fullmatch(other)


@MECHANISMS
def test_a_made_up_credential_is_always_the_same_and_looks_like_the_others(mechanism: str) -> None:
    real = [credential(mechanism, "a", bytes(range(24)), 8192), credential(mechanism, "b", bytes(range(1, 25)), 8192)]
    made = MadeUp(mechanism, KEY, real).credential("nobody")
    assert made == MadeUp(mechanism, KEY, reversed(real)).credential("nobody")
    assert (len(made.salt), made.iterations, len(made.stored_key)) == (24, 8192, len(real[0].stored_key))
    assert made.salt != MadeUp(mechanism, KEY, real).credential("somebody").salt
    assert made.salt != MadeUp(mechanism, b"other", real).credential("nobody").salt
    kafkas = MadeUp(mechanism, KEY, [credential(mechanism, "a", b"1k3x5vvczq0u4y9h6p2dmbg7wt", 4096)])
    assert re.fullmatch(rb"[0-9a-z]{26}", kafkas.credential("nobody").salt)


def test_nobody_logs_in_with_a_made_up_credential() -> None:
    made_up = MadeUp(SCRAM_SHA_256, KEY, [])
    keys = made_up.credential("nobody")
    serving = server(SCRAM_SHA_256, users(), made_up=made_up)
    first = serving.respond(b"n,,n=nobody,r=client")
    assert isinstance(first, bytes)

    # A client that knows the made-up stored key still can't find a client key, so the proof is any text.
    with pytest.raises(LoginRefused):
        serving.respond(b"c=biws,r=clientserver,p=" + base64.b64encode(keys.stored_key))


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"y,,n=alice,r=client",
        b"p=tls-unique,,n=alice,r=client",
        b"n,,n=alice",
        b"n,,n=,r=client",
        b"n,,n=al=ice,r=client",
        b"n,,r=client,n=alice",
        b"n,,n=alice,r=cl ient",
        b"n,,n=alice,r=client,1=x",
        b"n,,n=al\0ice,r=client",
        b"\xff\xfe",
        b"n,alice,n=alice,r=client",
    ],
)
def test_malformed_first_messages_are_refused(message: bytes) -> None:
    serving = server(SCRAM_SHA_256, users(alice=credential(SCRAM_SHA_256, "right")))
    with pytest.raises(LoginRefused, match="invalid credentials with SASL mechanism SCRAM-SHA-256"):
        serving.respond(message)


@settings(max_examples=examples(300))
@given(st.lists(st.binary(max_size=60) | st.text("nracpv=,biws0+/ alice\0", max_size=60).map(str.encode), max_size=3))
def test_any_messages_are_answered_or_refused(messages: list[bytes]) -> None:
    serving = server(SCRAM_SHA_256, users(alice=credential(SCRAM_SHA_256, "right")))
    for message in messages:
        try:
            assert isinstance(serving.respond(message), bytes)
        except LoginRefused:
            return


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"c=biws", b"c=eSws"),  # "y,,"
        (b"r=client", b"r=other"),
        (b",p=", b",x=y,p="),
        (b",p=", b",p=AAAA"),
        (b"c=biws,", b""),
    ],
)
def test_a_changed_final_message_is_refused(old: bytes, new: bytes) -> None:
    client = ScramClient(SCRAM_SHA_256, "alice", "right", "client")
    serving = server(SCRAM_SHA_256, users(alice=credential(SCRAM_SHA_256, "right")))
    challenge = serving.respond(client.first())
    assert isinstance(challenge, bytes)
    proof = client.next(challenge)
    assert proof is not None
    assert old in proof
    with pytest.raises(LoginRefused):
        serving.respond(proof.replace(old, new))


@pytest.mark.parametrize(("authorization", "accepted"), [("", True), ("alice", True), ("bob", False)])
def test_an_authorization_id_must_be_the_users_name(authorization: str, accepted: bool) -> None:
    client = ScramClient(SCRAM_SHA_256, "alice", "right", "client")
    serving = server(SCRAM_SHA_256, users(alice=credential(SCRAM_SHA_256, "right")))
    start = f"n,a={authorization}," if authorization else "n,,"
    challenge = serving.respond(client.first().replace(b"n,,", start.encode(), 1))
    assert isinstance(challenge, bytes)
    proof = client.next(challenge)
    assert proof is not None
    if accepted:
        assert isinstance(serving.respond(proof), LoggedIn)
    else:
        with pytest.raises(LoginRefused, match="authorization id that is different from username"):
            serving.respond(proof)


def test_a_delegation_token_logs_its_owner_in_until_it_expires() -> None:
    known = Known("owner", credential(SCRAM_SHA_512, "hmac"), 1234)
    serving = server(SCRAM_SHA_512, lambda name, by_token: known if by_token and name == "token-id" else None)
    done = logged_in(ScramClient(SCRAM_SHA_512, "token-id", "hmac", "client", by_token=True), serving)
    assert (done.user, done.expires_ms, done.by_token) == ("owner", 1234, True)


@pytest.mark.parametrize(
    "challenge",
    [
        b"r=other,s=c2FsdA==,i=4096",
        b"r=client,s=c2FsdA==,i=4096",
        b"r=clientserver,s=c2FsdA==,i=1",
        b"r=clientserver,s=c2FsdA==,i=999999999",
        b"e=unknown-user",
        b"junk",
    ],
)
def test_a_client_refuses_a_server_that_doesnt_keep_to_the_rules(challenge: bytes) -> None:
    client = ScramClient(SCRAM_SHA_256, "alice", "right", "client")
    client.first()
    with pytest.raises(LoginRefused):
        client.next(challenge)


@pytest.mark.parametrize("final", [b"v=AAAA", b"e=invalid-proof", b"", b"v=!!"])
def test_a_client_refuses_a_server_that_doesnt_know_the_password(final: bytes) -> None:
    client = ScramClient(SCRAM_SHA_256, "alice", "right", "client")
    client.first()
    client.next(b"r=clientserver,s=c2FsdA==,i=4096")
    with pytest.raises(LoginRefused):
        client.next(final)


def test_credentials_print_no_keys() -> None:
    made: Any = credential(SCRAM_SHA_256, "right", b"the-salt")
    assert repr(made) == "ScramCredential(iterations=4096)"
