"""The mechanism OAUTHBEARER: the client shows a token that an identity provider gave it. Pure.

A token that is refused is answered by a JSON object, without an error of Kafka's protocol; the client acknowledges it
by one byte, and only then the login fails (RFC 7628). What a token must say is the business of a `Check`:
`unsecured_tokens` (for development) and `signed_tokens`. Source: Kafka's OAuthBearerSaslServer and
OAuthBearerClientInitialResponse; extensions are read, and have no effect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NamedTuple

from ottla.protocol.sasl import OAUTHBEARER, LoggedIn, LoginRefused, refusal

_ACKNOWLEDGED = b"\x01"
_NAME = r"(?:[^=,\0\x01]++|=2C|=3D)++"
_PAIR = r"[A-Za-z]++=[\x21-\x7e \t\r\n]++\x01"
_INITIAL = re.compile(rf"n,(?:a=(?P<authorization>{_NAME}))?,\x01(?P<pairs>(?:{_PAIR})*)\x01")
_AUTH = re.compile(r"(?P<scheme>\w+) +(?P<token>[-_~+/.a-zA-Z0-9]+=*)")


class Accepted(NamedTuple):
    """The content of a token that counts: its user, and its end in ms since the Unix epoch."""

    user: str
    expires_ms: int


class InvalidToken(Exception):
    """A token is refused. The message is the reason for the broker's log, and has nothing of the token."""

    def __init__(self, why: str, status: str = "invalid_token", scope: str = "") -> None:
        super().__init__(why)
        self.status = status
        self.scope = scope


Check = Callable[[str], Accepted]
"""Reads a token and says what it proves. Raises InvalidToken, and `ottla.protocol.sasl.NotYet`."""


class OAuthServer:
    """The server's side of one login."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._refused: tuple[str, str] | None = None  # (the JSON object that the client got, the reason)

    def respond(self, message: bytes) -> bytes | LoggedIn:
        """Answers the token, or fails when the client has acknowledged a refusal. Raises LoginRefused, NotYet."""
        if self._refused is not None:
            told, why = self._refused
            if message == _ACKNOWLEDGED:
                raise LoginRefused(told, why)
            raise LoginRefused(refusal(OAUTHBEARER), why)
        token, authorization = _parse(message)
        try:
            accepted = self._check(token)
        except InvalidToken as error:
            fields = {"status": error.status} | ({"scope": error.scope} if error.scope else {})
            told = json.dumps(fields, separators=(",", ":"))
            self._refused = told, str(error)
            return told.encode()
        if authorization not in ("", accepted.user):
            raise LoginRefused(
                "Authentication failed: Client requested an authorization id that is different from the token's "
                "principal name"
            )
        return LoggedIn(accepted.user, b"", accepted.expires_ms)


class OAuthClient:
    """The client's side of one login."""

    mechanism = OAUTHBEARER

    def __init__(self, token: str) -> None:
        self._token = token
        self._refused = ""

    def first(self) -> bytes:
        """The token."""
        return f"n,,\x01auth=Bearer {self._token}\x01\x01".encode()

    def next(self, challenge: bytes) -> bytes | None:
        """Ends the login, or acknowledges a refusal."""
        return _ACKNOWLEDGED if challenge else None


def _parse(message: bytes) -> tuple[str, str]:
    """(the token, the authorisation id) of a first message. Raises LoginRefused."""
    try:
        match = _INITIAL.fullmatch(message.decode())
    except UnicodeDecodeError:
        match = None
    if match is None:
        raise LoginRefused(refusal(OAUTHBEARER), "the first message is malformed")
    pairs = dict(pair.split("=", 1) for pair in match["pairs"].split("\x01") if pair)
    auth = _AUTH.fullmatch(pairs.get("auth", ""))
    if auth is None or auth["scheme"].lower() != "bearer":
        raise LoginRefused(refusal(OAUTHBEARER), "the first message has no bearer token")
    return auth["token"], (match["authorization"] or "").replace("=2C", ",").replace("=3D", "=")
