"""The mechanism PLAIN: user and password in one message. Pure.

Source: RFC 4616, and Kafka's PlainSaslServer: the message has exactly three parts, the authorisation id is empty or the
user's name, and passwords are compared in constant time. The names and passwords that a broker accepts stand in its
JAAS configuration, as `user_<name>="<password>"`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from ottla.protocol.sasl import PLAIN, LoggedIn, LoginRefused

_REFUSED = "Authentication failed: Invalid username or password"
_USER_PREFIX = "user_"


def users_of(options: Mapping[str, str]) -> dict[str, bytes]:
    """The digests of the passwords that a broker accepts, by the users' names, from the options of its JAAS
    configuration."""
    return {
        name.removeprefix(_USER_PREFIX): _digest(password.encode())
        for name, password in options.items()
        if name.startswith(_USER_PREFIX)
    }


class PlainServer:
    """The server's side. `users` has the digests of the accepted passwords (`users_of`)."""

    def __init__(self, users: Mapping[str, bytes]) -> None:
        self._users = users

    def respond(self, message: bytes) -> LoggedIn:
        """Accepts the user of the only message, or raises LoginRefused."""
        try:
            parts = message.decode().split("\0")
        except UnicodeDecodeError:
            parts = []
        if len(parts) != 3:
            raise LoginRefused("Invalid SASL/PLAIN response: expected 3 tokens, got " + str(len(parts) or "none"))
        authorization, user, password = parts
        if not user:
            raise LoginRefused("Authentication failed: username not specified")
        if not password:
            raise LoginRefused("Authentication failed: password not specified")
        # The comparison takes the same time for an unknown user, and for passwords of different lengths.
        known = self._users.get(user)
        matches = hmac.compare_digest(_digest(password.encode()), known if known is not None else bytes(32))
        if known is None or not matches:
            raise LoginRefused(_REFUSED, "unknown user" if known is None else "wrong password")
        if authorization not in ("", user):
            raise LoginRefused(
                "Authentication failed: Client requested an authorization id that is different from username"
            )
        return LoggedIn(user)


class PlainClient:
    """The client's side."""

    mechanism = PLAIN

    def __init__(self, user: str, password: str) -> None:
        self._user = user
        self._password = password

    def first(self) -> bytes:
        """The only message."""
        return f"\0{self._user}\0{self._password}".encode()

    def next(self, challenge: bytes) -> None:
        """Ends the login: the server's answer is empty."""


def _digest(password: bytes) -> bytes:
    return hashlib.sha256(password).digest()
