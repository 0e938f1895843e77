"""RenewDelegationToken (key 39), versions 1–2: moves the expiry time of a token (KIP-48)."""

from __future__ import annotations

from typing import Any

from ottla.broker.api.declaration import Api, NoRightNeeded
from ottla.broker.ports import WithTokens
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import milliseconds

API = Api(
    key=39,
    versions=(1, 2),
    needs=NoRightNeeded("the token's owner and its renewers may do it, and nobody else"),
    changes_metadata=True,
)


async def handle(broker: WithTokens, request: Request, body: Any) -> dict[str, Any]:
    """Renews the token with the HMAC of the request."""
    try:
        asking = broker.tokens.check(request)
        expiry_ms = await broker.tokens.renew(asking, bytes(body.hmac), milliseconds(body.renew_period))
    except KafkaError as error:
        return {"error_code": error.code}
    return {"error_code": ErrorCode.none, "expiry_timestamp": expiry_ms}
