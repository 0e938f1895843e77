"""PLAIN: RFC 4616's message, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.sasl import LoginRefused
from ottla.security.plain import PlainClient, PlainServer, users_of
from tests.unit.examples import examples

USERS = users_of({"user_alice": "a-secret", "user_": "nobody's", "username": "broker", "password": "b-secret"})


@pytest.mark.parametrize("message", [b"\0alice\0a-secret", b"alice\0alice\0a-secret"])
def test_accepted(message: bytes) -> None:
    assert PlainServer(USERS).respond(message).user == "alice"


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0nobody\0a-secret", "Authentication failed: Invalid username or password"),
        (b"\0broker\0b-secret", "Authentication failed: Invalid username or password"),
        (b"bob\0alice\0a-secret", "authorization id that is different from username"),
        (b"alice\0a-secret", "expected 3 tokens, got 2"),
        (b"\0alice\0a-secret\0", "expected 3 tokens, got 4"),
        (b"", "expected 3 tokens"),
        (b"\0\0a-secret", "username not specified"),
        (b"\0alice\0", "password not specified"),
        (b"\0\xff\0a-secret", "expected 3 tokens"),
    ],
)
def test_refused(message: bytes, told: str) -> None:
    with pytest.raises(LoginRefused, match=told) as error:
        PlainServer(USERS).respond(message)
    assert "a-secret" not in str(error.value) + error.value.why


@settings(max_examples=examples(100))
@given(*[st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1)] * 2)
def test_both_sides_agree(user: str, password: str) -> None:
    client = PlainClient(user, password)
    assert PlainServer(users_of({f"user_{user}": password})).respond(client.first()).user == user
    assert client.next(b"") is None  # type: ignore[func-returns-value]
