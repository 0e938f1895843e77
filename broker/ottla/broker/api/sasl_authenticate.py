"""SaslAuthenticate (key 36), versions 0–2, from a connection that isn't logging in: ILLEGAL_SASL_STATE.

The messages of a login are answered by `ottla.broker.login`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.at_once import at_once
from ottla.broker.api.declaration import Api, NoRightNeeded
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode
from ottla.protocol.sasl import SASL_AUTHENTICATE

if TYPE_CHECKING:
    import asyncio

    from ottla.broker.api.declaration import Response

API = Api(key=SASL_AUTHENTICATE, versions=(0, 2), needs=NoRightNeeded("clients send SaslAuthenticate to log in"))


def handle(broker: object, request: Request, body: Any) -> asyncio.Future[Response]:
    """Refuses the message."""
    message = "SaslAuthenticate request received after successful authentication"  # Kafka's words
    return at_once({"error_code": ErrorCode.illegal_sasl_state, "error_message": message, "auth_bytes": b""})
