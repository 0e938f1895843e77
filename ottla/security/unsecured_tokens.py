"""Unsecured tokens (`"alg":"none"`, RFC 7515): anybody can make one, so they are for development alone. Pure.

As in Kafka they are what OAUTHBEARER accepts if nothing else is configured, and a client can make its own one. The
options in the JAAS configuration are those of Kafka's OAuthBearerUnsecuredValidatorCallbackHandler and
OAuthBearerUnsecuredLoginCallbackHandler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ottla.security.oauthbearer import Accepted, Check, InvalidToken
from ottla.security.token_claims import encoded, parts_of, scopes_of, text_of, time_of

_VALIDATOR, _LOGIN = "unsecuredValidator", "unsecuredLogin"
_LIFETIME_S = 3600.0


def unsecured_check(options: Mapping[str, str], now_ms: Callable[[], int]) -> Check:
    """A check of unsecured tokens. Raises ValueError for an option that isn't a number."""
    user_claim = options.get(f"{_VALIDATOR}PrincipalClaimName", "sub")
    scope_claim = options.get(f"{_VALIDATOR}ScopeClaimName", "scope")
    required = options.get(f"{_VALIDATOR}RequiredScope", "").split()
    skew_ms = int(options.get(f"{_VALIDATOR}AllowableClockSkewMs", "0"))

    def check(token: str) -> Accepted:
        header, claims, is_signed = parts_of(token)
        if header.get("alg") != "none" or is_signed:
            raise InvalidToken("the token isn't an unsecured one, and nothing says how a signed one is checked")
        user = text_of(claims, user_claim)
        expires_ms = int(time_of(claims, "exp") * 1000)
        if now_ms() - skew_ms >= expires_ms:
            raise InvalidToken("the token has expired")
        if "iat" in claims and int(time_of(claims, "iat") * 1000) > now_ms() + skew_ms:
            raise InvalidToken("the token was issued in the future")
        if not scopes_of(claims, scope_claim).issuperset(required):
            raise InvalidToken("the token lacks a required scope", "insufficient_scope", " ".join(required))
        return Accepted(user, expires_ms)

    return check


def makes_own_token(options: Mapping[str, str]) -> bool:
    """Whether a client's JAAS configuration says that the client makes its own unsecured token."""
    return any(name.startswith(f"{_LOGIN}StringClaim_") for name in options)


def own_token(options: Mapping[str, str], now_s: float) -> str:
    """The unsecured token that a client's JAAS configuration describes."""
    claims: dict[str, object] = {
        "iat": now_s,
        "exp": now_s + float(options.get(f"{_LOGIN}LifetimeSeconds", _LIFETIME_S)),
    }
    for name, value in options.items():
        if name.startswith(f"{_LOGIN}StringClaim_"):
            claims[name.removeprefix(f"{_LOGIN}StringClaim_")] = value
        elif name.startswith(f"{_LOGIN}NumberClaim_"):
            claims[name.removeprefix(f"{_LOGIN}NumberClaim_")] = float(value)
        elif name.startswith(f"{_LOGIN}ListClaim_") and value:
            claims[name.removeprefix(f"{_LOGIN}ListClaim_")] = value[1:].split(value[0])
    return f"{encoded({'alg': 'none'})}.{encoded(claims)}."
