"""DescribeDelegationToken (key 41), versions 1–3: the tokens that the client owns or renews, with their HMACs
(KIP-48)."""

from __future__ import annotations

from typing import Any, Protocol

from ottla.broker.api.declaration import Api, NoRightNeeded
from ottla.broker.login.tokens import hmac_of, shown_to
from ottla.broker.ports import WithImage, WithTokens
from ottla.broker.request import Request
from ottla.metadata.model.users import Token
from ottla.protocol.errors import ErrorCode, KafkaError

API = Api(
    key=41,
    versions=(1, 3),
    needs=NoRightNeeded("everybody may see the tokens that they own or renew"),
    gaps=("Nobody sees tokens that they neither own nor renew.",),
)


class Parts(WithImage, WithTokens, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Describes the client's tokens; with owners in the request, only theirs, and none for an empty list."""
    try:
        broker.tokens.check(request)
    except KafkaError as error:
        return {"error_code": error.code, "tokens": []}
    owners = None if body.owners is None else {f"{each.principal_type}:{each.principal_name}" for each in body.owners}
    settings = broker.tokens.settings
    return {
        "error_code": ErrorCode.none,
        "tokens": [
            _described(token_id, token, hmac_of(settings, token_id))
            for token_id, token in broker.image.tokens.items()
            if shown_to(token, request.principal, owners)
        ],
    }


def _described(token_id: str, token: Token, hmac: bytes) -> dict[str, Any]:
    owner_type, _, owner = token.owner.partition(":")
    requester_type, _, requester = token.requester.partition(":")
    return {
        "principal_type": owner_type,
        "principal_name": owner,
        "token_requester_principal_type": requester_type,
        "token_requester_principal_name": requester,
        "issue_timestamp": token.issued_ms,
        "expiry_timestamp": token.expiry_ms,
        "max_timestamp": token.max_ms,
        "token_id": token_id,
        "hmac": hmac,
        "renewers": [
            dict(zip(("principal_type", "principal_name"), renewer.split(":", 1), strict=True))
            for renewer in token.renewers
        ],
    }
