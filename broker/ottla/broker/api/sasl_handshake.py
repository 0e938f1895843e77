"""SaslHandshake (key 17), versions 0–1, from a connection that isn't logging in: ILLEGAL_SASL_STATE.

The handshakes that begin a login, or another one of the same user, are answered by `ottla.broker.login`. One that comes
here is out of order: the listener asks for no login, or the session has no end, or it is too early for another login.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.api.at_once import at_once
from ottla.broker.api.declaration import Api, NoRightNeeded
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode
from ottla.protocol.sasl import SASL_HANDSHAKE

if TYPE_CHECKING:
    import asyncio

    from ottla.broker.api.declaration import Response

API = Api(key=SASL_HANDSHAKE, versions=(0, 1), needs=NoRightNeeded("clients send SaslHandshake to log in"))


def handle(broker: object, request: Request, body: Any) -> asyncio.Future[Response]:
    """Refuses the handshake."""
    return at_once({"error_code": ErrorCode.illegal_sasl_state})
