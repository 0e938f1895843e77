"""Signed tokens: checked with the public keys of an identity provider (JWKS, RFC 7517), by PyJWT.

The algorithm is pinned to public-key signatures: neither `none` nor a keyed hash is accepted, whatever a token's header
says. `exp` and `iat` must be there. Audience and issuer are checked if they are configured. Source: Kafka's
OAuthBearerValidatorCallbackHandler and BrokerJwtValidator.

This module is imported only where tokens are checked by it, because PyJWT and `cryptography` take memory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import jwt
from cryptography.exceptions import UnsupportedAlgorithm

from ottla.protocol.sasl import NotYet
from ottla.security.oauthbearer import Accepted, Check, InvalidToken
from ottla.security.token_claims import Expected, parts_of, scopes_of, text_of, time_of

ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip

_UNUSABLE = (
    jwt.PyJWTError, ValueError, TypeError, KeyError, AttributeError, NotImplementedError, UnsupportedAlgorithm,
)  # fmt: skip
"""What PyJWT and `cryptography` raise for fields that make no key."""


class Keys(Protocol):
    """The public keys of an identity provider."""

    def of(self, key_id: str | None) -> Any:
        """The key of this id, as `jwt.PyJWK`; without an id, the only key there is. None for an unknown key."""

    def wanted(self, key_id: str | None) -> Callable[[], Awaitable[None]] | None:
        """A function that waits until the keys have been fetched anew, because of an unknown id; None if it isn't time
        for that yet."""


def keys_of(document: Any) -> dict[str | None, jwt.PyJWK]:
    """The signature keys of a JSON web key set, by id. Keys that can't be used are left out. Raises ValueError for a
    document that isn't a key set."""
    if not isinstance(document, dict) or not isinstance(document.get("keys"), list):
        raise ValueError("the document isn't a JSON web key set")
    keys: dict[str | None, jwt.PyJWK] = {}
    for entry in document["keys"]:
        if not isinstance(entry, dict) or entry.get("use", "sig") != "sig" or entry.get("kty") == "oct":
            continue
        key_id = entry.get("kid")
        try:
            key = jwt.PyJWK.from_dict(entry)
        except _UNUSABLE:
            continue
        if key.algorithm_name in ALGORITHMS and isinstance(key_id, str | None):
            keys[key_id] = key
    return keys


class SignedTokens:
    """The check of one login's token. An unknown key is fetched at most once for it."""

    def __init__(self, keys: Keys, expected: Expected) -> None:
        self._keys = keys
        self._expected = expected
        self._waited = False

    def __call__(self, token: str) -> Accepted:
        """Raises InvalidToken, NotYet."""
        header = parts_of(token).header
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in ALGORITHMS or not isinstance(key_id, str | None):
            raise InvalidToken("the token isn't signed by an algorithm with public keys")
        key = self._keys.of(key_id)
        if key is None:
            until = None if self._waited else self._keys.wanted(key_id)
            if until is None:
                raise InvalidToken("the token is signed by a key that isn't known")
            self._waited = True
            raise NotYet(until)
        return self._accepted(token, key, algorithm)

    def _accepted(self, token: str, key: Any, algorithm: str) -> Accepted:
        expected = self._expected
        try:
            # PyJWT refuses an algorithm that doesn't fit the key.
            claims = jwt.decode(
                token,
                key.key,
                algorithms=[algorithm],
                audience=list(expected.audiences) or None,
                issuer=expected.issuer or None,
                leeway=expected.skew_s,
                options={"require": ["exp", "iat"], "verify_aud": bool(expected.audiences)},
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise InvalidToken(f"the token is refused: {type(error).__name__}") from None
        scopes_of(claims, expected.scope_claim)
        time_of(claims, "iat")
        return Accepted(text_of(claims, expected.user_claim), int(time_of(claims, "exp") * 1000))


def signed_check(keys: Keys, expected: Expected) -> Callable[[], Check]:
    """Begins a check for each login."""
    return lambda: SignedTokens(keys, expected)
