"""Delegation tokens: who may make, renew, end and see them, and logins by them."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest

from ottla.broker.login.tokens import (
    Asking,
    TokenSettings,
    check_allowed,
    created,
    expired,
    found,
    hmac_of,
    renewed,
    shown_to,
)
from ottla.metadata.model.users import Token
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.sasl import SCRAM_SHA_256, SCRAM_SHA_512, LoggedIn, LoginRefused
from ottla.security.client_login import ClientLogin
from ottla.security.scram import Known, MadeUp, ScramCredential, ScramServer

SETTINGS = TokenSettings("the-key", 7000, 1000)
ALICE = Asking("User:alice", "SASL_PLAINTEXT", by_token=False)


def nobody(_: object) -> bool:
    """No right to others' tokens."""
    return False


def token(**changes: Any) -> Token:
    made = created(SETTINGS, ALICE, "User:alice", [("User", "renewer")], 0, 100_000, "id", b"salt", nobody)
    return replace(made, **changes)


def refused(code: ErrorCode, call: Any, *arguments: Any) -> None:
    with pytest.raises(KafkaError) as error:
        call(*arguments)
    assert error.value.code is code


@pytest.mark.parametrize(
    ("asking", "code"),
    [
        (Asking("User:ANONYMOUS", "PLAINTEXT", False), ErrorCode.delegation_token_request_not_allowed),
        (Asking("User:ANONYMOUS", "SSL", False), ErrorCode.delegation_token_request_not_allowed),
        (Asking("User:alice", "SASL_SSL", True), ErrorCode.delegation_token_request_not_allowed),
    ],
)
def test_who_may_ask_about_tokens(asking: Asking, code: ErrorCode) -> None:
    refused(code, check_allowed, SETTINGS, asking)
    check_allowed(SETTINGS, ALICE)
    check_allowed(SETTINGS, Asking("User:CN=x", "SSL", False))
    refused(ErrorCode.delegation_token_auth_disabled, check_allowed, TokenSettings("", 1, 1), ALICE)


def test_times_of_a_new_token() -> None:
    assert (token().issued_ms, token().expiry_ms, token().max_ms) == (100_000, 101_000, 107_000)
    for life_ms, times in ((500, (100_500, 100_500)), (3000, (101_000, 103_000)), (9000, (101_000, 107_000))):
        made = created(SETTINGS, ALICE, "User:alice", [], life_ms, 100_000, "id", b"salt", nobody)
        assert (made.expiry_ms, made.max_ms) == times


def test_renewers_are_users_and_the_owner_is_the_client() -> None:
    arguments = ([("Group", "g")], 0, 1, "id", b"salt", nobody)
    refused(ErrorCode.invalid_principal_type, created, SETTINGS, ALICE, "User:alice", *arguments)
    refused(ErrorCode.delegation_token_authorization_failed, created, SETTINGS, ALICE, "User:bob", *arguments)


@pytest.mark.parametrize("who", ["User:alice", "User:renewer"])
def test_the_owner_and_renewers_renew_and_end_a_token(who: str) -> None:
    assert renewed(SETTINGS, token(), who, 0, 100_500).expiry_ms == 101_500
    assert renewed(SETTINGS, token(), who, 200, 100_500).expiry_ms == 100_700
    assert renewed(SETTINGS, token(max_ms=101_200), who, 5000, 100_500).expiry_ms == 101_200
    changed = expired(token(), who, 50, 100_500)
    assert changed is not None
    assert changed.expiry_ms == 100_550
    assert expired(token(), who, -1, 100_500) is None
    refused(ErrorCode.delegation_token_expired, renewed, SETTINGS, token(), who, 0, 101_001)
    refused(ErrorCode.delegation_token_expired, expired, token(), who, 0, 101_001)
    assert expired(token(), who, -1, 101_001) is None


def test_others_neither_renew_nor_end_nor_see_a_token() -> None:
    for who in ("User:eve", "User:Alice", "alice"):
        refused(ErrorCode.delegation_token_owner_mismatch, renewed, SETTINGS, token(), who, 0, 100_500)
        refused(ErrorCode.delegation_token_owner_mismatch, expired, token(), who, -1, 100_500)
        assert not shown_to(token(), who, None, nobody)
    assert shown_to(token(), "User:alice", None, nobody)
    assert shown_to(token(), "User:renewer", {"User:alice"}, nobody)
    assert shown_to(token(), "User:alice", {"User:renewer"}, nobody)
    assert not shown_to(token(), "User:alice", set(), nobody)


def test_a_right_stands_in_for_being_the_owner() -> None:
    made = created(SETTINGS, ALICE, "User:bob", [], 0, 100_000, "id", b"salt", lambda owner: owner == "User:bob")
    assert (made.owner, made.requester) == ("User:bob", "User:alice")
    refused(
        ErrorCode.delegation_token_authorization_failed,
        created, SETTINGS, ALICE, "User:eve", [], 0, 1, "id", b"salt", lambda owner: owner == "User:bob",
    )  # fmt: skip
    assert shown_to(made, "User:eve", None, lambda seen: seen is made)
    assert not shown_to(made, "User:eve", {"User:carol"}, lambda seen: seen is made)


def test_a_token_is_found_by_its_hmac() -> None:
    tokens = {"id": token(), "other": token()}
    assert found(SETTINGS, tokens, hmac_of(SETTINGS, "other")) == "other"
    refused(ErrorCode.delegation_token_not_found, found, SETTINGS, tokens, b"unknown")
    refused(ErrorCode.delegation_token_not_found, found, TokenSettings("key", 1, 1), tokens, hmac_of(SETTINGS, "id"))


@pytest.mark.parametrize("mechanism", [SCRAM_SHA_256, SCRAM_SHA_512])
@pytest.mark.parametrize("right", [True, False])
def test_whoever_has_the_hmac_logs_in_as_the_owner(mechanism: str, right: bool) -> None:
    keys = token().scram[mechanism]
    known = Known("alice", ScramCredential(keys.salt, keys.stored_key, keys.server_key, keys.iterations), 7)
    password = base64.b64encode(hmac_of(SETTINGS, "id" if right else "other")).decode()
    login = ClientLogin(mechanism, "id", password, by_token=True)
    client = login.exchange(lambda: "nonce", lambda: 0.0, lambda _: "")
    server = ScramServer(mechanism, lambda _, by_token: known if by_token else None, MadeUp(mechanism, b"k", []), "n")
    challenge = server.respond(client.first())
    assert isinstance(challenge, bytes)
    proof = client.next(challenge)
    assert proof is not None
    if right:
        done = server.respond(proof)
        assert isinstance(done, LoggedIn)
        assert (done.user, done.expires_ms, done.by_token) == ("alice", 7, True)
    else:
        with pytest.raises(LoginRefused):
            server.respond(proof)


def test_nothing_prints_the_keys() -> None:
    assert "the-key" not in repr(SETTINGS)
    assert str(token().scram[SCRAM_SHA_256].stored_key) not in repr(token())
