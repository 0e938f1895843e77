"""RenewDelegationToken and ExpireDelegationToken: what they have in common. Each moves the expiry time of a token."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ottla.broker.api.declaration import NoRightNeeded
from ottla.broker.login.token_service import TokenService
from ottla.broker.login.tokens import Asking
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode, KafkaError

NEEDS = NoRightNeeded("the token's owner and its renewers may do it, and nobody else")


async def moved(tokens: TokenService, request: Request, move: Callable[[Asking], Awaitable[int]]) -> dict[str, Any]:
    """The answer to the request, whose client may ask about tokens at all. `move` moves the expiry time on behalf of
    the client, and returns the new one in ms since the Unix epoch. It may raise KafkaError."""
    try:
        expiry_ms = await move(tokens.check(request))
    except KafkaError as error:
        return {"error_code": error.code}
    return {"error_code": ErrorCode.none, "expiry_timestamp": expiry_ms}
