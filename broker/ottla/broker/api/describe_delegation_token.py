"""DescribeDelegationToken (key 41), versions 1–3: the tokens that the client owns or renews, or may describe, with
their HMACs (KIP-48, KIP-373)."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from ottla.broker.api.declaration import Api
from ottla.broker.login.tokens import hmac_of, shown_to
from ottla.broker.ports import WithAuthorizer, WithImage, WithTokens
from ottla.broker.request import Request
from ottla.metadata.model.users import Token
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType, Right

API = Api(
    key=41,
    versions=(1, 3),
    needs=(
        Right(AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN),
        Right(AclOperation.DESCRIBE_TOKENS, ResourceType.USER),
    ),
)


class Parts(WithAuthorizer, WithImage, WithTokens, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Describes the tokens that the client may see; with owners in the request, only theirs, and none for an empty
    list."""
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
            if shown_to(token, request.principal, owners, partial(_may_describe, broker, request, token_id))
        ],
    }


def _may_describe(broker: Parts, request: Request, token_id: str, token: Token) -> bool:
    """Whether the client may see a token that isn't its own: by a right on the token, or on the token's owner."""
    allows = broker.authorizer.allows
    return allows(request, AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token_id, quiet=True) or allows(
        request, AclOperation.DESCRIBE_TOKENS, ResourceType.USER, token.owner, quiet=True
    )


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
