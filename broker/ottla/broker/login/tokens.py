"""Delegation tokens: what a request about tokens may do, and the credential by which a token logs in. Pure.

A token is an id and an HMAC of the id with the brokers' common secret key. Whoever has both logs in by SCRAM as the
token's owner: the id is the name, the HMAC (in base64) the password. A token ends at its expiry time, which its owner
and its renewers move, up to its maximum time. Source: KIP-48, KIP-373 and Apache Kafka 4.3's
DelegationTokenControlManager and KafkaApis.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from ottla.metadata.model.users import ScramKeys, Token
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.security.scram import HASHES, ITERATIONS_MIN, credential_of, salted_password

USER = "User"
ANONYMOUS = "User:ANONYMOUS"


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """The brokers' settings of tokens. Times are in ms. Without a secret key there are no tokens."""

    secret_key: str = field(repr=False)
    longest_life_ms: int
    renewed_for_ms: int


@dataclass(frozen=True, slots=True)
class Asking:
    """The client of a request about tokens: the principal, the protocol of its listener, and whether it has logged in
    by a token itself."""

    principal: str
    protocol: str
    by_token: bool


def check_allowed(settings: TokenSettings, asking: Asking) -> None:
    """Raises KafkaError unless the client may ask about tokens at all: it is somebody, and somebody else than the owner
    of a token that it holds."""
    if (
        asking.by_token
        or asking.protocol == "PLAINTEXT"
        or (asking.protocol == "SSL" and asking.principal == ANONYMOUS)
    ):
        raise KafkaError(ErrorCode.delegation_token_request_not_allowed)
    if not settings.secret_key:
        raise KafkaError(ErrorCode.delegation_token_auth_disabled)


def check_creation(
    asking: Asking, owner: str, renewers: Iterable[tuple[str, str]], may_create: Callable[[str], bool]
) -> tuple[str, ...]:
    """The renewers of a new token as principals. `may_create` says whether the client may make tokens of another
    principal: whoever has a token of somebody else is somebody else. Raises KafkaError if it may not, and for a renewer
    that isn't a user."""
    if owner != asking.principal and not may_create(owner):
        raise KafkaError(ErrorCode.delegation_token_authorization_failed)
    names = []
    for kind, name in renewers:
        if kind != USER:
            raise KafkaError(ErrorCode.invalid_principal_type)
        names.append(f"{kind}:{name}")
    return tuple(names)


def created(
    settings: TokenSettings,
    asking: Asking,
    owner: str,
    renewers: tuple[str, ...],
    life_ms: int,
    now_ms: int,
    credentials: Mapping[str, ScramKeys],
) -> Token:
    """A new token of the principal `owner`, whose `credentials` are by mechanism. `life_ms` 0 or less means the longest
    life."""
    longest_ms = min(settings.longest_life_ms, life_ms) if life_ms > 0 else settings.longest_life_ms
    return Token(
        owner,
        asking.principal,
        renewers,
        now_ms,
        min(now_ms + longest_ms, now_ms + settings.renewed_for_ms),
        now_ms + longest_ms,
        credentials,
    )


def credentials_of(settings: TokenSettings, token_id: str, salt: bytes) -> dict[str, ScramKeys]:
    """The credentials by which a token logs in, by mechanism. This takes milliseconds."""
    password = base64.b64encode(hmac_of(settings, token_id)).decode()
    return {mechanism: _keys(mechanism, password, salt) for mechanism in HASHES}


def renewed(settings: TokenSettings, token: Token, principal: str, period_ms: int, now_ms: int) -> Token:
    """The token with a later expiry time. `period_ms` 0 or less means the usual period. Raises KafkaError."""
    _check_theirs(token, principal)
    _check_alive(token, now_ms)
    period_ms = min(settings.renewed_for_ms, period_ms) if period_ms > 0 else settings.renewed_for_ms
    return replace(token, expiry_ms=min(token.max_ms, now_ms + period_ms))


def expired(token: Token, principal: str, period_ms: int, now_ms: int) -> Token | None:
    """The token with the expiry time `period_ms` from now; None if a negative period ends the token at once. Raises
    KafkaError."""
    _check_theirs(token, principal)
    if period_ms < 0:
        return None
    _check_alive(token, now_ms)
    return replace(token, expiry_ms=min(token.max_ms, now_ms + period_ms))


def shown_to(
    token: Token, principal: str, owners: Collection[str] | None, may_describe: Callable[[Token], bool]
) -> bool:
    """Whether a client sees a token, which it could then log in with: the client is the owner or a renewer, or may
    describe the token although it is neither. If the client asks for the tokens of some `owners` (None: of all), one of
    them must be the token's owner or a renewer."""
    if owners is not None and not any(_is_theirs(token, owner) for owner in owners):
        return False
    return _is_theirs(token, principal) or may_describe(token)


def hmac_of(settings: TokenSettings, token_id: str) -> bytes:
    """The HMAC of a token, which is its password."""
    return hmac.digest(settings.secret_key.encode(), token_id.encode(), "sha512")


def _is_theirs(token: Token, principal: str) -> bool:
    return principal == token.owner or principal in token.renewers


def _check_theirs(token: Token, principal: str) -> None:
    if not _is_theirs(token, principal):
        raise KafkaError(ErrorCode.delegation_token_owner_mismatch)


def _check_alive(token: Token, now_ms: int) -> None:
    if token.max_ms < now_ms or token.expiry_ms < now_ms:
        raise KafkaError(ErrorCode.delegation_token_expired)


def _keys(mechanism: str, password: str, salt: bytes) -> ScramKeys:
    salted = salted_password(mechanism, password, salt, ITERATIONS_MIN)
    made = credential_of(mechanism, salted, salt, ITERATIONS_MIN)
    return ScramKeys(made.salt, made.stored_key, made.server_key, made.iterations)
