"""The claims of a JSON web token (RFC 7519): reads them, and checks what all tokens must have. Pure."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from ottla.security.oauthbearer import InvalidToken

TOKEN_CHARACTERS_MAX = 64 * 1024
TIME_MAX_S = 1e12  # no time of a token is later, in seconds since the Unix epoch


class Parts(NamedTuple):
    """A token's header and claims, which nothing has proved yet, and whether it has a signature."""

    header: dict[str, Any]
    claims: dict[str, Any]
    is_signed: bool


@dataclass(frozen=True, slots=True)
class Expected:
    """What a token must say, and how far the clocks of the broker and of the identity provider may differ."""

    audiences: tuple[str, ...] = ()
    issuer: str = ""
    skew_s: int = 30
    user_claim: str = "sub"
    scope_claim: str = "scope"


def parts_of(token: str) -> Parts:
    """The parts of a compact serialisation. Raises InvalidToken."""
    pieces = token.split(".")
    if len(pieces) != 3 or len(token) > TOKEN_CHARACTERS_MAX:
        raise InvalidToken("the token isn't a JSON web token in three parts")
    return Parts(_object(pieces[0]), _object(pieces[1]), bool(pieces[2]))


def text_of(claims: dict[str, Any], name: str) -> str:
    """A claim that must be a text with something in it."""
    value = claims.get(name)
    if not isinstance(value, str) or not value.strip():
        raise InvalidToken(f"the token has no claim {name}")
    return value.strip()


def time_of(claims: dict[str, Any], name: str) -> float:
    """A claim that must be a time, in seconds since the Unix epoch."""
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < TIME_MAX_S:
        raise InvalidToken(f"the token has no time in its claim {name}")
    return value


def scopes_of(claims: dict[str, Any], name: str) -> frozenset[str]:
    """The scopes of a token: the claim is a text with blanks between scopes, or a list of texts. A scope that is named
    twice, or is blank, makes a token invalid, as in Kafka."""
    value = claims.get(name, [])
    scopes = value.split() if isinstance(value, str) else value
    if not isinstance(scopes, list) or not all(isinstance(scope, str) and scope.strip() for scope in scopes):
        raise InvalidToken(f"the claim {name} isn't a list of scopes")
    if len(set(scopes)) != len(scopes):
        raise InvalidToken(f"the claim {name} has a scope twice")
    return frozenset(scopes)


def encoded(fields: dict[str, Any]) -> str:
    """A part of a token: JSON in URL-safe base64."""
    return base64.urlsafe_b64encode(json.dumps(fields, separators=(",", ":")).encode()).decode().rstrip("=")


def _object(piece: str) -> dict[str, Any]:
    try:
        document = json.loads(base64.b64decode(piece + "=" * (-len(piece) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):  # UnicodeDecodeError is a ValueError
        raise InvalidToken("a part of the token isn't JSON in base64") from None
    if not isinstance(document, dict):
        raise InvalidToken("a part of the token isn't a JSON object")
    return document
