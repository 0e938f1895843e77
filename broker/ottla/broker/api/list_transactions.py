"""ListTransactions (66), versions 0–2: the transactional ids that this broker coordinates.

Filters are names of states, producer ids, from version 1 on the time since the transaction's start (KIP-994), and from
version 2 on a regular expression of transactional ids (KIP-1152). The answer lists the names of the filter that no
state has. If none of the names has a state, no transaction is listed.
"""

from __future__ import annotations

from typing import Any, Protocol

from ottla.broker.patterns import matcher
from ottla.broker.ports import WithAuthorizer, WithTransactions
from ottla.broker.request import Request
from ottla.broker.transaction.listing import Wish, states_named
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.rights import AclOperation, ResourceType, Right

from .declaration import Api

API = Api(
    key=66,
    versions=(0, 2),
    needs=(Right(AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),),
    gaps=("the regular expression has at most 2,000 characters",),
)


class Parts(WithAuthorizer, WithTransactions, Protocol): ...


async def handle(broker: Parts, request: Request, body: Any) -> dict[str, Any]:
    """Answers the ids, COORDINATOR_LOAD_IN_PROGRESS while a partition of `__transaction_state` loads, or
    INVALID_REGULAR_EXPRESSION."""
    states, unknown = states_named(body.state_filters)
    try:
        wish = Wish(
            states,
            nothing=bool(unknown) and not states,
            producer_ids=frozenset(body.producer_id_filters),
            longer_than_ms=body.duration_filter if request.api_version >= 1 else -1,
            matches=matcher(body.transactional_id_pattern) if body.transactional_id_pattern else None,
        )
        listed = await broker.transactions.listed(wish)
    except KafkaError as error:
        return {"error_code": error.code, "unknown_state_filters": unknown}
    return {
        "error_code": ErrorCode.none,
        "unknown_state_filters": unknown,
        "transaction_states": [
            {
                "transactional_id": name,
                "producer_id": transaction.producer_id,
                "transaction_state": transaction.state.label,
            }
            for name, transaction in listed
            if broker.authorizer.allows(request, AclOperation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name, quiet=True)
        ],
    }
