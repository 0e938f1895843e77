"""CreateDelegationToken (key 38), versions 1–3: makes a token by which others log in as its owner (KIP-48, KIP-373)."""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

from ottla.broker.api.declaration import Api
from ottla.broker.login.tokens import hmac_of
from ottla.broker.ports import WithAuthorizer, WithTokens
from ottla.broker.request import Request
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import milliseconds
from ottla.protocol.rights import AclOperation, ResourceType, Right

API = Api(
    key=38,
    versions=(1, 3),
    needs=(Right(AclOperation.CREATE_TOKENS, ResourceType.USER),),
    changes_metadata=True,
    gaps=("an owner has at most `ottla.delegation.tokens.per.owner.max` tokens: POLICY_VIOLATION",),
)


class Parts(WithAuthorizer, WithTokens, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Makes a token of the client, which needs no right, or of the owner that the request names."""
    owner = request.principal
    if getattr(body, "owner_principal_name", None):
        owner = f"{body.owner_principal_type}:{body.owner_principal_name}"
    answer = {
        **_named("principal", owner),
        **_named("token_requester_principal", request.principal),
        "token_id": "",
        "hmac": b"",
    }
    try:
        asking = broker.tokens.check(request)
        renewers = [(each.principal_type, each.principal_name) for each in body.renewers]
        may_create = partial(broker.authorizer.allows, request, AclOperation.CREATE_TOKENS, ResourceType.USER)
        life_ms = milliseconds(body.max_lifetime)
        token_id, token = await broker.tokens.create(asking, owner, renewers, life_ms, may_create)
    except KafkaError as error:
        return answer | {"error_code": error.code}
    return answer | {
        "error_code": ErrorCode.none,
        "issue_timestamp": token.issued_ms,
        "expiry_timestamp": token.expiry_ms,
        "max_timestamp": token.max_ms,
        "token_id": token_id,
        "hmac": hmac_of(broker.tokens.settings, token_id),
    }


def _named(field: str, principal: str) -> dict[str, str]:
    kind, _, name = principal.partition(":")
    return {f"{field}_type": kind, f"{field}_name": name}
