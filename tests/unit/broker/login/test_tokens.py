"""Delegation tokens: who may make, renew, end and see them, and logins by them."""

from __future__ import annotations

import base64
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.login.token_index import TokenIndex
from ottla.broker.login.tokens import (
    Asking,
    TokenSettings,
    check_allowed,
    check_creation,
    created,
    credentials_of,
    expired,
    hmac_of,
    renewed,
    shown_to,
)
from ottla.metadata.image import Changed
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


KEYS = credentials_of(SETTINGS, "id", b"salt")


def token(**changes: Any) -> Token:
    made = created(SETTINGS, ALICE, "User:alice", ("User:renewer",), 0, 100_000, KEYS)
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
        made = created(SETTINGS, ALICE, "User:alice", (), life_ms, 100_000, KEYS)
        assert (made.expiry_ms, made.max_ms) == times


def test_renewers_are_users_and_the_owner_is_the_client() -> None:
    renewers = [("Group", "g")]
    refused(ErrorCode.invalid_principal_type, check_creation, ALICE, "User:alice", renewers, nobody)
    refused(ErrorCode.delegation_token_authorization_failed, check_creation, ALICE, "User:bob", renewers, nobody)
    assert check_creation(ALICE, "User:alice", [("User", "a"), ("User", "b")], nobody) == ("User:a", "User:b")


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
    made = created(SETTINGS, ALICE, "User:bob", (), 0, 100_000, KEYS)
    assert (made.owner, made.requester) == ("User:bob", "User:alice")

    def bobs(owner: str) -> bool:
        return owner == "User:bob"

    assert check_creation(ALICE, "User:bob", [], bobs) == ()
    refused(ErrorCode.delegation_token_authorization_failed, check_creation, ALICE, "User:eve", [], bobs)
    assert shown_to(made, "User:eve", None, lambda seen: seen is made)
    assert not shown_to(made, "User:eve", {"User:carol"}, lambda seen: seen is made)


class Indexed:
    """An index, and the HMACs that it has computed."""

    def __init__(self) -> None:
        self.computed: list[str] = []
        self.index = TokenIndex(self._hmac_of)

    def _hmac_of(self, token_id: str) -> bytes:
        self.computed.append(token_id)
        return hmac_of(SETTINGS, token_id)

    def change(self, tokens: dict[str, Token], *names: str) -> None:
        image: Any = SimpleNamespace(tokens=tokens)
        self.index.changed(image, Changed(tokens=frozenset(names)))


def test_a_token_is_found_by_its_hmac_which_is_computed_once() -> None:
    world = Indexed()
    world.change({"id": token(), "other": token()}, "id", "other")
    assert world.computed == []
    for _ in range(2):
        assert world.index.found(hmac_of(SETTINGS, "other")) == "other"
    refused(ErrorCode.delegation_token_not_found, world.index.found, b"unknown")
    refused(ErrorCode.delegation_token_not_found, world.index.found, hmac_of(TokenSettings("key", 1, 1), "id"))
    world.change({"id": token(expiry_ms=5), "other": token()}, "id")
    assert sorted(world.computed) == ["id", "other"]
    world.change({"other": token()}, "id")
    refused(ErrorCode.delegation_token_not_found, world.index.found, hmac_of(SETTINGS, "id"))


def test_tokens_are_counted_by_their_owners() -> None:
    world = Indexed()
    world.change({"a": token(), "b": token(), "c": token(owner="User:bob")}, "a", "b", "c")
    assert [world.index.count(owner) for owner in ("User:alice", "User:bob", "User:eve")] == [2, 1, 0]
    world.change({"b": token(expiry_ms=7)}, "a", "b", "c", "never there")
    assert [world.index.count(owner) for owner in ("User:alice", "User:bob")] == [1, 0]


@pytest.mark.parametrize("mechanism", [SCRAM_SHA_256, SCRAM_SHA_512])
@pytest.mark.parametrize("right", [True, False])
def test_whoever_has_the_hmac_logs_in_as_the_owner(mechanism: str, right: bool) -> None:
    keys = token().scram[mechanism]
    known = Known("alice", ScramCredential(keys.salt, keys.stored_key, keys.server_key, keys.iterations), 7)
    password = base64.b64encode(hmac_of(SETTINGS, "id" if right else "other")).decode()
    login = ClientLogin(mechanism, "id", password, by_token=True)
    client = login.exchange(lambda: "nonce", lambda: 0.0, lambda _: "", lambda _: "")
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
