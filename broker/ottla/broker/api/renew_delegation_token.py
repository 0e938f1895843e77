"""RenewDelegationToken (key 39), versions 1–2: moves the expiry time of a token (KIP-48)."""

from __future__ import annotations

from typing import Any

from ottla.broker.api.declaration import Api
from ottla.broker.api.token_expiry import NEEDS, moved
from ottla.broker.ports import WithTokens
from ottla.broker.request import Request
from ottla.protocol.messages import milliseconds

API = Api(key=39, versions=(1, 2), needs=NEEDS, changes_metadata=True)


async def handle(broker: WithTokens, request: Request, body: Any) -> dict[str, Any]:
    """Renews the token with the HMAC of the request."""
    hmac, period_ms = bytes(body.hmac), milliseconds(body.renew_period)
    return await moved(broker.tokens, request, lambda asking: broker.tokens.renew(asking, hmac, period_ms))
