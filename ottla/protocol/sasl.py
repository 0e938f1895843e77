"""The two ends of a login by SASL, which the connections of brokers and of clients carry out. Pure.

A mechanism is an exchange of messages (RFC 4422). Each side is an object that gets the other side's message and returns
its own one. Both know neither sockets nor Kafka's requests. `ottla.security` has the mechanisms, `ottla.net` sends the
client's messages, and the broker's `login` package answers them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36

PLAIN = "PLAIN"
SCRAM_SHA_256 = "SCRAM-SHA-256"
SCRAM_SHA_512 = "SCRAM-SHA-512"
OAUTHBEARER = "OAUTHBEARER"
MECHANISMS = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)
"""The mechanisms that Ottla has."""


class LoginRefused(Exception):
    """A login failed. The message is for the other side: it doesn't say whether the user or the password is unknown.
    `why` is the reason for this side's log, and has no secret either."""

    def __init__(self, message: str, why: str = "") -> None:
        super().__init__(message)
        self.why = why or message


class NotYet(Exception):
    """A message can't be answered before something else has happened, such as the arrival of keys from another server.
    When the awaitable that `until` returns is done, the exchange gets the same message again."""

    def __init__(self, until: Callable[[], Awaitable[None]]) -> None:
        super().__init__("the answer to a message of a login has to wait")
        self.until = until


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """A login that succeeded: the user's name, the last message to the client, and the end of the credential's life in
    ms since the Unix epoch (None: it has no end). `by_token`: the credential was a delegation token."""

    user: str
    message: bytes = b""
    expires_ms: int | None = None
    by_token: bool = False


class ServerExchange(Protocol):
    """The server's side of one login."""

    def respond(self, message: bytes) -> bytes | LoggedIn:
        """The answer to the client's next message: another message, or the end of the login. Raises LoginRefused,
        NotYet."""


class ClientExchange(Protocol):
    """The client's side of one login."""

    @property
    def mechanism(self) -> str:
        """The mechanism's name."""

    def first(self) -> bytes:
        """The first message."""

    def next(self, challenge: bytes) -> bytes | None:
        """The answer to a message of the server; None if the login is complete. Raises LoginRefused, also if the server
        doesn't prove that it knows the client's credential."""


def refusal(mechanism: str) -> str:
    """What a client is told whose credentials are wrong: Kafka's words, which name neither the user nor the reason."""
    return f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
